// After joining: collectives, verdicts, leaving.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "bootstrap_world.h"
#include "support/catch_compat.h"

using test::checkSame;
using test::contains;
using test::Outcome;
using test::RawRank;
using test::World;

namespace {

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::string nameOf(World& world, int rank) {
  for (int i = 0; i < world.size(); ++i)
    if (i != rank) {
      const mk::PeerInfo& peer = world[i].peers()[static_cast<size_t>(rank)];
      return mk::rankName(rank, peer.host, peer.pid);
    }
  return "?";
}

// The verdicts of these ranks, which must be the same.
std::vector<Outcome> verdicts(World& world, const std::vector<int>& ranks) {
  std::vector<Outcome> outcomes;
  for (const int rank : ranks) {
    const auto verdict = world.recorder(rank).verdict();
    Outcome outcome;
    if (verdict.has_value()) std::tie(outcome.code, outcome.text) = *verdict;
    outcomes.push_back(outcome);
  }
  return outcomes;
}

mk::FailureReport timeoutReport(uint32_t stage, int missing, const std::string& text, uint64_t epoch = 9) {
  mk::FailureReport report;
  report.stageOrder = stage;
  report.missingRank = missing;
  report.epoch = epoch;
  report.text = text;
  return report;
}

}  // namespace

TEST_CASE("allgather", "[bootstrap]") {
  World world(3);
  for (const size_t size : {0, 1, 1000, 1 << 20}) {
    const auto outcomes = world.all([&](int rank, Outcome& outcome) {
      // Lengths may differ.
      const std::vector<uint8_t> mine(size - std::min(size, static_cast<size_t>(rank)), static_cast<uint8_t>(rank + 1));
      outcome.gathered = world[rank].allgather(mine, "sizes");
    });
    checkSame(outcomes, mkSuccess, {});
    for (const Outcome& outcome : outcomes) {
      REQUIRE(outcome.gathered.size() == 3);
      for (size_t r = 0; r < 3; ++r)
        CHECK(outcome.gathered[r] == std::vector<uint8_t>(size - std::min(size, r), static_cast<uint8_t>(r + 1)));
    }
  }
  const Outcome tooLong = test::run([&](Outcome&) { world[0].allgather(std::vector<uint8_t>((1 << 20) + 1), "long"); });
  CHECK(tooLong.code == mkErrorInternal);
  CHECK(contains(tooLong.text, "1048577"));
}

TEST_CASE("many collectives in a row", "[bootstrap]") {
  World world(4);
  const auto outcomes = world.all([&](int rank, Outcome&) {
    for (int i = 0; i < 200; ++i) {
      const uint8_t mine[] = {static_cast<uint8_t>(rank), static_cast<uint8_t>(i)};
      const auto all = world[rank].allgather(mine, "round");
      for (size_t r = 0; r < 4; ++r)
        if (all[r] != std::vector<uint8_t>{static_cast<uint8_t>(r), static_cast<uint8_t>(i)})
          mk::fail(mkErrorInternal, "wrong data in round %d", i);
      world[rank].agree(mkSuccess, "", "round");
    }
  });
  checkSame(outcomes, mkSuccess, {});
}

TEST_CASE("different calls at once are an error on all", "[bootstrap]") {
  World world(3);
  SECTION("names") {
    checkSame(world.all([&](int rank, Outcome&) { world[rank].allgather({}, rank == 1 ? "windows" : "heap"); }),
              mkErrorInvalidUsage, {"'windows'", "'heap'", nameOf(world, 1)});
  }
  SECTION("kinds") {
    checkSame(world.all([&](int rank, Outcome&) {
      if (rank == 0)
        world[rank].allgather({}, "x");
      else
        world[rank].agree(mkSuccess, "", "x");
    }),
              mkErrorInvalidUsage, {"allgather 'x'", "agree 'x'", nameOf(world, 0)});
  }
  // The communicator goes on.
  checkSame(world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "after"); }), mkSuccess, {});
}

