// A rank that comes late has no deadline; a rank that has come and then stalls has one, and everybody learns who it was.
#include <csignal>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Note;
using test::World;

namespace {

const Case kCase{.m = 200, .n = 136, .k = 96};

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

MK_ROLE(late) {
  const int timeoutMs = rank.number("timeout");
  const bool first = rank.option("when") == "first";
  mkComm_t comm = rank.join([&](mkConfig_t& c) {
    if (timeoutMs > 0) c.timeoutMs = static_cast<uint32_t>(timeoutMs);
  });
  if (!first) rank.operation("before", comm, rank.world(), rank.rank(), kCase);
  if (rank.rank() == rank.number("victim")) sleepMs(rank.number("ms"));
  rank.operation("op", comm, rank.world(), rank.rank(), kCase);
  rank.operation("next", comm, rank.world(), rank.rank(), kCase);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

namespace {

void lateCase(const World& world, int victim, int ms, int timeoutMs, const char* when) {
  Crew crew("late", world,
            {{"victim", std::to_string(victim)},
             {"ms", std::to_string(ms)},
             {"timeout", std::to_string(timeoutMs)},
             {"when", when}});
  const bool finished = crew.finish(20 + ms / 1000);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << " is late before the " << when
                   << " operation\n"
                   << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    for (const char* name : {"op check", "next check", "destroy"}) MK_CHECK_NOTE(crew, r, name, 0);
    // They have waited indeed.
    if (r != victim) CHECK(crew.note(r, "op").seconds() > ms * 1e-3 - 0.5);
  }
}

}  // namespace

TEST_CASE("a rank is later than the timeout") {
  const World world = GENERATE(World{2, 2}, World{1, 3}, World{3, 1});
  const char* when = GENERATE("first", "second");
  // The last rank of 2 x 2 is no neighbour of rank 0: not on its node, not on its rail.
  lateCase(world, world.ranks() - 1, 3000, 500 * test::kSlow, when);
}

TEST_CASE("rank 0, which hosts the hub, is late") { lateCase({2, 2}, 0, 3000, 500 * test::kSlow, "second"); }

TEST_CASE("a rank is a minute late, with the default timeout") {
  if (!test::longRun()) MK_SKIP_TEST("takes 70 s: set MKERNEL_TEST_LONG=1 (tests/run.sh --long)");
  lateCase({2, 2}, 3, 65000, 0, "second");
}

// ---- Stalls --------------------------------------------------------------------------------------------------------

MK_ROLE(stall) {
  const int victim = rank.number("victim");
  const bool mine = rank.rank() == victim, stop = rank.option("how") == "stop";
  mkComm_t comm = rank.join([&](mkConfig_t& c) {
    c.timeoutMs = static_cast<uint32_t>(rank.number("timeout"));
    c.teardownTimeoutMs = 1500;
  });
  rank.operation("before", comm, rank.world(), rank.rank(), kCase);
  rank.meet("ready");
  const auto stall = [&] {
    rank.note("stalls");
    if (stop)
      raise(SIGSTOP);
    else
      rank.await("go on");
  };
  // As soon as it has entered itself, or once everybody has.
  if (rank.option("when") == "early") {
    if (mine) test::hookOnce(victim, 2, mk::emu::Point::multiply, 5, stall);
  } else if (mine) {
    test::slowTiles(victim, 20);
    test::hookOnce(victim, 2, mk::emu::Point::multiply, test::kAnyTile, stall, [&] {
      for (int r = 0; r < rank.ranks(); ++r)
        if (r != victim && !rank.marked("entered." + std::to_string(r))) return false;
      return true;
    });
  } else {
    test::hookOnce(rank.rank(), 2, mk::emu::Point::entered, 0,
                   [&] { rank.mark("entered." + std::to_string(rank.rank())); });
  }
  rank.operation("op", comm, rank.world(), rank.rank(), {.m = 400, .n = 264, .k = 32});
  // A stopped process cannot let go of memory, nor can one whose agent is inside the hook.
  if (stop && !mine) rank.await("go on");
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
  rank.meet("end");  // the hub's process stays until all have left
}

TEST_CASE("a rank enters and stalls") {
  const World world = GENERATE(World{2, 2}, World{1, 4}, World{3, 1});
  const char* how = GENERATE("stop", "sleep");
  const bool last = GENERATE(true, false);
  const bool hubStops = !last && std::string(how) == "stop";
  if (hubStops && (world.nodes != 2 || !test::kPlain)) return;  // takes the ranks' own deadline for the hub
  const int victim = last ? world.ranks() - 1 : 0;
  const int timeoutMs = 1500 * test::kSlow;
  Crew crew("stall", world,
            {{"victim", std::to_string(victim)},
             {"how", how},
             // A process that is stopped early may not have told the others that it has come: then it is late.
             {"when", std::string(how) == "stop" ? "entered" : "early"},
             {"timeout", std::to_string(timeoutMs)}});
  bool good = std::string(how) == "stop" ? crew.untilStopped(victim, 10) : crew.untilNoted(victim, "stalls", 10);
  for (int r = 0; r < world.ranks() && good; ++r)
    if (r != victim) good = crew.untilNoted(r, "op", 15);
  if (good && std::string(how) == "sleep") {
    for (int r = 0; r < world.ranks() && good; ++r)
      if (r != victim) good = crew.untilNoted(r, "destroy", 10);
  }
  if (std::string(how) == "stop") kill(crew.pid(victim), SIGCONT);
  crew.mark("go on");
  good = good && crew.finish(15);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << ", " << how << "\n" << crew.story());
  REQUIRE(good);
  const Note stalls = crew.note(victim, "stalls");
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    const Note op = crew.note(r, "op");
    INFO("rank " << r << ": " << op.text);
    CHECK(op.code == mkErrorTimeout);
    CHECK(op.text.find("mkGemmAllReduce") != std::string::npos);
    CHECK(op.text.find("epoch 2,") != std::string::npos);
    CHECK(op.text.find("stage \"") != std::string::npos);
    CHECK(test::namesRank(op.text, victim));
    if (!hubStops) CHECK(op.text.find("waited for rank " + std::to_string(victim) + " (") != std::string::npos);
    if (r == victim) continue;
    const double after = static_cast<double>(op.endNs - stalls.endNs) * 1e-9;
    CHECK(after > timeoutMs * 1e-3 - 0.3);
    CHECK(after < timeoutMs * 1e-3 + (hubStops ? 7 : 2.5 * test::kSlow));
    // Nothing that the sleeper may still write is freed, and the error says whose fault that is.
    const Note destroy = crew.note(r, "destroy");
    INFO("destroy: " << destroy.text);
    if (std::string(how) == "sleep") {
      CHECK(destroy.code == mkErrorRemote);
      CHECK(test::namesRank(destroy.text, victim));
      CHECK(destroy.seconds() < 1.5 + 2 * test::kSlow);
    } else {
      CHECK(destroy.code == mkSuccess);
    }
  }
}

