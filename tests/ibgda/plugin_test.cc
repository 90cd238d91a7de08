// The ibgda plugin on the software network card: what only this transport has.
#include <dlfcn.h>
#include <sys/mman.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plugins/conformance.h"
#include "plugins/cuda/device.h"
#include "plugins/device_events.h"
#include "plugins/link.h"
#include "plugins/words.h"
#include "support/catch_compat.h"

namespace test {
namespace {

Setup over(const Params& params = {}) { return {MK_TEST_IBGDA, params}; }

bool logged(const std::vector<std::string>& lines, const std::string& words) {
  for (const std::string& line : lines)
    if (line.find(words) != std::string::npos) return true;
  return false;
}

TEST_CASE("ibgda: GPU memory is tried by DMA-BUF, then by address; the library hears that neither is to be had") {
  takeLog();
  CHECK_NOTHROW(runWorld(over(), Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    // Host memory stands for it: its descriptor is no DMA-BUF, its address can be registered.
    SharedMemory memory(8192);
    mkTransportMemory_t piece = memory.piece();
    piece.kind = MK_MEMORY_KIND_CUDA;
    Bytes key;
    link.registerMemory(piece, &key);
    rank.barrier();
    if (rank.index != 0) return rank.barrier();
    // And here nobody has memory any more.
    piece.address = mmap(nullptr, piece.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(piece.address, piece.bytes);
    for (const bool described : {true, false}) {
      if (!described) piece.fd = -1;
      void* handle = nullptr;
      const int result = link.table().registerMemory(link.endpoint(), &piece, &handle, key.data());
      expect(result == mkErrorNotSupported, "result %d", result);
      const std::string why =
          missing(link.table().lastError(),
                  {described ? "DMA-BUF: Operation not supported; " : "(DMA-BUF of the driver",
                   "the driver: no CUDA driver is loaded; peer memory: Bad address", "pinned host memory"});
      expect(why.empty(), "%s", why.c_str());
    }
    // Host memory that is not there is no case for that.
    piece.kind = MK_MEMORY_KIND_HOST;
    void* handle = nullptr;
    const int result = link.table().registerMemory(link.endpoint(), &piece, &handle, key.data());
    expect(result == mkErrorSystem, "result %d", result);
    rank.barrier();
  }));
  CHECK(logged(takeLog(), "8192 bytes of GPU memory"));
}

TEST_CASE("ibgda: connections travel and persist as MKERNEL_IB_... say") {
  void* const plugin = dlopen(MK_TEST_IBGDA, RTLD_NOW);
  REQUIRE(plugin != nullptr);
  auto* const look = reinterpret_cast<void (*)(int*)>(dlsym(plugin, "mkTestNicPath"));
  REQUIRE(look != nullptr);
  using Path = std::array<int, 5>;  // index of the GID, service level, traffic class, timeout, retries
  const std::pair<Params, Path> cases[] = {
      {{}, {3, 0, 0, 18, 6}},
      {{{"MKERNEL_IB_GID_INDEX", "2"},
        {"MKERNEL_IB_SL", "15"},
        {"MKERNEL_IB_TC", "255"},
        {"MKERNEL_IB_TIMEOUT", "22"},
        {"MKERNEL_IB_RETRY_COUNT", "0"}},
       {2, 15, 255, 22, 0}},
  };
  for (const auto& [params, due] : cases) {
    CHECK_NOTHROW(checkStream(over(params), Mode::threads));
    Path path = {};
    look(path.data());
    CHECK(path == due);
  }
  std::string why;
  try {
    const Plugin refused(MK_TEST_IBGDA, {{"MKERNEL_IB_TC", "256"}});
  } catch (const CheckFailed& failure) {
    why = failure.what();
  }
  CHECK(missing(why, {"MKERNEL_IB_TC=256: must be an integer from 0 to 255"}) == "");
}

TEST_CASE("ibgda: a peer that uses another version of RoCE is refused") {
  const Plugin ours(MK_TEST_IBGDA, {{"MKERNEL_IB_GID_INDEX", "3"}}),
      theirs(MK_TEST_IBGDA, {{"MKERNEL_IB_GID_INDEX", "2"}});
  Bytes addresses(size_t{2} * MK_TRANSPORT_ADDRESS_BYTES);
  void *endpoint = nullptr, *peer = nullptr;
  ours.succeed(ours.table().open(ours.context(), 0, &endpoint, addresses.data()), "open");
  theirs.succeed(theirs.table().open(theirs.context(), 0, &peer, addresses.data() + MK_TRANSPORT_ADDRESS_BYTES),
                 "open");
  CHECK(ours.table().connect(endpoint, 2, 0, addresses.data(), 1000) == mkErrorTransport);
  CHECK(missing(ours.table().lastError(),
                {"peer 1: versions of RoCE differ", "RoCE v2 at ", "RoCE v1 at ", "MKERNEL_IB_GID_INDEX"}) == "");
  ours.succeed(ours.table().close(endpoint), "close");
  theirs.succeed(theirs.table().close(peer), "close");
}

TEST_CASE("ibgda: events of the device") {
  void* const plugin = dlopen(MK_TEST_IBGDA, RTLD_NOW);
  REQUIRE(plugin != nullptr);
  auto* const raise = reinterpret_cast<void (*)(int, int)>(dlsym(plugin, "mkTestNicEvent"));
  REQUIRE(raise != nullptr);
  const std::map<int, const char*> words = {
      {IBV_EVENT_DEVICE_FATAL, "fake_mlx5_0:2: device fatal"}, {IBV_EVENT_CQ_ERR, "fake_mlx5_0:2: CQ error"},
      {IBV_EVENT_PORT_ERR, "fake_mlx5_0:2: port error"},       {IBV_EVENT_QP_FATAL, "fake_mlx5_0:2: QP fatal"},
      {IBV_EVENT_QP_REQ_ERR, "fake_mlx5_0:2: QP request"},     {IBV_EVENT_QP_ACCESS_ERR, "fake_mlx5_0:2: QP access"},
  };
  for (const DeviceEvent& event : deviceEvents()) {
    INFO("event " << event.type);
    CHECK_NOTHROW(checkDeviceEvent(
        over(), event, [&](const DeviceEvent& e) { raise(e.type, e.ofOtherPort ? 1 : 2); },
        [&](int type) { return std::string(words.at(type)); }));
  }
}

TEST_CASE("ibgda: GPU memory") {
  static void* const driver = dlopen(MK_TEST_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);  // the fake has the driver's name
  REQUIRE(driver != nullptr);
  Setup setup = over();
  setup.prepare = [](int rank) { CudaDevice::enter(rank % 2); };
  CHECK_NOTHROW(checkStream(setup, Mode::threads));
#if !defined(__SANITIZE_THREAD__)  // which forbids threads after a fork
  CHECK_NOTHROW(checkSizes(setup, Mode::threads));
  CHECK_NOTHROW(checkSizes(setup, Mode::processes));
  CHECK_NOTHROW(checkStream(setup, Mode::processes));
#endif
}

}  // namespace
}  // namespace test
