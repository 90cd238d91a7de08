// The proxy over a transport made for the test: batches, limits, credits, completions, epochs of notifications, failures.
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "host/cpu_platform.h"
#include "host/proxy.h"
#include "support/catch_compat.h"

using namespace mk;

namespace {

// Records what it is given; accepts and completes as the test says.
struct Fake {
  std::mutex mutex;
  struct Submission {
    int peer;
    std::vector<mkTransportWrite_t> writes;
  };
  std::vector<Submission> submissions;
  std::deque<mkTransportEvent_t> events;
  int room = 1000;  // writes still accepted
  int postResult = 0;
  bool completeAtOnce = true;
  int overlapping = 0;  // calls that came while another was inside
  std::atomic<int> inside{0};
  bool closed = false;
}* fake = nullptr;

struct Inside {
  Inside() {
    if (fake->inside.fetch_add(1) != 0) ++fake->overlapping;
  }
  ~Inside() { fake->inside.fetch_sub(1); }
};

mkTransport_t table() {
  mkTransport_t t = {};
  t.structSize = sizeof(t);
  t.name = "fake";
  t.lastError = [] { return "the fake refuses"; };
  t.open = [](void*, int, void** endpoint, uint8_t*) {
    *endpoint = fake;
    return 0;
  };
  t.connect = [](void*, int, int, const uint8_t*, int) { return 0; };
  t.registerMemory = [](void*, const mkTransportMemory_t* m, void** handle, uint8_t* key) {
    *handle = m->address;
    key[0] = 1;
    return 0;
  };
  t.deregisterMemory = [](void*, void*) { return 0; };
  // The part's number, so that the test sees which registration a write names.
  t.importMemory = [](void*, int peer, const uint8_t*, int, void** remote) {
    static uintptr_t next = 0;
    *remote = reinterpret_cast<void*>((static_cast<uintptr_t>(peer) << 32) + 0x1000 * ++next);
    return 0;
  };
  t.releaseMemory = [](void*, void*) { return 0; };
  t.post = [](void*, int peer, const mkTransportWrite_t* writes, int count, int* accepted) {
    const Inside inside;
    const std::lock_guard lock(fake->mutex);
    if (fake->postResult != 0) return fake->postResult;
    *accepted = std::min(count, fake->room);
    fake->room -= *accepted;
    if (*accepted > 0) fake->submissions.push_back({peer, {writes, writes + *accepted}});
    if (fake->completeAtOnce)
      for (int i = 0; i < *accepted; ++i) fake->events.push_back({MK_EVENT_SENT, peer, 0, 0, writes[i].cookie});
    return 0;
  };
  t.poll = [](void*, mkTransportEvent_t* events, int capacity, int* count) {
    const Inside inside;
    const std::lock_guard lock(fake->mutex);
    *count = 0;
    while (*count < capacity && !fake->events.empty()) {
      events[(*count)++] = fake->events.front();
      fake->events.pop_front();
    }
    return 0;
  };
  t.close = [](void*) {
    fake->closed = true;
    return 0;
  };
  return t;
}

template <class Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Node 0 of three nodes of one rank.
struct Rig {
  Fake state;
  mkTransport_t transportTable = table();
  std::unique_ptr<Bootstrap> bootstrap;
  Settings settings = [] {
    Settings s;
    s.agents = 1;
    s.ringSlots = 64;
    s.epochStart = 100;
    return s;
  }();
  CpuPlatform platform{settings};
  std::unique_ptr<Heap> heap;
  std::span<mkCommand_t> ring;
  ProxyShared shared;
  std::unique_ptr<Proxy> proxy;
  std::mutex mutex;
  std::vector<std::string> failures;

