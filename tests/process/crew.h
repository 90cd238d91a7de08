// Ranks as processes.  A test case is the parent: it starts one copy of its own program per rank (Crew), waits with a hard
// deadline, and reads what each rank has noted.  A rank runs the role that the case names (MK_ROLE) and notes every call it
// makes with its result, its text and the time, so that a rank that hangs or dies leaves what it was doing.
// Where ranksAreThreads is set, one copy runs all ranks as threads, but for crews that are asked to be processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "emu/hooks.h"
#include "mkernel.h"
#include "ops/world.h"
#include "support/temp.h"

namespace test {

// How much slower than a plain build this one may be.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kSlow = 6;
inline constexpr bool kPlain = false, kThreadSanitizer = true;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlow = 4;
inline constexpr bool kPlain = false, kThreadSanitizer = false;
#else
inline constexpr int kSlow = 1;
inline constexpr bool kPlain = true, kThreadSanitizer = false;
#endif
// Set by tests/run.sh --long.
bool longRun();

uint64_t clockNs();

// What a rank noted: the end of a call, or something of its own.
struct Note {
  bool there = false;
  uint64_t beginNs = 0, endNs = 0;  // equal unless it is a call
  int code = 0;
  std::string text;
  double seconds() const { return static_cast<double>(endNs - beginNs) * 1e-9; }
};

using Options = std::map<std::string, std::string>;

// ---- The rank's side -----------------------------------------------------------------------------------------------

class Rank {
 public:
  // One of the ranks of the environment that Crew has set.
  explicit Rank(int rank);

  int rank() const { return rank_; }
  int ranks() const { return world_.ranks(); }
  const World& world() const { return world_; }
  std::string option(const std::string& name) const;
  int number(const std::string& name) const { return std::stoi(option(name)); }

  void note(const std::string& name, int code = 0, const std::string& text = {});
  // Notes the beginning and the end of a call, with mkGetLastError(NULL) if it failed.
  mkResult_t call(const std::string& name, const std::function<mkResult_t()>& body);
  // The same for something that throws std::string when it is wrong; code 1.
  bool attempt(const std::string& name, const std::function<void()>& body);

  // Signals between the processes of a crew: files in its directory.  await() ends this process if nobody gives the signal.
  void mark(const std::string& name);
  void await(const std::string& name);
  bool marked(const std::string& name) const;
  void meet(const std::string& name);  // all ranks of the world

  // Joins the communicator `name`: nodes x locals ranks, of which this is `index`; index 0 makes the unique id.
  mkResult_t join(const std::string& name, const World& world, int index, mkComm_t* comm,
                  const std::function<void(mkConfig_t&)>& configure = {});
  // The crew's own world.
  mkComm_t join(const std::function<void(mkConfig_t&)>& configure = {});
  mkUniqueId_t idOf(const std::string& name, bool make);

  // One operation of the case, on the NULL stream, and its check if it succeeded ("NAME check").
  mkResult_t operation(const std::string& name, mkComm_t comm, const World& world, int index, const Case& c);

 private:
  std::string path(const std::string& name) const;

  int rank_ = 0;
  World world_;
  std::string directory_;
  uint64_t deadlineNs_ = 0;
  int report_ = -1;
};

using Role = void (*)(Rank&);
// What every rank does first: a GPU test chooses its device.
inline void (*beforeRole)(int rank) = nullptr;
// What every communicator is configured with before a role says otherwise.
inline void (*configureAll)(mkConfig_t& config) = nullptr;
struct RegisterRole {
  RegisterRole(const char* name, Role role);
};
// MK_ROLE(name) { ... rank ... }: what a rank does.
#define MK_ROLE(name)                                                  \
  static void role_##name(test::Rank&);                                \
  static const test::RegisterRole register_##name(#name, role_##name); \
  static void role_##name([[maybe_unused]] test::Rank& rank)

// Installs a hook that, in this rank's agent, runs `action` once at the point of this epoch; for multiply at the tile, or at the
// first one (kAnyTile) once `ready`.
inline constexpr uint64_t kAnyTile = UINT64_MAX;
void hookOnce(int rank, uint64_t epoch, mk::emu::Point point, uint64_t item, std::function<void()> action,
              std::function<bool()> ready = {});
// Every multiply of this rank (-1: of all) takes this long.
void slowTiles(int rank, int ms);

// Notes the time and ends this process as a crash would.
[[noreturn]] void dieNow(Rank& rank);

// Lines of /proc/self/maps that contain this.
int mappings(const std::string& what);
int countEntries(const std::string& directory);

// ---- The parent's side ---------------------------------------------------------------------------------------------

inline bool ranksAreThreads = false;

class Crew {
 public:
  enum class Ranks { any, processes };  // processes: each can be stopped and killed

  // Starts the ranks.  environment: "NAME=value", or "R:NAME=value" for rank R alone, which is a process then.
  Crew(const std::string& role, const World& world, const Options& options = {},
       const std::vector<std::string>& environment = {}, Ranks ranks = Ranks::any);
  ~Crew();  // kills what is left
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Until all have ended; false if some had not, and then they are killed and trouble() says what each was doing.
  bool finish(int seconds);
  // Until `condition`; false after so many seconds, as above.
  bool until(int seconds, const std::function<bool()>& condition, const std::string& what);
  bool untilNoted(int rank, const std::string& name, int seconds);
  bool untilStopped(int rank, int seconds);

  pid_t pid(int rank) const { return ranks_[static_cast<size_t>(rank)].pid; }
  bool ended(int rank);
  int status(int rank) const { return ranks_[static_cast<size_t>(rank)].status; }  // exit status, or 128 + signal
  Note note(int rank, const std::string& name) const;
  void mark(const std::string& name);

  // All notes and output of all ranks, for a failure's text.
  std::string story() const;

 private:
  struct Process {
    pid_t pid = 0;
    bool ended = false, stopped = false;
    int status = -1;
  };
  pid_t start(int rank, const std::string& role, const Options& options, const std::vector<std::string>& environment);
  void reap();
  void killAll();

  const World world_;
  TempDir directory_;
  std::vector<Process> ranks_;
};

// Whether the text names this rank and none of the digits is another's: "rank 1" is not in "rank 12".
bool namesRank(const std::string& text, int rank);

}  // namespace test

// Inside a test case with a Crew named `crew`.
#define MK_CHECK_NOTE(crew, rank, name, expected)                                               \
  do {                                                                                          \
    const test::Note note_ = (crew).note(rank, name);                                           \
    INFO("rank " << (rank) << ", " << (name) << ": code " << note_.code << ", " << note_.text); \
    CHECK(note_.there);                                                                         \
    CHECK(note_.code == (expected));                                                            \
  } while (0)