TEST_CASE("agree gives the lowest failing rank's error to all", "[bootstrap]") {
  World world(4);
  auto outcomes = world.all([&](int rank, Outcome&) {
    if (rank == 3) world[rank].agree(mkErrorSystem, "disk on fire", "heap");
    if (rank == 1) sleepMs(50), world[rank].agree(mkErrorNotRegistered, "no memory", "heap");
    if (rank == 0 || rank == 2) world[rank].agree(mkSuccess, "", "heap");
  });
  checkSame(outcomes, mkErrorNotRegistered, {"heap failed on " + nameOf(world, 1) + ": no memory"});
  checkSame(world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "after"); }), mkSuccess, {});

  // One rank is late: the others need not wait for it, and it gets the same.
  std::atomic<int> told = 0;
  outcomes = world.all([&](int rank, Outcome&) {
    if (rank == 2)
      while (told < 3) sleepMs(10);
    try {
      world[rank].agree(rank == 3 ? mkErrorSystem : mkSuccess, "disk on fire", "window");
    } catch (...) {
      ++told;
      throw;
    }
  });
  checkSame(outcomes, mkErrorSystem, {"window failed on " + nameOf(world, 3) + ": disk on fire"});
  CHECK(outcomes[0].ms < 5000);  // 10 s is the deadline
  checkSame(world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "after"); }), mkSuccess, {});
}

TEST_CASE("who does not come to a collective is named at the deadline", "[bootstrap]") {
  World world(4, {}, {}, 1000);
  auto outcomes = world.all([&](int rank, Outcome&) { world[rank].allgather({}, "windows"); }, {0, 2});
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.ms > 700);
    CHECK(outcome.ms < 4000);
  }
  const auto late = world.all([&](int rank, Outcome&) { world[rank].allgather({}, "windows"); }, {1, 3});
  outcomes.insert(outcomes.end(), late.begin(), late.end());
  checkSame(outcomes, mkErrorTimeout, {"'windows'", "1000 ms", nameOf(world, 1) + ", " + nameOf(world, 3)});
  CHECK(!contains(outcomes[0].text, "rank 2"));
  checkSame(world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "after"); }), mkSuccess, {});
}

TEST_CASE("initialisation has one deadline, of which every step takes its part", "[bootstrap]") {
  // Rank 1 comes late, takes its time once more, and does not come a third time.
  const mkUniqueId_t id = test::localId();
  constexpr int kTimeoutMs = 3000, kLateMs = 700;
  std::atomic<int> begun{0}, waiting{2};
  std::vector<std::vector<int>> left(3);
  auto outcomes = test::inThreads(3, [&](int rank, Outcome& outcome) {
    if (rank != 1) ++begun;
    while (begun < 2) sleepMs(1);
    if (rank == 1) sleepMs(kLateMs);
    const auto bootstrap = mk::Bootstrap::join(id, test::identity(rank, 3), kTimeoutMs, {});
    const auto note = [&] { left[static_cast<size_t>(rank)].push_back(bootstrap->leftMs()); };
    note();
    if (rank == 1) sleepMs(kLateMs);
    bootstrap->allgather({}, "first");
    note();
    if (rank != 1) {
      outcome = test::run([&](Outcome&) { bootstrap->agree(mkSuccess, "", "second"); });
      note();
      bootstrap->initialised();
      note();
      --waiting;
    }
    for (int i = 0; i < 20000 && waiting > 0; ++i) sleepMs(1);  // not for ever where another has failed
    bootstrap->depart(0);
  });
  outcomes.erase(outcomes.begin() + 1);
  checkSame(outcomes, mkErrorTimeout, {"'second'", "3000 ms", "by rank 1 (", "; counted from when rank "});
  for (const Outcome& outcome : outcomes) CHECK(outcome.ms < kTimeoutMs + 600);
  for (const int rank : {0, 2}) {
    const std::vector<int>& ms = left[static_cast<size_t>(rank)];
    REQUIRE(ms.size() == 4);
    // Half of kLateMs: the machine may be busy between `begun` and the beginning of join().
    CHECK(ms[0] < kTimeoutMs - kLateMs / 2);
    CHECK(ms[1] < kTimeoutMs - kLateMs - kLateMs / 2);
    CHECK(ms[2] == 500);  // to hear who is missing
    CHECK(ms[3] == kTimeoutMs);
  }
}

TEST_CASE("of deadlines that differ the earliest holds, and is named", "[bootstrap]") {
  const mkUniqueId_t id = test::localId();
  std::atomic<int> ready{0}, waiting{2};
  auto outcomes = test::inThreads(3, [&](int rank, Outcome& outcome) {
    const auto bootstrap = mk::Bootstrap::join(id, test::identity(rank, 3), rank == 1 ? 1000 : 8000, {});
    bootstrap->initialised();
    ++ready;
    for (int i = 0; i < 20000 && ready < 3; ++i) sleepMs(1);
    if (rank == 1) sleepMs(100);
    if (rank != 2) {
      outcome = test::run([&](Outcome&) { bootstrap->agree(mkSuccess, "", "reserve"); });
      --waiting;
    }
    for (int i = 0; i < 20000 && waiting > 0; ++i) sleepMs(1);  // not for ever where another has failed
    bootstrap->depart(0);
  });
  outcomes.pop_back();
  checkSame(outcomes, mkErrorTimeout, {"'reserve'", "within 1000 ms by rank 2 ("});
  for (const Outcome& outcome : outcomes) CHECK(outcome.ms < 5000);
  CHECK(!contains(outcomes[0].text, "counted from"));
}