  explicit Rig(uint32_t maxBatch = 64) {
    fake = &state;
    mkUniqueId_t id;
    Bootstrap::createId(&id);
    Identity identity;
    identity.hostId = "rig";
    bootstrap = Bootstrap::join(id, identity, 10000, {});
    const sched::Place place{3, 1, 0, 0};
    heap = std::make_unique<Heap>(*bootstrap, platform, 0, place, 8 << 20, 100, std::vector<uint64_t>{0});
    heap->grow(*bootstrap, 2 << 20);
    platform.setUp(0, place, {}, *heap, settings);
    shared = platform.proxyShared();
    ring = {shared.ring, shared.ringSlots};
    auto transport = std::make_shared<Transport>();
    transport->name = "fake";
    transport->table = &transportTable;
    transport->properties.maxBatch = maxBatch;
    transport->properties.maxBytes = 1 << 16;
    transport->properties.contract = MK_CONTRACT_ORDERED;
    transport->properties.devicePosted = 1;  // where the table has what it takes
    proxy = std::make_unique<Proxy>(transport, 0, 0, 3, *heap, platform, settings.epochStart);
    proxy->connect(std::vector<uint8_t>(3 * MK_TRANSPORT_ADDRESS_BYTES), 1000);
    const auto keys = proxy->registerHeap();
    proxy->importHeap(1, keys, 1000);
    proxy->importHeap(2, keys, 1000);
  }
  void start() {
    proxy->start([this](int, const std::string& text) {
      const std::lock_guard lock(mutex);
      failures.push_back(text);
    });
  }
  ~Rig() {
    proxy.reset();
    CHECK(state.closed);
    CHECK(state.overlapping == 0);
    bootstrap->depart(100);
  }
  void command(uint64_t index, uint32_t peer, uint64_t slot, uint64_t bytes, uint64_t epoch, uint64_t from,
               uint64_t to) {
    mkCommand_t& c = ring[index % ring.size()];
    c.source = mkPlace(MK_MEMORY_HEAP, from);
    c.destination = mkPlace(MK_MEMORY_HEAP, to);
    c.bytes = bytes;
    c.slot = slot;
    c.epoch = epoch;
    std::atomic_ref<uint64_t>(c.header).store(
        mkCommandHeader(mkCommandLap(index, ring.size()), MK_COMMAND_OP_WRITE, 0, peer), std::memory_order_release);
  }
  uint64_t completed() { return std::atomic_ref<uint64_t>(*shared.completions).load(std::memory_order_acquire); }
  uint64_t* enteredWord() { return const_cast<uint64_t*>(shared.enteredNewest); }
  uint64_t read() { return std::atomic_ref<uint64_t>(*shared.credits).load(std::memory_order_acquire); }
};

}  // namespace

TEST_CASE("commands of one connection travel in batches of up to eight, none is lost, credits and completions count") {
  Rig rig;
  const uint64_t data = rig.heap->layout().data(0);
  for (uint64_t i = 0; i < 50; ++i)
    rig.command(i, 1 + i % 2, sched::kControlSlots + i, 64, 101, data + i * 64, data + 4096 + i * 64);
  rig.start();
  REQUIRE(eventually([&] { return rig.completed() == 50; }));
  CHECK(rig.read() == 50);
  std::vector<uint64_t> seen[3];
  size_t largest = 0;
  for (const auto& s : rig.state.submissions) {
    largest = std::max(largest, s.writes.size());
    for (const auto& w : s.writes) {
      CHECK(w.bytes == 64);
      CHECK(w.flagValue == 101);
      CHECK(mkImmediateSlot(w.immediate) >= sched::kControlSlots);
      seen[s.peer].push_back(mkImmediateSlot(w.immediate) - sched::kControlSlots);
    }
  }
  CHECK(largest == 8);
  REQUIRE(seen[1].size() == 25);
  REQUIRE(seen[2].size() == 25);
  for (uint64_t i = 0; i < 25; ++i) {
    CHECK(seen[1][i] == 2 * i);
    CHECK(seen[2][i] == 2 * i + 1);
  }
  CHECK(rig.proxy->counters().payloadBytes == 50 * 64);
  CHECK(rig.proxy->counters().payloadMessages == 50);
  CHECK(rig.proxy->counters().batches == rig.state.submissions.size());
  const std::string account = rig.proxy->account();
  INFO(account);
  CHECK(account.find("50 taken, 50 completed; " + std::to_string(rig.state.submissions.size()) +
                     " batches, 50 payload messages; 0 arrivals notified; longest round ") != std::string::npos);
  CHECK(account.find("unfinished: 0 to node 1, 0 to node 2") != std::string::npos);
}