// ---- A job that is suspended ---------------------------------------------------------------------------------------

MK_ROLE(suspended) {
  mkComm_t comm = rank.join([&](mkConfig_t& c) { c.timeoutMs = static_cast<uint32_t>(rank.number("timeout")); });
  rank.operation("before", comm, rank.world(), rank.rank(), kCase);
  test::slowTiles(-1, 40);
  rank.operation("op", comm, rank.world(), rank.rank(), {.m = 400, .n = 264, .k = 32});
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

// As by Ctrl-Z and fg, or a debugger: nobody was late, and nobody's clock should say so.
TEST_CASE("all ranks are suspended for longer than the timeout") {
  const World world = GENERATE(World{2, 2}, World{1, 2});
  Crew crew("suspended", world, {{"timeout", std::to_string(1200 * test::kSlow)}});
  bool good = true;
  for (int r = 0; r < world.ranks() && good; ++r) good = crew.untilNoted(r, "op begins", 10);
  sleepMs(300);
  for (int r = 0; r < world.ranks(); ++r) kill(crew.pid(r), SIGSTOP);
  sleepMs(2000 * test::kSlow);
  for (int r = 0; r < world.ranks(); ++r) kill(crew.pid(r), SIGCONT);
  good = good && crew.finish(20);
  INFO(crew.story());
  REQUIRE(good);
  for (int r = 0; r < world.ranks(); ++r) {
    MK_CHECK_NOTE(crew, r, "op check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
    CHECK(crew.note(r, "op").seconds() > 2.0 * test::kSlow);
  }
}
