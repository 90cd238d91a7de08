// A rank is killed in the middle of an operation, or between two: every survivor learns within seconds who died, gets rid of
// the communicator, and goes on with a new one.
#include <csignal>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Rank;
using test::World;

namespace {

const Case kCase{.m = 200, .n = 136, .k = 96};
constexpr uint64_t kTiles = 4 * 3;

mk::emu::Point pointOf(const std::string& name) {
  if (name == "launch") return mk::emu::Point::launch;
  if (name == "entered") return mk::emu::Point::entered;
  if (name == "post") return mk::emu::Point::post;
  return mk::emu::Point::multiply;
}

// The last rank to die does so in another operation.
Case caseOf(const Rank& rank, int victim) {
  Case c = kCase;
  if (victim == rank.ranks() - 1) c.op = MK_OP_GEMM_REDUCE_SCATTER;
  return c;
}

// The survivors, each on a node of its own if there were several.
void goOnWithout(Rank& rank, int victim) {
  const int survivors = rank.ranks() - 1;
  const World after = rank.world().nodes > 1 ? World{survivors, 1} : World{1, survivors};
  const int index = rank.rank() - (rank.rank() > victim ? 1 : 0);
  mkComm_t next = nullptr;
  if (rank.join("after", after, index, &next) != mkSuccess) return;
  rank.operation("again", next, after, index, kCase);
  rank.call("destroy", [&] { return mkCommDestroy(next); });
}

void checkError(const Crew& crew, int rank, const std::string& name, int victim) {
  const test::Note note = crew.note(rank, name);
  INFO("rank " << rank << ", " << name << ": " << note.text);
  CHECK(note.code == mkErrorRemote);
  CHECK(test::namesRank(note.text, victim));
  CHECK(static_cast<double>(note.endNs - crew.note(victim, "death").endNs) * 1e-9 < 5.0 * test::kSlow);
}

}  // namespace

MK_ROLE(death) {
  const int victim = rank.number("victim");
  const std::string point = rank.option("point");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 3000 * test::kSlow; });
  rank.operation("first", comm, rank.world(), rank.rank(), kCase);
  rank.meet("first");  // or its death could still break somebody's first operation
  if (point == "idle") {
    if (rank.rank() == victim) test::dieNow(rank);
  } else {
    test::hookOnce(victim, 2, pointOf(point), kTiles / 2, [&] { test::dieNow(rank); });
  }
  if (point == "idle" && rank.rank() % 2 == 0) {
    // Who only asks learns of it too.
    mkResult_t async = mkSuccess;
    for (int i = 0; i < 5000 * test::kSlow && async == mkSuccess; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      test::expect(mkCommGetAsyncError(comm, &async), "async");
    }
    rank.note("async", async, mkGetLastError(comm));
  }
  rank.operation("second", comm, rank.world(), rank.rank(), caseOf(rank, victim));
  rank.operation("third", comm, rank.world(), rank.rank(), kCase);
  rank.call("ending", [&] { return rank.rank() % 2 == 0 ? mkCommDestroy(comm) : mkCommAbort(comm); });
  goOnWithout(rank, victim);
}

TEST_CASE("a rank dies") {
  const World world = GENERATE(World{1, 4}, World{2, 2}, World{3, 2}, World{8, 1});
  const std::string point = GENERATE("launch", "entered", "multiply", "post", "idle");
  const bool first = GENERATE(true, false);
  if (point == "post" && world.nodes == 1) return;  // there are none
  // The sanitizers' builds are there for the code, which a few places show as well as all.
  if (!test::kPlain && (world.nodes == 8 || (world.nodes == 3 && point != "multiply"))) return;
  const int victim = first ? 0 : world.ranks() - 1;
  Crew crew("death", world, {{"victim", std::to_string(victim)}, {"point", point}});
  const bool finished = crew.finish(20);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << " dies at " << point << "\n"
                   << crew.story());
  REQUIRE(finished);
  CHECK(crew.status(victim) == 128 + 9);
  REQUIRE(crew.note(victim, "death").there);
  for (int r = 0; r < world.ranks(); ++r) {
    if (r == victim) continue;
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "first check", 0);
    // Where it had done its part by then, the others may have finished.
    if (point == "entered" && crew.note(r, "second").code == mkSuccess)
      MK_CHECK_NOTE(crew, r, "second check", 0);
    else
      checkError(crew, r, "second", victim);
    checkError(crew, r, "third", victim);
    if (point == "idle" && r % 2 == 0) checkError(crew, r, "async", victim);
    const test::Note ending = crew.note(r, "ending");
    CHECK(ending.there);
    CHECK(ending.seconds() < 4.0 * test::kSlow);
    // A rank whose hub has died cannot hear who has let go; else all have.
    if (victim != 0) CHECK(ending.code == mkSuccess);
    MK_CHECK_NOTE(crew, r, "again check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}

// ---- In a collective call -------------------------------------------------------------------------------------------

MK_ROLE(collective) {
  const int victim = rank.number("victim");
  const std::string call = rank.option("call");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 3000 * test::kSlow; });
  rank.operation("first", comm, rank.world(), rank.rank(), kCase);
  void* memory = nullptr;
  test::expect(mkMemAlloc(&memory, 4096), "memory");
  mkWindow_t window = nullptr;
  rank.meet("ready");
  if (rank.rank() == victim) test::dieNow(rank);
  rank.call("call", [&] {
    if (call == "reserve") return mkCommReserve(comm, 64 << 20);
    if (call == "window") return mkCommWindowRegister(comm, memory, 4096, &window);
    return call == "finalize" ? mkCommFinalize(comm) : mkCommDestroy(comm);
  });
  if (call != "destroy") rank.call("ending", [&] { return mkCommDestroy(comm); });
  rank.call("free", [&] { return mkMemFree(memory); });
  goOnWithout(rank, victim);
}

