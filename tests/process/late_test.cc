// A rank that comes late has no deadline; a rank that has come and then stalls has one, and everybody learns who it was.
#include <csignal>
#include <memory>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Note;
using test::World;

namespace {

const Case kCase{.m = 200, .n = 136, .k = 96};

constexpr int kTeardownMs = 800 * test::kSlow;

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

struct Late {
  World world;
  int victim, ms, timeoutMs;
  const char* when;
};

// At the same time: they mostly wait.
void check(const std::vector<Late>& cases) {
  std::vector<std::unique_ptr<Crew>> crews;
  for (const Late& c : cases)
    crews.push_back(std::make_unique<Crew>("late", c.world,
                                           test::Options{{"victim", std::to_string(c.victim)},
                                                         {"ms", std::to_string(c.ms)},
                                                         {"timeout", std::to_string(c.timeoutMs)},
                                                         {"when", c.when}}));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Late& c = cases[i];
    Crew& crew = *crews[i];
    const bool finished = crew.finish(20 + c.ms / 1000);
    INFO(c.world.nodes << " nodes x " << c.world.locals << ", rank " << c.victim << " is late before the " << c.when
                       << " operation\n"
                       << crew.story());
    REQUIRE(finished);
    for (int r = 0; r < c.world.ranks(); ++r) {
      CHECK(crew.status(r) == 0);
      for (const char* name : {"op check", "next check", "destroy"}) MK_CHECK_NOTE(crew, r, name, 0);
      // They have waited indeed.
      if (r != c.victim) CHECK(crew.note(r, "op").seconds() > c.ms * 1e-3 - 0.5);
    }
  }
}

constexpr int kShortMs = 500 * test::kSlow, kLateMs = 3000 * (test::kPlain ? 1 : 2);

}  // namespace

// The last rank of 2 x 2 is no neighbour of rank 0: not on its node, not on its rail.  Rank 0 hosts the hub.
TEST_CASE("a rank is later than the timeout for its first operation") {
  check({{{2, 2}, 3, kLateMs, kShortMs, "first"},
         {{1, 3}, 2, kLateMs, kShortMs, "first"},
         {{3, 1}, 2, kLateMs, kShortMs, "first"}});
}

TEST_CASE("a rank is later than the timeout for a later operation") {
  check({{{2, 2}, 3, kLateMs, kShortMs, "second"},
         {{2, 2}, 0, kLateMs, kShortMs, "second"},
         {{3, 1}, 2, kLateMs, kShortMs, "second"}});
}

TEST_CASE("a rank is a minute late with the default timeout") {
  if (!test::longRun()) MK_SKIP_TEST("takes 70 s: set MKERNEL_TEST_LONG=1 (tests/run.sh --long)");
  check({{{2, 2}, 3, 65000, 0, "second"}});
}

// ---- Stalls --------------------------------------------------------------------------------------------------------

MK_ROLE(stall) {
  const int victim = rank.number("victim");
  const bool mine = rank.rank() == victim, stop = rank.option("how") == "stop";
  mkComm_t comm = rank.join([&](mkConfig_t& c) {
    c.timeoutMs = static_cast<uint32_t>(rank.number("timeout"));
    c.teardownTimeoutMs = kTeardownMs;
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

namespace {

void checkStall(Crew& crew, const World& world, int victim, const std::string& how, int timeoutMs) {
  const bool stop = how == "stop", hubStops = stop && victim == 0;
  bool good = stop ? crew.untilStopped(victim, 15) : crew.untilNoted(victim, "stalls", 15);
  for (int r = 0; r < world.ranks() && good; ++r)
    if (r != victim) good = crew.untilNoted(r, stop ? "op" : "destroy", 15);
  if (stop) kill(crew.pid(victim), SIGCONT);
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
    CHECK(destroy.code == (stop ? mkSuccess : mkErrorRemote));
    if (!stop) CHECK(test::namesRank(destroy.text, victim));
    CHECK(destroy.seconds() < kTeardownMs * 1e-3 + 1.5 * test::kSlow);
  }
}

}  // namespace

TEST_CASE("a rank enters and stalls") {
  const World world = GENERATE(World{2, 2}, World{1, 4}, World{3, 1});
  const bool last = GENERATE(true, false);
  if (!last && world.nodes != 2) return;
  const int victim = last ? world.ranks() - 1 : 0;
  const int timeoutMs = 1500 * test::kSlow;
  std::vector<std::pair<std::string, std::unique_ptr<Crew>>> crews;
  for (const std::string how : {"stop", "sleep"}) {
    if (how == "stop" && !last && !test::kPlain) continue;  // takes the ranks' own deadline for the hub
    // A process that is stopped early may not have told the others that it has come: then it is late.
    crews.emplace_back(how, std::make_unique<Crew>("stall", world,
                                                   test::Options{{"victim", std::to_string(victim)},
                                                                 {"how", how},
                                                                 {"when", how == "stop" ? "entered" : "early"},
                                                                 {"timeout", std::to_string(timeoutMs)}}));
  }
  for (const auto& [how, crew] : crews) checkStall(*crew, world, victim, how, timeoutMs);
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
  const World world{2, 2};
  Crew crew("suspended", world, {{"timeout", std::to_string(700 * test::kSlow)}});
  bool good = true;
  for (int r = 0; r < world.ranks() && good; ++r) good = crew.untilNoted(r, "op begins", 10);
  sleepMs(300);
  for (int r = 0; r < world.ranks(); ++r) kill(crew.pid(r), SIGSTOP);
  sleepMs(1400 * test::kSlow);
  for (int r = 0; r < world.ranks(); ++r) kill(crew.pid(r), SIGCONT);
  good = good && crew.finish(20);
  INFO(crew.story());
  REQUIRE(good);
  for (int r = 0; r < world.ranks(); ++r) {
    MK_CHECK_NOTE(crew, r, "op check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
    CHECK(crew.note(r, "op").seconds() > 1.4 * test::kSlow);
  }
}
