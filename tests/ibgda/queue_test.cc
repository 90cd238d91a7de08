// Agents that write a card's queue themselves: what they write, in which order, and that nothing is lost; against the software
// network card, which checks every field.
#include <random>
#include <thread>

#include "ibgda/rail.h"
#include "protocol/command_ring.h"
#include "support/catch_compat.h"

using namespace mk;
using protocol::Mlx5Queue;
using protocol::OwnLayout;
using protocol::Write;

namespace {

std::string first(const test::SoftNic& nic) {
  const auto all = nic.complaints();
  return all.empty() ? "" : all.front();
}

emu::Launch& begin(emu::Launch& launch, const emu::RankMemory& memory) {
  launch.memory = &memory;
  launch.epoch = 1;
  return launch;
}

// A write of `words` words to the same place in the other heap, announced in `slot`.
Write writeOf(const emu::RankMemory& m, uint32_t node, uint64_t place, uint64_t words, uint64_t slot, uint64_t epoch) {
  const uint64_t at = m.heapLayout.data(0) + place * 8;
  return {node, at, at, words * 8, slot, epoch};
}

uint64_t flagOffset(const emu::RankMemory& m, uint64_t slot, uint32_t from, uint64_t epoch) {
  return sched::arrivalFlag(m.heapLayout, m.controlLayout, slot, from, epoch);
}

// A platform whose stores to the card's memory become visible in any order, as those of a processor with weak ordering would:
// everything that is not held back by the order the protocol asks for comes late, or early.
class WeakPlatform {
 public:
  enum class Order { kept, recordTooEarly, doorbellTooEarly };
  WeakPlatform(const emu::RankMemory& memory, test::SoftNic& nic, Order order, uint32_t seed)
      : memory_(memory), nic_(nic), order_(order), random_(seed) {}

  sched::Place place() const { return memory_.place; }
  const sched::HeapLayout& heapLayout() const { return memory_.heapLayout; }
  const sched::ControlLayout& controlLayout() const { return memory_.controlLayout; }
  uint64_t ringSlots() const { return 0; }
  const Mlx5Queue* cardQueue(uint32_t node) const { return &memory_.cardQueues[node]; }
  uint64_t ownAdd(uint64_t word, uint64_t n) { return memory_.ownWord(word).fetch_add(n); }
  uint64_t ownLoad(uint64_t word) { return memory_.ownWord(word).load(); }
  uint64_t look(const protocol::FarWord& far) { return memory_.ownWord(far.seen) = ownLoad(far.word); }
  void write(const protocol::Ref& r, uint64_t value) { memory_.flag(r).store(value); }
  void publish(const protocol::Ref& r, uint64_t value, protocol::Scope) { write(r, value); }
  void storeCommand(uint64_t, const mkCommand_t&) {}
  void storeEntry(uint64_t* entry, const uint64_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) later(entry + i, words[i], 8);
  }
  void storeRecord(uint32_t* record, uint32_t value) {
    if (order_ != Order::recordTooEarly) settle();
    later(record, value, 4);
  }
  void storeDoorbell(uint64_t* doorbell, uint64_t value) {
    if (order_ != Order::doorbellTooEarly) settle();
    later(doorbell, value, 8);
  }
  template <class Work>
  void asOne(Work&& work) {
    work(*this);
  }
  void settle() {
    while (!pending_.empty()) one();
  }

 private:
  struct Store {
    void* where;
    uint64_t value;
    int bytes;
  };
  void later(void* where, uint64_t value, int bytes) {
    pending_.push_back({where, value, bytes});
    while (!pending_.empty() && random_() % 3 == 0) one();
  }
  void one() {
    const size_t i = random_() % pending_.size();
    const Store s = pending_[i];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    std::memcpy(s.where, &s.value, static_cast<size_t>(s.bytes));
    nic_.step();  // the card looks at the worst moment: at every one
  }

  const emu::RankMemory& memory_;
  test::SoftNic& nic_;
  const Order order_;
  std::mt19937 random_;
  std::vector<Store> pending_;
};

// Posts, collecting completions when there is no room; true if everything arrived and the card had nothing to complain of.
bool postWeakly(WeakPlatform::Order order, uint32_t seed) {
  test::SoftNic nic;
  nic.pause(true);
  test::Rail rail(nic, {.entries = 8, .reader = false});
  WeakPlatform p(rail.memory(0), nic, order, seed);
  for (uint64_t i = 1; i <= 60; ++i) {
    *rail.heapWord(0, rail.memory(0).heapLayout.data(0) + i * 8) = i * 7;
    const Write w = writeOf(rail.memory(0), 1, i, i % 3 == 0 ? 0 : 1, sched::kControlSlots + i, i);
    while (!protocol::tryPost(p, w)) {
      p.settle();
      nic.step();
      if (!rail.collect()) return false;
    }
  }
  p.settle();
  nic.step();
  rail.collect();
  bool good = nic.complaints().empty() && rail.completions(0) == 60 && rail.errors() == 0;
  for (uint64_t i = 1; i <= 60; ++i) {
    const auto& layout = rail.memory(1).heapLayout;
    good = good && *rail.heapWord(1, flagOffset(rail.memory(1), sched::kControlSlots + i, 0, i)) == i;
    if (i % 3 != 0) good = good && *rail.heapWord(1, layout.data(0) + i * 8) == i * 7;
  }
  return good;
}

}  // namespace

