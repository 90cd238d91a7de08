// The control role: entering, agreement, consumed, closing, deadlines.  Ranks are threads.
#include <random>
#include <thread>

#include "protocol/control.h"
#include "protocol/rank_world.h"
#include "support/catch_compat.h"

using namespace mk;
using protocol::FailRecord;
using protocol::OwnLayout;
using protocol::Stage;

namespace {

// One launch of an operation in which every rank reads its peers' user memory: true if all it saw is of this launch.
bool readPeers(const emu::RankMemory& memory, std::vector<std::vector<std::atomic<uint64_t>>>& user, bool exchange,
               std::mt19937_64& random, FailRecord* record) {
  emu::Launch launch;
  launch.memory = &memory;
  launch.epoch = memory.ownWord(OwnLayout::epoch).load() + 1;
  launch.lastProgress.store(emu::nowNs());
  emu::BasePlatform p(launch);
  // My input of this launch; peers may read it once I have entered.
  for (auto& word : user[memory.place.local]) word.store(launch.epoch, std::memory_order_relaxed);
  bool good = true;
  bool ok = protocol::enter(p, 42);
  for (uint32_t l = 0; ok && l < memory.place.locals; ++l) {
    for (auto& word : user[l]) {
      good &= word.load(std::memory_order_relaxed) == launch.epoch;
      if (random() % 8 == 0) std::this_thread::yield();
    }
  }
  if (ok && exchange) ok = protocol::exchangeConsumed(p);
  if (ok) ok = protocol::close(p);
  if (ok) p.publish(protocol::own(OwnLayout::epoch), launch.epoch, protocol::Scope::device);
  *record = launch.record;
  return good && ok;
}

uint64_t badLaunches(bool exchange) {
  constexpr uint32_t kLocals = 4;
  test::RankWorld world(kLocals);
  std::vector<std::vector<std::atomic<uint64_t>>> user;
  for (uint32_t l = 0; l < kLocals; ++l) user.emplace_back(64);
  std::atomic<uint64_t> bad{0};
  std::vector<std::thread> threads;
  for (uint32_t l = 0; l < kLocals; ++l) {
    threads.emplace_back([&, l] {
      std::mt19937_64 random(l);
      FailRecord record;
      for (int i = 0; i < 300; ++i) {
        if (!readPeers(world.memory(l), user, exchange, random, &record)) bad.fetch_add(1);
        if (record.kind != FailRecord::none) return;
      }
    });
  }
  for (auto& t : threads) t.join();
  return bad.load();
}

}  // namespace

TEST_CASE("peers that read my user memory have finished before my launch ends") {
  CHECK(badLaunches(true) == 0);
  // The control: without the exchange a fast rank overwrites what slow ones still read.
  CHECK(badLaunches(false) > 0);
}

TEST_CASE("plans that differ are noticed by both before anything is sent") {
  test::RankWorld world(2);
  FailRecord records[2];
  std::vector<std::thread> threads;
  for (uint32_t l = 0; l < 2; ++l) {
    threads.emplace_back([&, l] {
      emu::Launch launch;
      launch.memory = &world.memory(l);
      launch.epoch = 1;
      emu::BasePlatform p(launch);
      CHECK_FALSE(protocol::enter(p, 100 + l));
      records[l] = launch.record;
    });
  }
  for (auto& t : threads) t.join();
  for (uint32_t l = 0; l < 2; ++l) {
    CHECK(records[l].kind == FailRecord::mismatch);
    CHECK(records[l].why.local == static_cast<int32_t>(1 - l));
    CHECK(sched::enteredHash(records[l].seen) == 101 - l);
    CHECK(world.memory(l).ownWord(OwnLayout::peerOpen(1 - l)).load() == 0);
  }
}

TEST_CASE("no deadline before all have entered; one that has entered and stalls is named") {
  test::RankWorld world(2, 8, 200);
  const auto& memory = world.memory(0);
  emu::Launch launch;
  launch.memory = &memory;
  launch.epoch = 1;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // longer than the deadline
    emu::Launch other;
    other.memory = &world.memory(1);
    other.epoch = 1;
    emu::BasePlatform p(other);
    CHECK(protocol::enter(p, 5));
  });
  emu::BasePlatform p(launch);
  CHECK(protocol::enter(p, 5));
  late.join();
  const uint64_t start = emu::nowNs();
  const protocol::Why why{Stage::partial, 1, -1, 33};
  CHECK_FALSE(p.wait(protocol::heap(0, memory.heapLayout.flags(1)), 1, protocol::Match::equal, why));
  CHECK(emu::nowNs() - start > 200'000'000u);
  CHECK(emu::nowNs() - start < 2'000'000'000u);
  CHECK(launch.record.kind == FailRecord::timeout);
  CHECK(launch.record.why.stage == Stage::partial);
  CHECK(launch.record.why.local == 1);
  CHECK(launch.record.why.item == 33);
  CHECK(launch.record.epoch == 1);
}

TEST_CASE("a flag ahead of its epoch is a protocol error, a stale one is not there") {
  test::RankWorld world(1, 8, 200);
  const auto& memory = world.memory(0);
  emu::Launch launch;
  launch.memory = &memory;
  launch.epoch = (uint64_t{1} << 32) + 5;
  emu::BasePlatform p(launch);
  const protocol::Ref flag = protocol::heap(0, memory.heapLayout.flags(1));
  memory.flag(flag).store(5);  // equal in the low half only
  CHECK_FALSE(p.ready(flag, launch.epoch, protocol::Match::equal));
  memory.flag(flag).store(launch.epoch + 2);
  CHECK_FALSE(p.wait(flag, launch.epoch, protocol::Match::equal, protocol::Why{Stage::partial, 0, -1, 0}));
  CHECK(launch.record.kind == FailRecord::protocolError);
}

TEST_CASE("a revoked rank leaves every wait") {
  test::RankWorld world(2);
  emu::Launch launch;
  launch.memory = &world.memory(0);
  launch.epoch = 1;
  std::thread revoker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.memory(0).ownWord(OwnLayout::revoked).store(1, std::memory_order_release);
  });
  emu::BasePlatform p(launch);
  CHECK_FALSE(protocol::enter(p, 5));  // the other rank never comes
  revoker.join();
  CHECK(launch.record.kind == FailRecord::revoked);
}