TEST_CASE("a rank dies while the others are in a collective call") {
  const World world = GENERATE(World{2, 2}, World{1, 3});
  const std::string call = GENERATE("reserve", "window", "finalize", "destroy");
  const bool first = GENERATE(true, false);
  const int victim = first ? 0 : world.ranks() - 1;
  Crew crew("collective", world, {{"victim", std::to_string(victim)}, {"call", call}});
  const bool finished = crew.finish(20);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << " dies, the others call " << call << "\n"
                   << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    if (r == victim) continue;
    CHECK(crew.status(r) == 0);
    if (call != "destroy") checkError(crew, r, "call", victim);
    const test::Note ending = crew.note(r, call == "destroy" ? "call" : "ending");
    CHECK(ending.there);
    CHECK(ending.seconds() < 4.0 * test::kSlow);
    MK_CHECK_NOTE(crew, r, "free", mkSuccess);
    MK_CHECK_NOTE(crew, r, "again check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}

// ---- At any moment --------------------------------------------------------------------------------------------------

MK_ROLE(anytime) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 3000 * test::kSlow; });
  rank.meet("start");
  rank.note("started");
  // Operations of many shapes, windows that come and go, a heap that grows; until the rank that is killed is missing.
  const bool wrong = rank.attempt("work", [&] {
    for (int i = 0; i < 100000; ++i) {
      Case c{.m = 40 + 50 * (i % 5), .n = 64 + 72 * (i % 3), .k = 32, .window = i % 4 == 1};
      c.seed = static_cast<uint64_t>(i) + 1;
      test::runCase(c, rank.world(), rank.rank(), comm);
      if (i % 6 == 5) test::expect(mkCommReserve(comm, (4u << 20) + (static_cast<size_t>(i) << 16)), "reserve", comm);
    }
  });
  if (wrong) return;
  mkResult_t async = mkSuccess;
  test::expect(mkCommGetAsyncError(comm, &async), "async");
  rank.note("async", async, mkGetLastError(comm));
  rank.call("ending", [&] { return mkCommDestroy(comm); });
  goOnWithout(rank, rank.number("victim"));
}

TEST_CASE("a rank is killed at any moment of its work") {
  const World world = GENERATE(World{2, 2}, World{1, 3}, World{3, 1});
  for (int i = 0; i < (test::kPlain ? 8 : 4); ++i) {
    const int victim = i % 2 == 0 ? 0 : world.ranks() - 1;
    Crew crew("anytime", world, {{"victim", std::to_string(victim)}});
    bool good = crew.untilNoted(victim, "started", 20);
    std::this_thread::sleep_for(std::chrono::microseconds((20000 + 7300 * i) * test::kSlow));
    kill(crew.pid(victim), SIGKILL);
    good = good && crew.finish(20);
    INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << ", round " << i << "\n" << crew.story());
    REQUIRE(good);
    for (int r = 0; r < world.ranks(); ++r) {
      if (r == victim) continue;
      CHECK(crew.status(r) == 0);
      MK_CHECK_NOTE(crew, r, "async", mkErrorRemote);
      CHECK(test::namesRank(crew.note(r, "async").text, victim));
      CHECK(crew.note(r, "ending").there);
      CHECK(crew.note(r, "ending").seconds() < 4.0 * test::kSlow);
      MK_CHECK_NOTE(crew, r, "again check", 0);
      MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
    }
  }
}