TEST_CASE("entries, record, doorbell: the card sees them in this order whatever the processor does") {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    REQUIRE(postWeakly(WeakPlatform::Order::kept, seed));
  }
}

TEST_CASE("control: without the order before the record or the doorbell the card complains") {
  uint32_t records = 0, doorbells = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    records += !postWeakly(WeakPlatform::Order::recordTooEarly, seed);
    doorbells += !postWeakly(WeakPlatform::Order::doorbellTooEarly, seed);
  }
  CHECK(records > 20);
  CHECK(doorbells > 20);
}

TEST_CASE("payload and flag, through many laps and past the sixteenth bit of the index") {
  const bool immediates = GENERATE(false, true);
  test::SoftNic nic;
  test::Rail rail(nic, {.entries = 64, .immediates = immediates});
  emu::Launch launch;
  emu::BasePlatform p(begin(launch, rail.memory(0)));
  const uint64_t commands = immediates ? 70000 : 40000;
  for (uint64_t i = 0; i < commands; ++i) {
    // Written again only when the queue, which holds half as many, cannot hold the last one any more.
    *rail.heapWord(0, rail.memory(0).heapLayout.data(0) + i % 128 * 8) = i;
    REQUIRE(
        protocol::post(p, writeOf(rail.memory(0), 1, i % 128, i % 5 == 0 ? 0 : 1, sched::kControlSlots + i % 64, i)));
  }
  REQUIRE(p.wait(protocol::own(OwnLayout::completions), commands, protocol::Match::atLeast, {}));
  const auto c = nic.counters();
  CHECK(first(nic) == "");
  CHECK(c.entries > 65536);
  CHECK(c.errors == 0);
  CHECK(c.completions == commands);
  if (immediates) {
    CHECK(c.immediates == commands);
  } else {
    CHECK(c.inlines == commands);
    CHECK(c.payloads == commands - (commands + 4) / 5);
    for (uint64_t i = commands - 64; i < commands; ++i)
      CHECK(*rail.heapWord(1, flagOffset(rail.memory(1), sched::kControlSlots + i % 64, 0, i)) == i);
  }
  CHECK(rail.completions(0) == commands);
  CHECK(rail.memory(0).ownWord(OwnLayout::cardMessages).load() == commands);
}

TEST_CASE("an immediate says who, where and when") {
  test::SoftNic nic;
  nic.pause(true);
  test::Rail rail(nic, {.nodes = 3, .entries = 4, .immediates = true, .reader = false});
  emu::Launch launch;
  emu::BasePlatform p(begin(launch, rail.memory(2)));
  REQUIRE(protocol::tryPost(p, writeOf(rail.memory(2), 1, 5, 1, 77, 6)));
  nic.step();
  const auto arrived = rail.card(1, 2).collect();
  REQUIRE(arrived.arrivals == 1);
  CHECK(mkImmediateRail(arrived.immediate) == 2);
  CHECK(mkImmediateSlot(arrived.immediate) == 77);
  CHECK(mkImmediateEpoch(arrived.immediate, 6) == 6);
  CHECK(first(nic) == "");
}

TEST_CASE("a full queue refuses, goes on when the card does, and ends a wait with a record when it does not") {
  test::SoftNic nic;
  nic.pause(true);
  test::Rail rail(nic, {.entries = 8, .timeoutMs = 300});
  emu::Launch launch;
  emu::BasePlatform p(begin(launch, rail.memory(0)));
  const Write two = writeOf(rail.memory(0), 1, 0, 1, 3, 1), one = writeOf(rail.memory(0), 1, 0, 0, 3, 1);
  for (int i = 0; i < 3; ++i) CHECK(protocol::tryPost(p, two));
  CHECK(protocol::tryPost(p, one));
  CHECK_FALSE(protocol::tryPost(p, two));  // one block is left, two are needed
  CHECK(protocol::tryPost(p, one));
  CHECK_FALSE(protocol::tryPost(p, one));
  const Mlx5Queue& q = rail.memory(0).cardQueues[1];
  CHECK(rail.memory(0).ownWord(q.word(Mlx5Queue::taken)).load() == 8);
  CHECK_FALSE(protocol::post(p, two));
  CHECK(launch.record.kind == protocol::FailRecord::timeout);
  CHECK(launch.record.why.stage == protocol::Stage::queue);
  CHECK(launch.record.why.node == 1);
  CHECK(rail.memory(0).ownWord(q.word(Mlx5Queue::taken)).load() == 8);
  nic.pause(false);
  emu::Launch next;
  emu::BasePlatform again(begin(next, rail.memory(0)));
  rail.memory(0).timeoutNs = 20'000'000'000;
  for (int i = 0; i < 100; ++i) CHECK(protocol::post(again, two));
  CHECK(again.wait(protocol::own(OwnLayout::completions), 105, protocol::Match::atLeast, {}));
  CHECK(first(nic) == "");
}