TEST_CASE("the transport's own limits are kept, and a lone command does not wait for company") {
  Rig rig(3);
  const uint64_t data = rig.heap->layout().data(1);
  rig.start();
  rig.command(0, 2, sched::kControlSlots, 16, 101, data, data);
  REQUIRE(eventually([&] { return rig.completed() == 1; }));
  for (uint64_t i = 1; i < 20; ++i) rig.command(i, 1, sched::kControlSlots + i, 16, 101, data, data);
  REQUIRE(eventually([&] { return rig.completed() == 20; }));
  for (const auto& s : rig.state.submissions) CHECK(s.writes.size() <= 3);
}

TEST_CASE("a full connection holds up neither the other one nor arrivals") {
  Rig rig;
  rig.state.room = 0;
  const uint64_t data = rig.heap->layout().data(0);
  for (uint64_t i = 0; i < 10; ++i) rig.command(i, 1, sched::kControlSlots + i, 16, 101, data, data);
  rig.start();
  REQUIRE(eventually([&] { return rig.read() == 10; }));
  CHECK(rig.completed() == 0);
  std::atomic_ref<uint64_t>(*rig.enteredWord()).store(101);
  {
    const std::lock_guard lock(rig.state.mutex);
    rig.state.events.push_back({MK_EVENT_ARRIVED, 2, 0, mkImmediate(2, sched::kControlSlots + 5, 101), 0});
  }
  const uint64_t flag = sched::arrivalFlag(rig.heap->layout(), rig.heap->control(), sched::kControlSlots + 5, 2, 101);
  const auto word = [&] {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(rig.heap->base(0) + flag))
        .load(std::memory_order_acquire);
  };
  CHECK(eventually([&] { return word() == 101; }));
  {
    const std::lock_guard lock(rig.state.mutex);
    rig.state.room = 100;
  }
  CHECK(eventually([&] { return rig.completed() == 10; }));
}

