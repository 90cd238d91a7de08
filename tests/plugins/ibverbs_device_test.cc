// The ibverbs transport over real verbs: the conformance suite between two devices, and what only this transport has.  Runs
// in the virtual machine of tests/rxe; where there are other RDMA devices, it takes those, and leaves their ports alone.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "device_events.h"
#include "link.h"
#include "rxe/interface.h"
#include "suite.h"
#include "verbs_events.h"
#include "words.h"

namespace test {
namespace {

using namespace std::chrono_literals;

const char* const kPlugin = MK_TEST_IBVERBS;

// A peer that has died is noticed after some two seconds.
Setup setupOf(int devices, Params params = {}) {
  params.emplace("MKERNEL_IB_TIMEOUT", "16");
  Setup setup{kPlugin, params};
  setup.waitMs = 40000;
  setup.devices = devices;
  setup.prepare = [](int) { useMemory(&repeatedMemory()); };
  return setup;
}

bool logged(const std::vector<std::string>& lines, const std::string& words) {
  for (const std::string& line : lines)
    if (line.find(words) != std::string::npos) return true;
  return false;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

// The reason for which the plugin cannot be used.
std::string refusal(const Params& params) {
  try {
    const Plugin plugin(kPlugin, params);
  } catch (const CheckFailed& failure) {
    return failure.what();
  }
  return "";
}

// Memory here and the peer's, and a write between them.
struct Pair {
  explicit Pair(Link& link) : in(4096), out(4096) {
    std::memset(out.data(), 0x77, out.bytes());
    Bytes unused;
    local = link.registerMemory(out.piece(), &unused);
    const std::vector<void*> shared = link.share(in.piece());
    own = shared[static_cast<size_t>(link.rank().index)];
    remote = shared[static_cast<size_t>(1 - link.rank().index)];
  }
  Write write(uint64_t value) const {
    Write write = {};
    write.source = out.data();
    write.localMemory = local;
    write.remoteMemory = write.flagMemory = remote;
    write.remoteOffset = 8;
    write.bytes = 1000;
    write.flagValue = value;
    return write;
  }
  SharedMemory in, out;
  void *local = nullptr, *own = nullptr, *remote = nullptr;
};

// Polls until it has seen an error event of this peer (-1: the device) and a failed completion; returns the reason.
std::string awaitFailure(Link& link, int peer) {
  std::string reason;
  bool error = false, failed = false;
  for (const auto deadline = link.rank().deadline(); !error || !failed;) {
    expect(Clock::now() < deadline, "error event %s, failed completion %s", error ? "came" : "missing",
           failed ? "came" : "missing");
    for (const Event& event : link.poll()) {
      if (event.kind == MK_EVENT_SENT && event.status != mkSuccess) failed = true;
      if (event.kind != MK_EVENT_ERROR) continue;
      expect(event.peer == peer && !error, "error event of peer %d", event.peer);
      error = true;
      reason = link.table().lastError();
    }
  }
  return reason;
}

TEST_CASE("ibverbs: conformance between two devices") {
  SECTION("threads") { runAll(setupOf(2), Mode::threads); }
  SECTION("processes") { runAll(setupOf(2), Mode::processes); }
}

TEST_CASE("ibverbs: conformance within a device, short queues, many connections, strict order") {
  const Setup setup = setupOf(
      1, {{"MKERNEL_IB_OUTSTANDING", "3"}, {"MKERNEL_IB_CONNECTIONS", "8"}, {"MKERNEL_IB_RELAXED_ORDERING", "0"}});
  for (const auto check : {checkStream, checkBackPressure, checkRegistrations})
    CHECK_NOTHROW(check(setup, Mode::threads));
}

TEST_CASE("ibverbs: devices are chosen by name and GID where that is asked for") {
  if (!inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  const auto firstOf = [](const char* hca) {
    const Plugin plugin(kPlugin, {{"MKERNEL_IB_HCA", hca}});
    int count = 0;
    plugin.succeed(plugin.table().deviceCount(plugin.context(), &count), "deviceCount");
    mkTransportDevice_t device = {};
    device.structSize = sizeof(device);
    plugin.succeed(plugin.table().deviceInfo(plugin.context(), 0, &device), "deviceInfo");
    CHECK(device.bytesPerSecond > 0);
    return std::to_string(count) + " " + device.name;
  };
  CHECK(firstOf("") == "2 rxe0:1");
  CHECK(firstOf("rxe") == "2 rxe0:1");
  CHECK(firstOf("^=rxe0") == "1 rxe1:1");
  CHECK(firstOf("=rxe1:1") == "1 rxe1:1");
  CHECK(missing(refusal({{"MKERNEL_IB_HCA", "rxe0:2"}}), {"rxe0:1: MKERNEL_IB_HCA=rxe0:2 leaves it out", "rxe1:1"}) ==
        "");
  CHECK(missing(refusal({{"MKERNEL_IB_GID_INDEX", "99"}}), {"rxe0:1: MKERNEL_IB_GID_INDEX=99", "it has 0, 1"}) == "");
}

TEST_CASE("ibverbs: MKERNEL_IB_GID_INDEX takes another GID than the one that would be chosen") {
  if (!inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  REQUIRE(addAddress("eth0:1", "10.99.0.11"));
  REQUIRE(addAddress("eth1:1", "10.99.0.12"));
  for (const int index : {-1, 2}) {
    takeLog();
    CHECK_NOTHROW(checkStream(setupOf(2, {{"MKERNEL_IB_GID_INDEX", std::to_string(index)}}), Mode::threads));
    const std::vector<std::string> lines = takeLog();
    INFO(joined(lines));
    CHECK(logged(lines, std::string("rxe0:1: RoCE v2 at 10.99.0.") + (index < 0 ? "1," : "11,")));
    CHECK(logged(lines, std::string("rxe1:1: RoCE v2 at 10.99.0.") + (index < 0 ? "2," : "12,")));
  }
}

TEST_CASE("ibverbs: events of the device") {
  if (!inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  for (const DeviceEvent& event : deviceEvents()) {
    INFO("event " << event.type);
    CHECK_NOTHROW(checkDeviceEvent(
        setupOf(2), event,
        [](const DeviceEvent& e) { raiseDeviceEvent(static_cast<ibv_event_type>(e.type), e.ofOtherPort ? 2 : 1); },
        // A connection's says of which peer, the device's of which port.
        [](int type) {
          switch (type) {
            case IBV_EVENT_DEVICE_FATAL:
              return std::string(":1: local catastrophic error");
            case IBV_EVENT_CQ_ERR:
              return std::string(":1: CQ error");
            case IBV_EVENT_PORT_ERR:
              return std::string(":1 has gone down (port error)");
            case IBV_EVENT_QP_FATAL:
              return std::string("): local work queue catastrophic error");
            case IBV_EVENT_QP_REQ_ERR:
              return std::string("): invalid request local work queue error");
            default:
              return std::string("): local access violation work queue error");
          }
        }));
  }
}

TEST_CASE("ibverbs: connecting to a peer that does not come") {
  const Plugin plugin(kPlugin, {});
  const mkTransport_t& table = plugin.table();
  void* endpoints[2] = {};
  Bytes addresses(2 * MK_TRANSPORT_ADDRESS_BYTES);
  for (int i = 0; i < 2; ++i)
    plugin.succeed(
        table.open(plugin.context(), 0, &endpoints[i], &addresses[static_cast<size_t>(i) * MK_TRANSPORT_ADDRESS_BYTES]),
        "open");
  CHECK(table.connect(endpoints[0], 2, 0, addresses.data(), 300) == mkErrorTimeout);
  CHECK(missing(table.lastError(), {"300 ms", "peer 1 has not been heard of"}) == "");
  addresses[MK_TRANSPORT_ADDRESS_BYTES] ^= 1;
  CHECK(table.connect(endpoints[1], 2, 0, addresses.data(), 300) == mkErrorInvalidArgument);
  for (void* endpoint : endpoints) CHECK(table.close(endpoint) == mkSuccess);
}

TEST_CASE("ibverbs: the MTU is the smaller of both ends'") {
  if (!inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  REQUIRE(setMtu("eth1", 4200));
  takeLog();
  CHECK_NOTHROW(checkSizes(setupOf(2), Mode::threads));
  const std::vector<std::string> lines = takeLog();
  CHECK(logged(lines, "rxe0:1: RoCE v2 at 10.99.0.1, MTU 1024"));
  CHECK(logged(lines, "rxe1:1: RoCE v2 at 10.99.0.2, MTU 4096"));
  CHECK(logged(lines, "connections, MTU 1024, global"));
  CHECK_FALSE(logged(lines, "connections, MTU 4096"));
  CHECK(setMtu("eth1", 1500));
}

TEST_CASE("ibverbs: a write to memory that has been deregistered breaks the connection, with a reason") {
  CHECK_NOTHROW(runWorld(setupOf(2), Mode::processes, 2, [](Rank& rank) {
    Link link(rank);
    Pair pair(link);
    rank.barrier();
    if (rank.index == 1) link.deregisterMemory(pair.own);
    rank.barrier();
    if (rank.index == 0) {
      link.postAll(1, {pair.write(1)});
      const std::string reason = awaitFailure(link, 1);
      expect(missing(reason, {"peer 1 (rxe1:1, host ", "refused a write"}).empty(), "the reason is: %s",
             reason.c_str());
    }
    rank.barrier();
  }));
}

TEST_CASE("ibverbs: GPU memory is tried by DMA-BUF, then by address") {
  takeLog();
  CHECK_NOTHROW(runWorld(setupOf(1), Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    // Host memory stands for it: its descriptor is no DMA-BUF, its address can be registered.
    SharedMemory memory(8192);
    mkTransportMemory_t piece = memory.piece();
    piece.kind = MK_MEMORY_KIND_CUDA;
    Bytes key;
    link.registerMemory(piece, &key);
    // Nor does anybody know this address.
    piece.address = reinterpret_cast<void*>(uintptr_t{1} << 46);
    void* handle = nullptr;
    const int result = link.table().registerMemory(link.endpoint(), &piece, &handle, key.data());
    expect(result == mkErrorNotSupported, "result %d", result);
    const std::string why = missing(link.table().lastError(), {"DMA-BUF: ", "peer memory: ", "pinned host memory"});
    expect(why.empty(), "%s", why.c_str());
    rank.barrier();
  }));
  CHECK(logged(takeLog(), "8192 bytes of GPU memory"));
}

// Last: the interface gets its addresses back, but not at once.
TEST_CASE("ibverbs: a port that goes down") {
  if (!inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  CHECK_NOTHROW(runWorld(setupOf(2), Mode::processes, 2, [](Rank& rank) {
    Link link(rank);
    Pair pair(link);
    link.postAll(1 - rank.index, {pair.write(1)});
    link.awaitNotification(1 - rank.index, 1, pair.in.data());
    rank.barrier();
    if (rank.index == 0) expect(setInterface("eth1", false), "eth1 cannot be taken down");
    rank.barrier();
    link.postAll(1 - rank.index, {pair.write(2)});
    const std::string reason = awaitFailure(link, -1);
    const std::string name = rank.index == 0 ? "rxe0:1" : "rxe1:1";
    expect(missing(reason, {name + " has gone down ("}).empty(), "the reason is: %s", reason.c_str());
    // From now on nothing succeeds, and nothing hangs.
    int accepted = 0;
    const Write next = pair.write(3);
    if (link.table().post(link.endpoint(), 1 - rank.index, &next, 1, &accepted) == mkSuccess && accepted == 1)
      for (const Event& event : link.pollFor(50ms))
        expect(event.kind != MK_EVENT_SENT || event.status != mkSuccess, "a write over a dead port has succeeded");
    const auto before = Clock::now();
    link.close();
    expect(Clock::now() - before < 5s, "closing takes long");
    rank.barrier();
  }));
  CHECK(setInterface("eth1", true));
}

}  // namespace
}  // namespace test
