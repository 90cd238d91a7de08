// The command ring: every command posted is read once and whole, whoever posts, however small the ring.
#include <set>
#include <thread>

#include "protocol/command_ring.h"
#include "protocol/rank_world.h"
#include "support/catch_compat.h"

using namespace mk;

TEST_CASE("many producers, a slow consumer, small rings: nothing is lost, torn or posted twice") {
  const uint64_t slots = GENERATE(2u, 8u, 64u);
  constexpr uint64_t kProducers = 4, kEach = 3000;
  test::RankWorld world(1, slots);
  const emu::RankMemory& memory = world.memory(0);
  emu::Launch launch;
  launch.memory = &memory;
  launch.epoch = 1;
  memory.ownWord(protocol::OwnLayout::allEntered).store(1);

  std::vector<std::thread> producers;
  std::vector<uint64_t> payload(kProducers * kEach);  // plain memory, published by the command
  for (uint64_t p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      emu::BasePlatform platform(launch);
      for (uint64_t i = 0; i < kEach; ++i) {
        const uint64_t id = p * kEach + i;
        payload[id] = id * 3;
        // Every word is derived from the number, so a torn command shows.
        if (!protocol::post(platform,
                            protocol::Write{static_cast<uint32_t>(id % 7), id, id * 5, id + 9, id % 1000, id * 11}))
          return;
      }
    });
  }
  std::vector<uint64_t> next(kProducers, 0);
  uint64_t wrong = 0;
  for (uint64_t taken = 0; taken < kProducers * kEach; ++taken) {
    mkCommand_t& slot = memory.ring[taken % slots];
    const std::atomic_ref<uint64_t> header(slot.header);
    while (mkHeaderLap(header.load(std::memory_order_acquire)) != mkCommandLap(taken, slots)) std::this_thread::yield();
    const uint64_t id = mkPlaceOffset(slot.source);
    const bool whole = id < payload.size() && mkPlaceOffset(slot.destination) == id * 5 && slot.bytes == id + 9 &&
                       slot.slot == id % 1000 && slot.epoch == id * 11 && mkHeaderPeer(slot.header) == id % 7 &&
                       payload[id] == id * 3;
    // Each producer's commands come in its order, each once.
    if (!whole || next[id / kEach]++ != id % kEach) ++wrong;
    memory.ownWord(protocol::OwnLayout::credits).store(taken + 1, std::memory_order_release);
  }
  for (auto& t : producers) t.join();
  CHECK(wrong == 0);
  CHECK(!launch.failed.load());
  CHECK(memory.ownWord(protocol::OwnLayout::ringTail).load() == kProducers * kEach);
  CHECK(memory.ownWord(protocol::OwnLayout::ringTaken).load() == kProducers * kEach);
}

TEST_CASE("a full ring refuses, and a dead consumer ends the wait with a record") {
  test::RankWorld world(1, 4, 300);
  emu::Launch launch;
  launch.memory = &world.memory(0);
  launch.epoch = 1;
  emu::BasePlatform platform(launch);
  for (int i = 0; i < 4; ++i) CHECK(protocol::tryPost(platform, protocol::Write{}));
  CHECK_FALSE(protocol::tryPost(platform, protocol::Write{}));
  CHECK_FALSE(protocol::post(platform, protocol::Write{3, 0, 0, 0, 17, 1}));
  CHECK(launch.record.kind == protocol::FailRecord::timeout);
  CHECK(launch.record.why.stage == protocol::Stage::queue);
  CHECK(launch.record.why.node == 3);
  // The credit of the failed attempts was given back.
  CHECK(world.memory(0).ownWord(protocol::OwnLayout::ringTaken).load() == 4);
}