TEST_CASE("a message longer than the card takes is refused with a record") {
  test::SoftNic nic;
  test::Rail rail(nic, {});
  emu::Launch launch;
  emu::BasePlatform p(begin(launch, rail.memory(0)));
  rail.memory(0).cardQueues[1].maxBytes = 64;
  CHECK(protocol::post(p, writeOf(rail.memory(0), 1, 0, 8, 3, 1)));
  CHECK_FALSE(protocol::post(p, writeOf(rail.memory(0), 1, 0, 9, 3, 1)));
  CHECK(launch.record.kind == protocol::FailRecord::message);
  CHECK(launch.record.expected == 64);
  CHECK(launch.record.seen == 72);
}

TEST_CASE("several agents at once, small queues: nothing is lost, doubled or out of order") {
  const uint32_t entries = GENERATE(4u, 32u, 1024u);
  constexpr uint64_t kAgents = 4, kEach = 3000, kPlaces = 64;
  test::SoftNic nic;
  test::Rail rail(nic, {.nodes = 3, .entries = entries});
  emu::Launch launch;
  begin(launch, rail.memory(0));
  for (uint64_t place = 0; place < kAgents * kPlaces; ++place)
    *rail.heapWord(0, rail.memory(0).heapLayout.data(0) + place * 8) = place * 7 + 1;
  std::vector<std::thread> agents;
  std::atomic<uint64_t> refused{0};
  for (uint64_t a = 0; a < kAgents; ++a) {
    agents.emplace_back([&, a] {
      emu::BasePlatform p(launch);
      for (uint64_t i = 0; i < kEach; ++i) {
        // Slots of its own; what is sent from a place never changes, because its last write may be under way.
        const uint64_t place = a * kPlaces + i % kPlaces;
        const uint32_t node = 1 + static_cast<uint32_t>((i + a) % 2);
        if (!protocol::post(p, writeOf(rail.memory(0), node, place, 1, sched::kControlSlots + place, i))) ++refused;
      }
    });
  }
  for (auto& t : agents) t.join();
  emu::BasePlatform p(launch);
  REQUIRE(p.wait(protocol::own(OwnLayout::completions), kAgents * kEach, protocol::Match::atLeast, {}));
  const auto c = nic.counters();
  CHECK(refused == 0);
  CHECK(first(nic) == "");
  CHECK(c.inlines == kAgents * kEach);
  CHECK(c.payloads == kAgents * kEach);
  CHECK(c.completions == kAgents * kEach);
  CHECK(c.doorbells <= kAgents * kEach);
  CHECK(rail.errors() == 0);
  for (uint32_t node = 1; node <= 2; ++node) {
    const Mlx5Queue& q = rail.memory(0).cardQueues[node];
    const auto word = [&](Mlx5Queue::Word w) { return rail.memory(0).ownWord(q.word(w)).load(); };
    CHECK(word(Mlx5Queue::tail) == word(Mlx5Queue::posted));
    CHECK(word(Mlx5Queue::tail) == word(Mlx5Queue::retired));
    CHECK(word(Mlx5Queue::tail) == word(Mlx5Queue::taken));
    CHECK(word(Mlx5Queue::requests) == 0);
  }
  // The newest of every place: flag and payload.
  for (uint64_t a = 0; a < kAgents; ++a) {
    for (uint64_t i = kEach - kPlaces; i < kEach; ++i) {
      const uint64_t place = a * kPlaces + i % kPlaces;
      const uint32_t node = 1 + static_cast<uint32_t>((i + a) % 2);
      CHECK(*rail.heapWord(node, flagOffset(rail.memory(node), sched::kControlSlots + place, 0, i)) == i);
      CHECK(*rail.heapWord(node, rail.memory(node).heapLayout.data(0) + place * 8) == place * 7 + 1);
    }
  }
}

TEST_CASE("an agent behind a gap leaves, and whoever closes the gap rings for both") {
  test::SoftNic nic;
  nic.pause(true);
  test::Rail rail(nic, {.entries = 8, .reader = false});
  emu::Launch launch;
  emu::BasePlatform p(begin(launch, rail.memory(0)));
  const Mlx5Queue& q = rail.memory(0).cardQueues[1];
  const Write w = writeOf(rail.memory(0), 1, 0, 0, 3, 1);
  // Places 0 and 1 are two agents'; the second is faster.
  rail.memory(0).ownWord(q.word(Mlx5Queue::taken)).store(2);
  rail.memory(0).ownWord(q.word(Mlx5Queue::tail)).store(2);
  protocol::mlx5Write(p, q, 1, w);
  nic.step();
  CHECK(nic.counters().entries == 0);
  CHECK(*q.doorbell == 0);
  protocol::mlx5Write(p, q, 0, w);
  nic.step();
  CHECK(nic.counters().entries == 2);
  CHECK(nic.counters().doorbells == 1);
  CHECK(first(nic) == "");
}
