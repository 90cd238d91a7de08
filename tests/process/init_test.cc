// Initialisation that fails on one rank: one clear error on every rank, within the deadline.
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Note;
using test::Rank;
using test::World;

namespace {

constexpr int kInitMs = 3000 * test::kSlow;
const Case kCase{.m = 100, .n = 72, .k = 32};

void limit(int resource, rlim_t value) {
  rlimit r = {};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &r);
  r.rlim_cur = value;
  setrlimit(static_cast<__rlimit_resource_t>(resource), &r);
}

rlim_t addressSpaceUsed() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

// ---- Something is wrong with rank 1 --------------------------------------------------------------------------------

MK_ROLE(init) {
  const std::string what = rank.option("what");
  const bool odd = rank.rank() == 1;
  int nranks = rank.ranks(), number = rank.rank();
  std::string host = "node-" + std::to_string(rank.rank() / rank.world().locals);
  mkConfig_t config;
  MK_INIT(&config, MK_ID_CONFIG);
  config.initTimeoutMs = what == "heap too large" ? kInitMs / 2 : kInitMs;
  if (what == "nosuch everywhere") config.transport = "nosuch";
  if (odd && what == "nosuch") config.transport = "nosuch";
  if (odd && what == "heap") config.heapBytes = 8 << 20;
  if (odd && what == "heap too large") config.heapBytes = uint64_t{1} << 43;
  if (odd && what == "unequal nodes") host = "node-0";
  if (odd && what == "same rank") number = 0;
  if (odd && what == "nranks") nranks = rank.ranks() + 1;
  config.hostId = host.c_str();
  const mkUniqueId_t id = rank.idOf("world", rank.rank() == 0);
  if (odd && what == "address space") limit(RLIMIT_AS, addressSpaceUsed() + (rlim_t{1} << 30));
  if (odd && what == "file size") limit(RLIMIT_FSIZE, 1 << 20);
  mkComm_t comm = nullptr;
  rank.call("init", [&] { return mkCommInitRankConfig(&comm, nranks, id, number, &config); });
  rank.note("comm", comm == nullptr ? 0 : 1);
  limit(RLIMIT_FSIZE, RLIM_INFINITY);
  // The failure is of that communicator alone.
  limit(RLIMIT_AS, RLIM_INFINITY);
  mkComm_t next = nullptr;
  if (rank.join("next", rank.world(), rank.rank(), &next) != mkSuccess) return;
  rank.operation("next op", next, rank.world(), rank.rank(), kCase);
  rank.call("destroy", [&] { return mkCommDestroy(next); });
}