TEST_CASE(
    "epochs of notifications: chunks from the epoch entered, control slots from the last one seen, repetitions change "
    "nothing") {
  Rig rig;
  rig.start();
  const auto arrive = [&](uint32_t from, uint64_t slot, uint64_t epoch) {
    const std::lock_guard lock(rig.state.mutex);
    rig.state.events.push_back({MK_EVENT_ARRIVED, static_cast<int>(from), 0, mkImmediate(from, slot, epoch), 0});
  };
  const auto flag = [&](uint64_t slot, uint32_t from, uint64_t epoch) {
    return std::atomic_ref<uint64_t>(
               *reinterpret_cast<uint64_t*>(
                   rig.heap->base(0) + sched::arrivalFlag(rig.heap->layout(), rig.heap->control(), slot, from, epoch)))
        .load(std::memory_order_acquire);
  };
  // The rig's epochs start after 100.
  for (uint64_t e = 101; e < 112; ++e) {
    arrive(1, sched::kSlotEntered0 + (e & 1), e);
    arrive(1, sched::kSlotEntered0 + (e & 1), e);
    CHECK(eventually([&] { return flag(sched::kSlotEntered0 + (e & 1), 1, e) == e; }));
    std::atomic_ref<uint64_t>(*rig.enteredWord()).store(e, std::memory_order_release);
    arrive(1, sched::kControlSlots, e);
    arrive(1, sched::kControlSlots + 1, e - 1);  // a repetition of the epoch before
    CHECK(eventually(
        [&] { return flag(sched::kControlSlots, 1, e) == e && flag(sched::kControlSlots + 1, 1, e - 1) == e - 1; }));
    arrive(1, sched::kSlotDone, e);
    arrive(1, sched::kSlotDone, e);
    CHECK(eventually([&] { return flag(sched::kSlotDone, 1, e) == e; }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(flag(sched::kSlotDone, 1, 0) == 111);
  CHECK(rig.failures.empty());
}

TEST_CASE("failures are reported once, with the transport's words, and nothing is posted afterwards") {
  Rig rig;
  const uint64_t data = rig.heap->layout().data(0);
  SECTION("post") { rig.state.postResult = mkErrorTransport; }
  SECTION("completion") {
    rig.state.completeAtOnce = false;
    rig.state.events.push_back({MK_EVENT_SENT, 1, mkErrorTransport, 0, 16});
  }
  SECTION("connection") { rig.state.events.push_back({MK_EVENT_ERROR, 2, mkErrorTransport, 0, 0}); }
  SECTION("a notification from someone else") {
    rig.state.events.push_back({MK_EVENT_ARRIVED, 1, 0, mkImmediate(2, 9, 101), 0});
  }
  SECTION("a notification from a node there is not") {
    rig.state.events.push_back({MK_EVENT_ARRIVED, 1023, 0, mkImmediate(1023, 2, 101), 0});
  }
  SECTION("a notification for no flag") {
    rig.state.events.push_back({MK_EVENT_ARRIVED, 1, 0, mkImmediate(1, 900000, 101), 0});
  }
  rig.start();
  rig.command(0, 1, sched::kControlSlots, 16, 101, data, data);
  const auto count = [&] {
    const std::lock_guard lock(rig.mutex);
    return rig.failures.size();
  };
  REQUIRE(eventually([&] { return count() == 1; }));
  const size_t before = rig.state.submissions.size();
  rig.command(1, 1, sched::kControlSlots + 1, 16, 101, data, data);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(count() == 1);
  const std::string& text = rig.failures[0];
  INFO(text);
  CHECK((text.find("transport fake") != std::string::npos || text.find("notification from node") != std::string::npos));
  const std::lock_guard lock(rig.state.mutex);
  CHECK(rig.state.submissions.size() <= before + 1);
}

TEST_CASE("commands outside the heap, or longer than the transport takes, are refused, not carried out") {
  Rig rig;
  const auto& layout = rig.heap->layout();
  const auto [from, to, bytes, slot] = GENERATE_REF(
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(layout.data(0), layout.totalBytes(), 16, 5),
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(layout.totalBytes() - 8, layout.data(0), 16, 5),
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(layout.data(0), layout.data(0), uint64_t{1} << 40, 5),
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(layout.data(0), layout.data(0), 16, uint64_t{1} << 19),
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(layout.data(0), layout.data(0), (1 << 16) + 16, 5),
      std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(layout.data(0) + sched::HeapLayout::bankDataBytes(2 << 20) - 8,
                                                         layout.data(0), 16, 5));
  rig.start();
  rig.command(0, 1, slot, bytes, 101, from, to);
  REQUIRE(eventually([&] {
    const std::lock_guard lock(rig.mutex);
    return rig.failures.size() == 1;
  }));
  const std::lock_guard lock(rig.state.mutex);
  CHECK(rig.state.submissions.empty());
}

// ---- Queues that agents write themselves ---------------------------------------------------------------------------------

namespace {

// What the fake hands out for a peer.
struct CardMemory {
  alignas(64) uint64_t entries[8 * 8] = {};
  uint32_t record = 0;
  uint64_t doorbell = 0;
} card[3];
uint32_t cardEntries = 8;

void offerCards(mkTransport_t& t) {
  cardEntries = 8;
  for (CardMemory& c : card) c = CardMemory{};
  t.queueDescriptor = [](void*, int peer, void* to, size_t) {
    auto& d = *static_cast<mkQueueDescriptor_t*>(to);
    if (d.kind != MK_QUEUE_KIND_MLX5 || d.version != MK_QUEUE_MLX5_VERSION) return int{mkErrorVersion};
    d.number = 100 + static_cast<uint32_t>(peer);
    d.entries = card[peer].entries;
    d.record = &card[peer].record;
    d.doorbell = &card[peer].doorbell;
    d.entryCount = cardEntries;
    d.firstIndex = 2;
    d.maxBytes = 4096;
    return 0;
  };
  t.memoryDescriptor = [](void*, void* local, void* remote, void* to, size_t) {
    auto& m = *static_cast<mkQueueMemory_t*>(to);
    m.key = local != nullptr ? 7 : 9;
    m.address = reinterpret_cast<uint64_t>(local != nullptr ? local : remote);
    return 0;
  };
}

}  // namespace

TEST_CASE("agents get the cards' queues, and what the cards have done is counted") {
  Rig rig;
  offerCards(rig.transportTable);
  rig.proxy->openCards();
  const auto& queues = rig.platform.memory().cardQueues;
  REQUIRE(queues.size() == 3);
  CHECK(queues[0].entries == nullptr);
  CHECK(queues[1].number == 101);
  CHECK(queues[2].entries == card[2].entries);
  CHECK(queues[1].local[0].key == 7);
  CHECK(queues[1].remote[4].key == 9);
  // A registration begins where its part does.
  const uint64_t begin = rig.heap->layout().data(1);
  CHECK(queues[1].local[4].base + begin == reinterpret_cast<uint64_t>(rig.heap->base(0) + begin));
  CHECK(rig.proxy->unfinishedNode() == 1);  // the record is at 0, and entries up to 2 are not the agents'
  for (auto& c : card) c.record = protocol::bigEndian(uint32_t{2});
  CHECK(rig.proxy->unfinishedNode() == -1);
  card[2].record = protocol::bigEndian(uint32_t{5});
  CHECK(rig.proxy->unfinishedNode() == 2);
  rig.state.events.push_back({MK_EVENT_RETIRED, 2, 0, 2, 5});
  rig.start();
  REQUIRE(eventually([&] { return rig.completed() == 2; }));
  CHECK(*rig.platform.cardRetired(2) == 5);
  CHECK(*rig.platform.cardRetired(1) == 2);
  CHECK(rig.proxy->unfinishedNode() == -1);
  rig.proxy->stop();
  CHECK(rig.failures.empty());
}

TEST_CASE("queues of another version are left to the proxy") {
  Rig rig;
  offerCards(rig.transportTable);
  rig.transportTable.queueDescriptor = [](void*, int, void*, size_t) { return int{mkErrorVersion}; };
  rig.proxy->openCards();
  CHECK(rig.platform.memory().cardQueues.empty());
  const uint64_t data = rig.heap->layout().data(0);
  rig.command(0, 1, sched::kControlSlots, 16, 101, data, data);
  rig.start();
  CHECK(eventually([&] { return rig.completed() == 1; }));
}

TEST_CASE("queues that make no sense, and completions of queues that nobody has, are errors") {
  {
    Rig rig;
    offerCards(rig.transportTable);
    cardEntries = 6;
    try {
      rig.proxy->openCards();
      FAIL("taken");
    } catch (const Error& e) {
      CHECK(e.code() == mkErrorTransport);
      CHECK(std::string(e.what()).find("6 entries") != std::string::npos);
    }
  }
  Rig rig;
  rig.state.events.push_back({MK_EVENT_RETIRED, 1, 0, 1, 1});
  rig.start();
  REQUIRE(eventually([&] {
    const std::lock_guard lock(rig.mutex);
    return !rig.failures.empty();
  }));
  CHECK(rig.failures.front().find("nobody has posted") != std::string::npos);
}