TEST_CASE("death is a verdict for all, and ends collectives", "[bootstrap]") {
  World world(4);
  std::thread killer([&] {
    sleepMs(100);
    world.kill(2);
  });
  const std::string dead = nameOf(world, 2);
  auto outcomes = world.all([&](int rank, Outcome&) { world[rank].allgather({}, "pending"); }, {0, 1});
  killer.join();
  checkSame(outcomes, mkErrorRemote, {dead, "died or closed its connection"});
  for (const Outcome& outcome : outcomes) CHECK(outcome.ms < 4000);
  const std::string text = outcomes[0].text;
  outcomes = verdicts(world, {0, 1, 3});
  checkSame(outcomes, mkErrorRemote, {dead});
  CHECK(outcomes[0].text == text);
  outcomes = world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "later"); }, {0, 1, 3});
  checkSame(outcomes, mkErrorRemote, {dead});
  // Leaving works all the same, and needs nothing of the dead.
  outcomes = world.all(
      [&](int rank, Outcome& outcome) {
        if (!world[rank].depart(3000).empty()) outcome.code = mkErrorInternal;
      },
      {0, 1, 3});
  checkSame(outcomes, mkSuccess, {});
  for (const Outcome& outcome : outcomes) CHECK(outcome.ms < 4000);
}

TEST_CASE("revoke reaches all others, and only the first verdict counts", "[bootstrap]") {
  World world(3);
  world[1].revoke();
  checkSame(verdicts(world, {0, 2}), mkErrorRemote, {nameOf(world, 1) + " revoked the communicator"});
  CHECK(!world.recorder(1).verdict(100).has_value());
  Outcome own = test::run([&](Outcome&) { world[1].allgather({}, "x"); });
  CHECK(own.code == mkErrorRevoked);
  own = test::run([&](Outcome&) { world[0].allgather({}, "x"); });
  CHECK(own.code == mkErrorRemote);
  // Nothing after it makes another: neither a report, nor a revocation, nor death.
  mk::FailureReport report;
  report.kind = mk::FailureReport::transport;
  world[0].report(report);
  world[2].revoke();
  const std::vector<int> left = world.depart(1);
  CHECK(left.empty());
  world.kill(2);
  sleepMs(100);
  CHECK(!contains(world.recorder(0).verdict(0)->second, "SECOND"));
}

TEST_CASE("revoking ends this rank's own collective", "[bootstrap]") {
  World world(2);
  std::thread revoker([&] {
    sleepMs(100);
    world[0].revoke();
  });
  const Outcome outcome = test::run([&](Outcome&) { world[0].allgather({}, "x"); });
  revoker.join();
  CHECK(outcome.code == mkErrorRevoked);
  CHECK(outcome.ms < 4000);
}

TEST_CASE("timeouts become one verdict that names the root", "[bootstrap]") {
  World world(4);
  const auto start = mk::Clock::now();
  world[0].report(timeoutReport(7, 1, "GemmAllReduce, epoch 9, stage copy: expected 9, seen 8"));
  sleepMs(50);
  world[1].report(timeoutReport(3, 2, "GemmAllReduce, epoch 9, stage swap: expected 4, seen 3"));
  world[1].report(timeoutReport(5, 0, "GemmAllReduce, epoch 9, stage sum"));
  sleepMs(50);
  world[3].report(timeoutReport(4, 1, "GemmAllReduce, epoch 9, stage sum"));
  checkSame(verdicts(world, {0, 1, 2, 3}), mkErrorTimeout,
            {"epoch 9, stage swap: expected 4, seen 3", "waited for " + nameOf(world, 2),
             "reported by " + nameOf(world, 1), "3 of 4 ranks"});
  const auto ms = std::chrono::duration<double, std::milli>(mk::Clock::now() - start).count();
  CHECK(ms > 390);  // 300 after the last report
  CHECK(ms < 3500);
}

