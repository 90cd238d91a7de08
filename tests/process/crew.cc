// See crew.h.
#include "process/crew.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/catch_compat.h"

namespace test {
namespace {

constexpr int kWholeDeadlineSeconds = 120;  // of one crew, in a plain build and a short run

void pauseMs(int ms) {
  const timespec pause{ms / 1000, (ms % 1000) * 1'000'000L};
  nanosleep(&pause, nullptr);
}

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> all;
  return all;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string escape(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return text;
}

std::string readFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct HookPlan {
  int rank = -1;
  uint64_t epoch = 0;
  mk::emu::Point point = mk::emu::Point::launch;
  uint64_t item = 0;
  std::atomic<bool> armed{false};
  std::function<void()> action;
  std::function<bool()> ready;
  int slowRank = -2;
  std::atomic<int> slowMs{0};
};
HookPlan& hookPlan() {
  static HookPlan plan;
  return plan;
}
void theHook(int rank, uint64_t epoch, mk::emu::Point point, uint64_t item) {
  HookPlan& plan = hookPlan();
  if (const int ms = plan.slowMs.load(); ms > 0 && point == mk::emu::Point::multiply)
    if (plan.slowRank == -1 || plan.slowRank == rank) pauseMs(ms);
  if (!plan.armed.load() || rank != plan.rank || epoch != plan.epoch || point != plan.point) return;
  if (point == mk::emu::Point::multiply && plan.item != kAnyTile && item != plan.item) return;
  if (plan.ready && !plan.ready()) return;
  if (plan.armed.exchange(false)) plan.action();
}

}  // namespace

bool longRun() { return std::getenv("MKERNEL_TEST_LONG") != nullptr; }

uint64_t clockNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

bool namesRank(const std::string& text, int rank) {
  const std::string word = "rank " + std::to_string(rank);
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

int mappings(const std::string& what) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(what) != std::string::npos ? 1 : 0;
  return count;
}

int countEntries(const std::string& directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

void hookOnce(int rank, uint64_t epoch, mk::emu::Point point, uint64_t item, std::function<void()> action,
              std::function<bool()> ready) {
  HookPlan& plan = hookPlan();
  plan.rank = rank;
  plan.epoch = epoch;
  plan.point = point;
  plan.item = item;
  plan.action = std::move(action);
  plan.ready = std::move(ready);
  plan.armed.store(true);
  mk::emu::hook().store(theHook);
}

void slowTiles(int rank, int ms) {
  hookPlan().slowRank = rank;
  hookPlan().slowMs.store(ms);
  mk::emu::hook().store(theHook);
}

void dieNow(Rank& rank) {
  rank.note("death");
  raise(SIGKILL);
  std::abort();
}

// ---- The rank's side -----------------------------------------------------------------------------------------------

RegisterRole::RegisterRole(const char* name, Role role) { roles()[name] = role; }

namespace {

constexpr int kAllRanks = -1;  // MK_TEST_RANK of a process whose threads are the ranks

// Returns what was wrong.
std::string play(Role role, int index) {
  try {
    Rank rank(index);
    try {
      if (beforeRole != nullptr) beforeRole(index);
      role(rank);
      rank.note("end");
    } catch (const std::string& text) {
      rank.note("wrong", 1, text);
      throw;
    }
  } catch (const std::string& text) {
    return "rank " + std::to_string(index) + ": " + text;
  }
  return {};
}

}  // namespace

// Hidden, but a filter that only excludes something, such as "~[queues]", brings it up.
TEST_CASE("rank", "[.]") {
  const std::string name = variable("MK_TEST_ROLE");
  if (name.empty()) {
    WARN("no test: a rank's part in the tests that start this program again, with MK_TEST_ROLE set");
    return;
  }
  const auto role = roles().find(name);
  INFO("MK_TEST_ROLE=" << name);
  REQUIRE(role != roles().end());
  const int mine = std::stoi(variable("MK_TEST_RANK"));
  const int ranks = std::stoi(variable("MK_TEST_NODES")) * std::stoi(variable("MK_TEST_LOCALS"));
  std::vector<std::string> wrong(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  if (mine != kAllRanks) wrong[0] = play(role->second, mine);
  for (int r = 0; mine == kAllRanks && r < ranks; ++r)
    threads.emplace_back([&, r] { wrong[static_cast<size_t>(r)] = play(role->second, r); });
  for (std::thread& t : threads) t.join();
  for (const std::string& text : wrong) {
    INFO(text);
    CHECK(text.empty());
  }
}

Rank::Rank(int rank)
    : rank_(rank),
      world_{std::stoi(variable("MK_TEST_NODES")), std::stoi(variable("MK_TEST_LOCALS"))},
      directory_(variable("MK_TEST_DIRECTORY")),
      deadlineNs_(std::stoull(variable("MK_TEST_DEADLINE"))) {
  report_ = open(path("report." + std::to_string(rank_)).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (report_ < 0) throw std::string("cannot open the report");
}

std::string Rank::path(const std::string& name) const { return directory_ + "/" + name; }

std::string Rank::option(const std::string& name) const {
  const std::string value = variable(("MK_TEST_OPTION_" + name).c_str());
  if (value.empty()) throw "the role needs the option " + name;
  return value;
}

void Rank::note(const std::string& name, int code, const std::string& text) {
  const std::string line =
      std::to_string(clockNs()) + "\t" + name + "\t" + std::to_string(code) + "\t" + escape(text) + "\n";
  // One write each: a process that is killed leaves whole lines.
  if (write(report_, line.data(), line.size()) < 0) std::perror("report");
}

mkResult_t Rank::call(const std::string& name, const std::function<mkResult_t()>& body) {
  note(name + " begins");
  const mkResult_t result = body();
  note(name, result, result == mkSuccess ? "" : mkGetLastError(nullptr));
  return result;
}

bool Rank::attempt(const std::string& name, const std::function<void()>& body) {
  note(name + " begins");
  try {
    body();
  } catch (const std::string& text) {
    note(name, 1, text);
    return false;
  }
  note(name);
  return true;
}

void Rank::mark(const std::string& name) { std::ofstream(path("mark." + name)) << rank_; }

bool Rank::marked(const std::string& name) const { return access(path("mark." + name).c_str(), F_OK) == 0; }

void Rank::await(const std::string& name) {
  while (!marked(name)) {
    if (clockNs() > deadlineNs_) throw "nobody has marked " + name;
    pauseMs(1);
  }
}

void Rank::meet(const std::string& name) {
  mark(name + "." + std::to_string(rank_));
  for (int r = 0; r < ranks(); ++r) await(name + "." + std::to_string(r));
}

mkUniqueId_t Rank::idOf(const std::string& name, bool make) {
  mkUniqueId_t id;
  const std::string file = path("id." + name);
  if (make) {
    expect(mkGetUniqueId(&id), "mkGetUniqueId");
    std::ofstream(file + ".part", std::ios::binary).write(id.internal, sizeof(id.internal));
    std::filesystem::rename(file + ".part", file);
    return id;
  }
  while (access(file.c_str(), F_OK) != 0) {
    if (clockNs() > deadlineNs_) throw "nobody has made the id of " + name;
    pauseMs(1);
  }
  std::ifstream(file, std::ios::binary).read(id.internal, sizeof(id.internal));
  return id;
}

mkResult_t Rank::join(const std::string& name, const World& world, int index, mkComm_t* comm,
                      const std::function<void(mkConfig_t&)>& configure) {
  const std::string host = name + "-node-" + std::to_string(index / world.locals);
  mkConfig_t config;
  MK_INIT(&config, MK_ID_CONFIG);
  config.hostId = host.c_str();
  config.initTimeoutMs = 20000 * kSlow;
  if (configureAll != nullptr) configureAll(config);
  if (configure) configure(config);
  const mkUniqueId_t id = idOf(name, index == 0);
  return call("join " + name, [&] { return mkCommInitRankConfig(comm, world.ranks(), id, index, &config); });
}

mkComm_t Rank::join(const std::function<void(mkConfig_t&)>& configure) {
  mkComm_t comm = nullptr;
  if (join("world", world_, rank_, &comm, configure) != mkSuccess) throw std::string("no communicator");
  return comm;
}

mkResult_t Rank::operation(const std::string& name, mkComm_t comm, const World& world, int index, const Case& c) {
  const Operands operands(c, world, index, comm);
  note(name + " begins");
  mkResult_t result = operands.launch();
  std::string text = result != mkSuccess ? mkGetLastError(nullptr) : "";
  if (result == mkSuccess && deviceMemory != nullptr) {
    synchronize(nullptr);
    expect(mkCommGetAsyncError(comm, &result), "async");
    if (result != mkSuccess) text = mkGetLastError(comm);
  }
  note(name, result, text);
  if (result == mkSuccess) attempt(name + " check", [&] { operands.check(); });
  return result;
}

// ---- The parent's side ---------------------------------------------------------------------------------------------

Crew::Crew(const std::string& role, const World& world, const Options& options,
           const std::vector<std::string>& environment, Ranks ranks)
    : world_(world), ranks_(static_cast<size_t>(world.ranks())) {
  const bool apart = std::any_of(environment.begin(), environment.end(), [](const std::string& definition) {
    return std::isdigit(static_cast<unsigned char>(definition[0])) != 0;
  });
  if (ranksAreThreads && ranks == Ranks::any && !apart) {
    const pid_t pid = start(kAllRanks, role, options, environment);
    for (Process& p : ranks_) p.pid = pid;
    return;
  }
  for (int r = 0; r < world.ranks(); ++r) ranks_[static_cast<size_t>(r)].pid = start(r, role, options, environment);
}

Crew::~Crew() {
  killAll();
  // For whoever looks for a fault: as the ranks have written it, without the framing of a failed check.
  if (std::getenv("MK_TEST_STORY") != nullptr) std::fprintf(stderr, "%s\n", story().c_str());
}

pid_t Crew::start(int rank, const std::string& role, const Options& options,
                  const std::vector<std::string>& environment) {
  std::map<std::string, std::string> variables;
  const auto set = [&](const std::string& definition) {
    const size_t equals = definition.find('=');
    variables[definition.substr(0, equals)] = definition.substr(equals + 1);
  };
  for (char** definition = environ; *definition != nullptr; ++definition) set(*definition);
  variables["MK_TEST_ROLE"] = role;
  variables["MK_TEST_RANK"] = std::to_string(rank);
  variables["MK_TEST_NODES"] = std::to_string(world_.nodes);
  variables["MK_TEST_LOCALS"] = std::to_string(world_.locals);
  variables["MK_TEST_DIRECTORY"] = directory_.path();
  const uint64_t seconds = static_cast<uint64_t>(kWholeDeadlineSeconds) * kSlow * (longRun() ? 10 : 1);
  variables["MK_TEST_DEADLINE"] = std::to_string(clockNs() + seconds * 1'000'000'000u);
  for (const auto& [name, value] : options) variables["MK_TEST_OPTION_" + name] = value;
  const std::string own = std::to_string(rank) + ":";
  for (const std::string& definition : environment) {
    if (std::isdigit(static_cast<unsigned char>(definition[0])) == 0)
      set(definition);
    else if (definition.rfind(own, 0) == 0)
      set(definition.substr(own.size()));
  }
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  std::vector<char*> environmentPointers;
  for (std::string& line : lines) environmentPointers.push_back(line.data());
  environmentPointers.push_back(nullptr);
  const std::string output = directory_.path() + "/output." + std::to_string(rank == kAllRanks ? 0 : rank);
  char program[] = "/proc/self/exe", test[] = "rank";
  char* arguments[] = {program, test, nullptr};

  // This process has no threads, so the child may do anything before exec.
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::string("fork: ") + std::strerror(errno);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(125);
    const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0) _exit(126);
    close(fd);
    execve("/proc/self/exe", arguments, environmentPointers.data());
    _exit(127);
  }
  return pid;
}

void Crew::reap() {
  for (Process& p : ranks_) {
    if (p.ended) continue;
    int status = 0;
    if (&p != &ranks_[0] && p.pid == ranks_[0].pid) {  // its threads
      p = ranks_[0];
      continue;
    }
    if (waitpid(p.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != p.pid) continue;
    if (WIFSTOPPED(status)) p.stopped = true;
    if (WIFCONTINUED(status)) p.stopped = false;
    if (!WIFEXITED(status) && !WIFSIGNALED(status)) continue;
    p.ended = true;
    p.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

void Crew::killAll() {
  reap();
  for (Process& p : ranks_) {
    if (p.ended || p.pid <= 0) continue;
    if (&p != &ranks_[0] && p.pid == ranks_[0].pid) {
      p = ranks_[0];
      continue;
    }
    kill(p.pid, SIGKILL);
    int status = 0;
    while (waitpid(p.pid, &status, 0) < 0 && errno == EINTR) {
    }
    p.ended = true;
    p.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

bool Crew::until(int seconds, const std::function<bool()>& condition, const std::string& what) {
  const uint64_t deadline = clockNs() + static_cast<uint64_t>(seconds) * static_cast<uint64_t>(kSlow) * 1'000'000'000u;
  for (;;) {
    reap();
    if (condition()) return true;
    if (clockNs() > deadline) break;
    pauseMs(2);
  }
  std::string hung;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].ended) continue;
    const std::string report = directory_.read("report." + std::to_string(r));
    const size_t last = report.size() < 2 ? std::string::npos : report.rfind('\n', report.size() - 2);
    hung += "\n  rank " + std::to_string(r) + (ranks_[r].stopped ? " (stopped)" : "") +
            ", last note: " + report.substr(last == std::string::npos ? 0 : last + 1);
  }
  // MK_TEST_KEEP: for a debugger.
  if (std::getenv("MK_TEST_KEEP") != nullptr) {
    std::fprintf(stderr, "hung:%s\nkept for two minutes\n", hung.c_str());
    pauseMs(120000);
  }
  killAll();
  UNSCOPED_INFO(what << " has not come within " << seconds * kSlow << " s; these ranks had not ended:" << hung);
  return false;
}

bool Crew::finish(int seconds) {
  return until(
      seconds, [this] { return std::all_of(ranks_.begin(), ranks_.end(), [](const Process& p) { return p.ended; }); },
      "the end of all ranks");
}

bool Crew::untilNoted(int rank, const std::string& name, int seconds) {
  return until(
             seconds, [&] { return note(rank, name).there || ended(rank); },
             "rank " + std::to_string(rank) + ": " + name) &&
         note(rank, name).there;
}

bool Crew::untilStopped(int rank, int seconds) {
  return until(
      seconds, [&] { return ranks_[static_cast<size_t>(rank)].stopped; }, "rank " + std::to_string(rank) + " stopping");
}

bool Crew::ended(int rank) {
  reap();
  return ranks_[static_cast<size_t>(rank)].ended;
}

Note Crew::note(int rank, const std::string& name) const {
  Note found;
  uint64_t begin = 0;
  std::istringstream lines(directory_.read("report." + std::to_string(rank)));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) break;  // half a line
    std::istringstream fields(line);
    std::string ns, what, code, text;
    if (!std::getline(fields, ns, '\t') || !std::getline(fields, what, '\t') || !std::getline(fields, code, '\t'))
      continue;
    std::getline(fields, text);
    if (what == name + " begins") begin = std::stoull(ns);
    if (what != name) continue;
    found.there = true;
    found.endNs = std::stoull(ns);
    found.beginNs = begin != 0 ? begin : found.endNs;
    found.code = std::stoi(code);
    found.text = text;
  }
  return found;
}

void Crew::mark(const std::string& name) { std::ofstream(directory_.path() + "/mark." + name) << "parent"; }

std::string Crew::story() const {
  std::string text;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::string n = std::to_string(r);
    text += "---- rank " + n + ", pid " + std::to_string(ranks_[r].pid) +
            (ranks_[r].ended ? ", status " + std::to_string(ranks_[r].status) : ", running") + "\n" +
            readFile(directory_.path() + "/report." + n);
    const std::string output = readFile(directory_.path() + "/output." + n);
    text += output.size() > 12000 ? output.substr(0, 6000) + "\n...\n" + output.substr(output.size() - 6000) : output;
  }
  return text;
}

}  // namespace test