namespace {

struct Fault {
  std::string what;
  World world;
  int code;
  std::vector<std::string> words;  // in every rank's text
  std::vector<std::string> environment = {};
  int ownCode = -1;  // of rank 1, where it fails before it joins; the others then miss it
};

void check(const Fault& fault) {
  Crew crew("init", fault.world, {{"what", fault.what}}, fault.environment);
  const bool finished = crew.finish(25);
  INFO(fault.what << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < fault.world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    const Note init = crew.note(r, "init");
    INFO("rank " << r << ": " << init.text);
    CHECK(init.there);
    MK_CHECK_NOTE(crew, r, "comm", 0);
    CHECK(init.seconds() < kInitMs * 1e-3 + 1.0 * test::kSlow);
    if (fault.ownCode >= 0 && r == 1) {
      CHECK(init.code == fault.ownCode);
    } else {
      CHECK(init.code == fault.code);
      for (const std::string& word : fault.words) CHECK(init.text.find(word) != std::string::npos);
    }
    // Whoever is told by others is told at once, not at the deadline.
    if (fault.ownCode < 0) CHECK(init.seconds() < 2.0 * test::kSlow);
    if (!fault.environment.empty()) continue;  // that stays as it is
    MK_CHECK_NOTE(crew, r, "next op check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}

}  // namespace

TEST_CASE("settings that differ") {
  check({"heap", {2, 1}, mkErrorInvalidUsage, {"heapBytes", "8388608", "4194304", "rank 1 ("}});
  check({"none",
         {1, 2},
         mkErrorInvalidUsage,
         {"MKERNEL_HEAP_MAX_BYTES", "rank 1 ("},
         {"MKERNEL_HEAP_MAX_BYTES=1G", "1:MKERNEL_HEAP_MAX_BYTES=2G"}});
  check({"none", {2, 1}, mkErrorInvalidUsage, {"MKERNEL_EPOCH_START", "rank 1 ("}, {"1:MKERNEL_EPOCH_START=7"}});
}

TEST_CASE("ranks that do not fit together") {
  check({"unequal nodes", {3, 1}, mkErrorInvalidUsage, {"same number of ranks", "node-0", "node-2"}});
  check({"same rank", {2, 1}, mkErrorInvalidUsage, {"rank 0 was given twice"}});
  check({"nranks", {1, 2}, mkErrorInvalidUsage, {"nranks differs", "2 on rank 0", "3 on rank 1"}});
}

TEST_CASE("transports that are not there or differ") {
  check({"nosuch everywhere", {2, 1}, mkErrorTransport, {"nosuch", "not found in"}});
  check({"nosuch", {2, 2}, mkErrorTransport, {"nosuch", "rank 1 ("}});
  check({"none",
         {2, 1},
         mkErrorInvalidUsage,
         {"transports differ", "contract 1", "contract 2"},
         {"1:MKERNEL_LOOPBACK_CONTRACT=completion"}});
}

TEST_CASE("a configuration that one rank cannot have") {
  check({"heap too large", {2, 1}, mkErrorTimeout, {"had not joined", "rank 1"}, {}, mkErrorInvalidArgument});
}

TEST_CASE("one rank has no memory") {
  if (!test::kPlain) MK_SKIP_TEST("limits of the address space do not go with sanitizers");
  check({"address space", {1, 2}, mkErrorSystem, {"heap", "rank 1 (", "MKERNEL_HEAP_MAX_BYTES"}});
  check({"address space", {2, 2}, mkErrorSystem, {"heap", "rank 1 (", "MKERNEL_HEAP_MAX_BYTES"}});
  // The kernel would send a signal that ends the process.
  check({"file size", {2, 1}, mkErrorSystem, {"heap", "rank 1 (", "File too large"}});
}

// ---- No descriptors ------------------------------------------------------------------------------------------------

MK_ROLE(descriptors) {
  const int most = rank.number("most");
  for (int extra = 0; extra <= most; ++extra) {
    const std::string name = "extra " + std::to_string(extra);
    const mkUniqueId_t id = rank.idOf(name, rank.rank() == 0);
    const std::string host = "node-" + std::to_string(rank.rank() / rank.world().locals);
    mkConfig_t config;
    MK_INIT(&config, MK_ID_CONFIG);
    config.hostId = host.c_str();
    config.initTimeoutMs = 1500 * test::kSlow;
    mkComm_t comm = nullptr;
    if (rank.rank() == 1) limit(RLIMIT_NOFILE, static_cast<rlim_t>(test::countEntries("/proc/self/fd") - 1 + extra));
    const mkResult_t result =
        rank.call(name, [&] { return mkCommInitRankConfig(&comm, rank.ranks(), id, rank.rank(), &config); });
    limit(RLIMIT_NOFILE, 1024);
    rank.meet(name);
    if (result == mkSuccess) rank.call("destroy " + name, [&] { return mkCommDestroy(comm); });
    rank.meet("over " + name);
  }
}

TEST_CASE("one rank runs out of descriptors at any step") {
  // UBSan opens a pipe to see whether an object's memory can be read, and calls it invalid where it gets none.
  if (!test::kPlain) MK_SKIP_TEST("sanitizers need descriptors of their own");
  const World world = GENERATE(World{2, 2}, World{1, 2});
  constexpr int kMost = 16;
  Crew crew("descriptors", world, {{"most", std::to_string(kMost)}});
  const bool finished = crew.finish(60);
  INFO(world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(finished);
  int failures = 0;
  for (int extra = 0; extra <= kMost; ++extra) {
    const std::string name = "extra " + std::to_string(extra);
    const bool good = crew.note(1, name).code == mkSuccess;
    failures += good ? 0 : 1;
    for (int r = 0; r < world.ranks(); ++r) {
      CHECK(crew.status(r) == 0);
      const Note note = crew.note(r, name);
      INFO("rank " << r << ", " << name << ": " << note.text);
      CHECK(note.there);
      CHECK((note.code == mkSuccess) == good);
      // Itself it may say what was missing and no more.
      if (!good) CHECK((test::namesRank(note.text, 1) || (r == 1 && note.code == mkErrorSystem)));
      CHECK(note.seconds() < 3.0 * test::kSlow);
      if (good) MK_CHECK_NOTE(crew, r, "destroy " + name, mkSuccess);
    }
  }
  CHECK(failures > 3);          // or the limit limits nothing
  CHECK(failures < kMost + 1);  // or nothing works at all
}

// ---- A rank dies while all are joining -----------------------------------------------------------------------------

MK_ROLE(joining) {
  const std::string host = "node-" + std::to_string(rank.rank() / rank.world().locals);
  mkConfig_t config;
  MK_INIT(&config, MK_ID_CONFIG);
  config.hostId = host.c_str();
  config.initTimeoutMs = 2000 * test::kSlow;
  const mkUniqueId_t id = rank.idOf("world", rank.rank() == 0);
  rank.meet("start");
  rank.note("started");
  mkComm_t comm = nullptr;
  mkResult_t result =
      rank.call("join", [&] { return mkCommInitRankConfig(&comm, rank.ranks(), id, rank.rank(), &config); });
  // It may have died just after, or be killed late on a busy machine.
  for (int i = 0; i < 2000 && result == mkSuccess; ++i) {
    result = rank.operation("op", comm, rank.world(), rank.rank(), kCase);
    sleepMs(5);
  }
  rank.note("result", result, mkGetLastError(nullptr));
  if (comm != nullptr) rank.call("destroy", [&] { return mkCommDestroy(comm); });
  // The process that made the id stays until all have come.
  rank.mark("done." + std::to_string(rank.rank()));
  for (int r = 0; r < rank.ranks(); ++r)
    if (r != rank.number("victim")) rank.await("done." + std::to_string(r));
}

TEST_CASE("a rank is killed at any moment of initialisation") {
  const World world = GENERATE(World{2, 2}, World{1, 3}, World{3, 1});
  const int victim = GENERATE(0, 1);
  for (int ms = 0; ms <= 40; ms += test::kPlain ? 4 : 13) {
    Crew crew("joining", world, {{"victim", std::to_string(victim)}});
    bool good = crew.untilNoted(victim, "started", 20);
    sleepMs(ms * test::kSlow);
    kill(crew.pid(victim), SIGKILL);
    good = good && crew.finish(30);
    INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << " after " << ms << " ms\n"
                     << crew.story());
    REQUIRE(good);
    for (int r = 0; r < world.ranks(); ++r) {
      if (r == victim) continue;
      CHECK(crew.status(r) == 0);
      const Note result = crew.note(r, "result");
      INFO("rank " << r << ": " << result.text);
      CHECK(result.code != mkSuccess);
      // Without a hub there is nobody who knows of whom it was.
      if (victim != 0 || result.text.find("nobody listens at") == std::string::npos)
        CHECK(test::namesRank(result.text, victim));
    }
  }
}