TEST_CASE("reports that keep coming do not put the verdict off for ever", "[bootstrap]") {
  World world(2);
  const auto start = mk::Clock::now();
  while (!world.recorder(1).verdict(0).has_value() && mk::Clock::now() - start < std::chrono::seconds(4)) {
    world[0].report(timeoutReport(1, -1, "stage x"));
    sleepMs(20);
  }
  const auto ms = std::chrono::duration<double, std::milli>(mk::Clock::now() - start).count();
  CHECK(ms > 500);  // 1500 on a machine that is not too busy to report in time
  CHECK(ms < 3500);
  checkSame(verdicts(world, {0, 1}), mkErrorTimeout, {"stage x; waited for an unknown rank", "1 of 2 ranks"});
}

TEST_CASE("death explains a timeout", "[bootstrap]") {
  World world(3);
  world[0].report(timeoutReport(1, 2, "stage x"));
  const std::string dead = nameOf(world, 2);
  world.kill(2);
  checkSame(verdicts(world, {0, 1}), mkErrorRemote, {dead});
}

TEST_CASE("differing arguments are told with both texts", "[bootstrap]") {
  World world(3);
  mk::FailureReport report;
  report.kind = mk::FailureReport::mismatch;
  report.missingRank = 0;
  report.epoch = 77;
  report.argumentHash = 1111;
  report.missingHash = 2222;
  report.text = "GemmAllReduce, epoch 77";
  world[1].report(timeoutReport(0, 0, "a timeout that follows from it"));
  world[2].report(report);
  checkSame(verdicts(world, {0, 1, 2}), mkErrorInvalidUsage,
            {"arguments differ", nameOf(world, 0) + " has arguments 2222 of epoch 77, rank 0's",
             nameOf(world, 2) + " has arguments 1111 of epoch 77, rank 2's", "GemmAllReduce, epoch 77"});
}

TEST_CASE("a rank that does not say its arguments cannot hold the verdict up", "[bootstrap]") {
  const auto id = test::localId();
  std::optional<RawRank> raw(id);
  raw->send(mk::encode(raw->hello(1, 2)));
  test::Recorder recorder;
  auto bootstrap = mk::Bootstrap::join(id, test::identity(0, 2), 5000, recorder.events());
  mk::FailureReport report;
  report.kind = mk::FailureReport::mismatch;
  report.missingRank = 1;
  bootstrap->report(report);
  const auto start = mk::Clock::now();
  SECTION("silent") {
    const auto verdict = recorder.verdict();
    REQUIRE(verdict.has_value());
    CHECK(verdict->first == mkErrorInvalidUsage);
    CHECK(contains(verdict->second, "rank 1 (host rawhost"));
    const auto ms = std::chrono::duration<double, std::milli>(mk::Clock::now() - start).count();
    CHECK(ms > 1900);
    CHECK(ms < 4500);
  }
  SECTION("dies") {
    while (const auto frame = raw->receive())  // the welcome comes first
      if (frame->type == static_cast<uint32_t>(mk::Message::askArguments)) break;
    raw.reset();
    const auto verdict = recorder.verdict(1900);
    REQUIRE(verdict.has_value());
    CHECK(verdict->first == mkErrorInvalidUsage);
    CHECK(contains(verdict->second, "rank 1 (host rawhost"));
    CHECK(contains(verdict->second, "(unknown)"));
  }
}

TEST_CASE("a failed network or a broken protocol is told at once", "[bootstrap]") {
  World world(3);
  mk::FailureReport report;
  const bool transport = GENERATE(true, false);
  report.kind = transport ? mk::FailureReport::transport : mk::FailureReport::protocol;
  report.missingRank = 2;
  report.text = "completion with status 12";
  world[1].report(report);
  checkSame(verdicts(world, {0, 1, 2}), transport ? mkErrorTransport : mkErrorInternal,
            {nameOf(world, 1) + ": completion with status 12", nameOf(world, 2)});
}

TEST_CASE("a refusal and somebody who waits for it make a verdict together", "[bootstrap]") {
  World world(3);
  mk::FailureReport refused;
  refused.kind = mk::FailureReport::rejected;
  refused.epoch = 12;
  refused.text = "GemmAllReduce: n is 7";
  mk::FailureReport waits;
  waits.kind = mk::FailureReport::waiting;
  waits.epoch = 11;
  waits.text = "GemmAllReduce, epoch 11";
  world[2].report(refused);
  world[0].report(waits);
  CHECK(!world.recorder(1).verdict(200).has_value());  // of another operation
  waits.epoch = 12;
  waits.text = "GemmAllReduce, epoch 12";
  world[0].report(waits);
  checkSame(verdicts(world, {0, 1, 2}), mkErrorInvalidUsage,
            {nameOf(world, 2) + " refused its arguments: GemmAllReduce: n is 7",
             nameOf(world, 0) + " waits for it in GemmAllReduce, epoch 12"});
}

TEST_CASE("leaving asks the others to let go", "[bootstrap]") {
  World world(3, {}, {}, 10000, /*letGoAtOnce=*/false);
  std::vector<int> left;
  std::thread leaver([&] { left = world[1].depart(5000); });
  CHECK(world.recorder(0).sawLeaving(1));
  CHECK(world.recorder(2).sawLeaving(1));
  sleepMs(100);
  world[0].letGo(1);
  sleepMs(100);
  const auto before = mk::Clock::now();
  world[2].letGo(1);
  leaver.join();
  CHECK(left.empty());
  CHECK(mk::Clock::now() - before < std::chrono::seconds(4));
  world.kill(1);
  sleepMs(50);
  CHECK(!world.recorder(0).verdict(0).has_value());  // it is no death
  const Outcome outcome = test::run([&](Outcome&) { world[0].allgather({}, "x"); });
  CHECK(outcome.code == mkErrorRemote);
  CHECK(contains(outcome.text, "rank 1 ("));
  CHECK(contains(outcome.text, "has left the communicator"));
  // Let go in advance, and of a rank that is not there.
  world[0].letGo(2);
  world[0].letGo(99);
  CHECK(world.depart(2).empty());
}

TEST_CASE("who does not let go is told at the deadline", "[bootstrap]") {
  World world(4, {}, {}, 10000, /*letGoAtOnce=*/false);
  std::vector<int> left;
  double ms = 0;
  std::thread leaver([&] { ms = test::run([&](Outcome&) { left = world[0].depart(400); }).ms; });
  CHECK(world.recorder(1).sawLeaving(0));
  world[3].letGo(0);
  world.kill(2);  // dead: nothing to fear from it
  leaver.join();
  CHECK(left == std::vector<int>{1});
  CHECK(ms > 380);
  CHECK(ms < 4000);
  // A rank that has left for good cannot hold anything either.
  CHECK(world.depart(3, 100) == std::vector<int>{1});
  CHECK(world.depart(1, 5000).empty());
}

TEST_CASE("one thread may destroy several ranks in turn", "[bootstrap]") {
  World world(3);
  const auto start = mk::Clock::now();
  for (int rank = 0; rank < 3; ++rank) CHECK(world.depart(rank, 5000).empty());
  CHECK(mk::Clock::now() - start < std::chrono::seconds(4));
}

TEST_CASE("after leaving", "[bootstrap]") {
  World world(2);
  const auto outcomes = world.all([&](int rank, Outcome&) {
    world[rank].depart(2000);
    CHECK(world[rank].depart(2000).empty());
    world[rank].report({});
    world[rank].revoke();
    world[rank].letGo(1 - rank);
    world[rank].allgather({}, "late");
  });
  checkSame(outcomes, mkErrorInvalidUsage, {"late: this rank has left"});
  world.recorder(0).waitTicks(3);  // until the destructor
}

TEST_CASE("ticks come about every 10 ms", "[bootstrap]") {
  World world(1);
  const auto start = mk::Clock::now();
  const int before = world.recorder(0).ticks();
  sleepMs(500);
  const int ticks = world.recorder(0).ticks() - before;
  CHECK(ticks >= 10);  // a busy machine wakes threads late
  CHECK(ticks <= (mk::Clock::now() - start) / std::chrono::milliseconds(10) + 1);
}

TEST_CASE("communicators overlap", "[bootstrap]") {
  World a(3);
  World b(2);
  auto c = std::make_unique<World>(4);
  const auto outcomes = test::inThreads(9, [&](int i, Outcome&) {
    World& world = i < 3 ? a : i < 5 ? b : *c;
    const int rank = i < 3 ? i : i < 5 ? i - 3 : i - 5;
    for (int round = 0; round < 20; ++round) world[rank].agree(mkSuccess, "", "round");
  });
  checkSame(outcomes, mkSuccess, {});
  c->kill(1);
  checkSame(verdicts(*c, {0, 2, 3}), mkErrorRemote, {"rank 1"});
  c.reset();
  World d(2);
  CHECK(!a.recorder(0).verdict(50).has_value());
  for (World* world : {&a, &b, &d})
    checkSame(world->all([&](int rank, Outcome&) { (*world)[rank].agree(mkSuccess, "", "still"); }), mkSuccess, {});
}
