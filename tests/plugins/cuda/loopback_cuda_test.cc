// The loopback transport with GPU memory, on a driver that is a fake (fake_cuda.cc): what every transport must do, and what
// this one promises of GPU memory.  On real GPUs: gpu_test.cc.
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance.h"
#include "cuda/device.h"
#include "lane.h"
#include "traffic.h"

namespace test {
namespace {

using namespace std::chrono_literals;

// Under the name libcuda.so.1, which is then what everybody finds.
template <typename Function>
Function fake(const char* name) {
  static void* const object = dlopen(MK_TEST_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  expect(object != nullptr, "%s", object == nullptr ? dlerror() : "");
  return reinterpret_cast<Function>(dlsym(object, name));
}
void hot(bool on) { fake<void (*)(bool)>("fakeCudaHot")(on); }
int64_t copies() { return fake<int64_t (*)()>("fakeCudaCopies")(); }
int64_t stores() { return fake<int64_t (*)()>("fakeCudaStores")(); }
void failAfter(int64_t count) { fake<void (*)(int64_t)>("fakeCudaFailAfter")(count); }

// Rank i has GPU i, and three ranks share two.
void enterDevice(int rank) {
  fake<void*>("cuInit");
  CudaDevice::enter(rank % 2);
}

Setup setupFor(const char* contract, Params params = {}) {
  params["MKERNEL_LOOPBACK_CONTRACT"] = contract;
  return Setup{MK_TEST_LOOPBACK, params, 20000, enterDevice};
}

const Params kAdversary = {
    {"MKERNEL_LOOPBACK_GBPS", "3"},      {"MKERNEL_LOOPBACK_LATENCY_US", "100"}, {"MKERNEL_LOOPBACK_JITTER_US", "300"},
    {"MKERNEL_LOOPBACK_REORDER", "0.5"}, {"MKERNEL_LOOPBACK_REPEAT", "0.5"},     {"MKERNEL_LOOPBACK_SEED", "42"},
};

// ---- What every transport must do ----------------------------------------------------------------------------------

// Not here: registrations of parts of a descriptor.
void checkRegistering(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    const int peer = 1 - rank.index;
    constexpr size_t kBytes = 5001, kAt = 16;
    SharedMemory source(kBytes), first(8192), second(8192);
    Bytes unused;
    void* const local = link.registerMemory(source.piece(), &unused);
    uint32_t version = 0;
    const auto exchange = [&](void* remote, SharedMemory& here) {
      storeFlag(here.data(), 0);
      fillPattern(source.data(), kBytes, mix(++version, static_cast<uint64_t>(rank.index)));
      rank.barrier();
      Write write = {};
      write.source = source.data();
      write.localMemory = local;
      write.remoteMemory = write.flagMemory = remote;
      write.remoteOffset = kAt;
      write.bytes = kBytes;
      write.flagValue = write.immediate = version;
      link.postAll(peer, {write});
      link.awaitNotification(peer, version, here.data());
      const int64_t at = findDifference(here.data() + kAt, kBytes, mix(version, static_cast<uint64_t>(peer)));
      expect(at < 0, "version %u: payload wrong from byte %lld on", version, static_cast<long long>(at));
      rank.barrier();
    };
    Bytes key;
    void* const one = link.registerMemory(first.piece(), &key);
    const Bytes theirs = rank.allgather(key)[static_cast<size_t>(peer)];
    void* const import = link.importMemory(peer, theirs);
    void* const again = link.importMemory(peer, theirs);
    expect(import != again, "two imports have one handle");
    exchange(import, first);
    link.releaseMemory(import);
    exchange(again, first);
    exchange(link.share(second.piece())[static_cast<size_t>(peer)], second);
    link.releaseMemory(again);
    rank.barrier();
    link.deregisterMemory(one);
    rank.barrier();
    void* remote = nullptr;
    expect(link.table().importMemory(link.endpoint(), peer, theirs.data(), 50, &remote) != mkSuccess,
           "the key of a registration that has ended can still be imported");
    exchange(link.share(first.piece())[static_cast<size_t>(peer)], first);
  });
}

// Where a kernel may fill the GPU, no call may wait for it.
void checkHotPath(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    std::vector<uint64_t> sizes;
    for (uint64_t i = 0; i < 600; ++i) sizes.push_back(i % 7 == 0 ? 0 : i * 97 % 70000);
    Traffic traffic(link, sizes, 3, 5);
    hot(true);
    traffic.run();
    hot(false);
  });
}

const std::vector<Check>& allChecks() {
  static const std::vector<Check> checks = {
      {"sizes", checkSizes},
      {"streams between three ranks", checkStream},
      {"back-pressure", checkBackPressure},
      {"registrations", checkRegistering},
      {"refusals", checkRefusals},
      {"a peer that closes", checkOrderlyClose},
      {"close with work under way", checkCloseWithWork},
      {"open and close again and again", checkCycles},
      {"no slow call", checkHotPath},
      {"a peer that is killed", checkPeerLoss, true},
  };
  return checks;
}

void runAll(const char* contract, const Params& params, const std::vector<Check>& checks = allChecks()) {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    for (const Check& check : checks) {
      if (check.processesOnly && mode == Mode::threads) continue;
      INFO(check.name << (mode == Mode::threads ? ", threads" : ", processes"));
      CHECK_NOTHROW(check.run(setupFor(contract, params), mode));
    }
  }
}

TEST_CASE("GPU memory: ordered", "[conformance]") { runAll("ordered", {}); }
TEST_CASE("GPU memory: completion", "[conformance]") { runAll("completion", {}); }
TEST_CASE("GPU memory: ordered, adversarial", "[conformance]") { runAll("ordered", kAdversary); }
TEST_CASE("GPU memory: completion, adversarial", "[conformance]") { runAll("completion", kAdversary); }
TEST_CASE("GPU memory: few outstanding", "[conformance]") {
  runAll("ordered", {{"MKERNEL_LOOPBACK_OUTSTANDING", "3"}, {"MKERNEL_LOOPBACK_LATENCY_US", "20"}},
         {{"streams between three ranks", checkStream}, {"back-pressure", checkBackPressure}});
}

// ---- What the loopback transport promises ---------------------------------------------------------------------------

// In a thread without a GPU in hand.
void elsewhere(const std::function<void()>& body) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void runTwo(const Setup& setup, Mode mode, const std::function<void(Rank&)>& body) {
  REQUIRE_NOTHROW(runWorld(setup, mode, 2, body));
}

TEST_CASE("GPU memory: what is no GPU memory is refused by name") {
  runTwo(setupFor("ordered"), Mode::threads, [](Rank& rank) {
    Link link(rank);
    SharedMemory good(8192);
    const auto refused = [&](const mkTransportMemory_t& memory, int result, const char* words) {
      void* handle = nullptr;
      uint8_t key[MK_TRANSPORT_KEY_BYTES];
      const int got = link.table().registerMemory(link.endpoint(), &memory, &handle, key);
      expect(got == result, "%s: result %d", words, got);
      expect(std::strstr(link.table().lastError(), words) != nullptr, "the reason: %s", link.table().lastError());
    };
    mkTransportMemory_t memory = good.piece();
    memory.fd = -1;
    refused(memory, mkErrorInvalidArgument, "with fd -1");
    memory = good.piece();
    memory.fdOffset = 4096;
    refused(memory, mkErrorInvalidArgument, "fdOffset 4096: must be 0");
    memory = good.piece();
    memory.address = &rank;
    refused(memory, mkErrorInvalidArgument, "is no CUDA device memory");
    useMemory(nullptr);
    SharedMemory host(8192);
    memory = good.piece();
    memory.fd = host.piece().fd;
    refused(memory, mkErrorInvalidArgument, "is not the descriptor of a CUDA allocation");
    // From one kind into the other.
    Bytes unused;
    void* const local = link.registerMemory(host.piece(), &unused);
    Write write = {};
    write.source = host.data();
    write.localMemory = local;
    write.remoteMemory = write.flagMemory = link.share(good.piece())[static_cast<size_t>(1 - rank.index)];
    write.bytes = 8;
    int accepted = 0;
    expect(link.table().post(link.endpoint(), 1 - rank.index, &write, 1, &accepted) == mkErrorNotSupported, "mixed");
    expect(std::strstr(link.table().lastError(), "source in host memory, destination in CUDA memory") != nullptr,
           "the reason: %s", link.table().lastError());
    // With the other GPU, and with none, in hand.
    const int own = CudaDevice::current().index();
    CudaDevice::enter(1 - own);
    refused(good.piece(), mkErrorInvalidUsage, "is not that of the endpoint's other CUDA memory");
    elsewhere([&] { refused(good.piece(), mkErrorInvalidUsage, "context current in the calling thread"); });
    CudaDevice::enter(own);
    rank.barrier();
  });
}

TEST_CASE("GPU memory: another thread than the one that registered may write and close") {
  runTwo(setupFor("ordered"), Mode::threads, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 100);
    rank.barrier();
    elsewhere([&] {
      std::vector<Write> writes;
      for (size_t slot = 0; slot < 100; ++slot) writes.push_back(lane.write(slot));
      link.postAll(1 - rank.index, writes);
      link.awaitSent(100);
    });
    rank.barrier();
    for (size_t slot = 0; slot < 100; ++slot)
      expect(lane.flagged(slot) && lane.payloadIsThere(slot), "slot %zu is wrong", slot);
    rank.barrier();
    elsewhere([&] { link.close(); });
  });
}

TEST_CASE("GPU memory: contiguous writes become one copy, and so do their flags") {
  runTwo(setupFor("ordered"), Mode::processes, [](Rank& rank) {
    Link link(rank);
    constexpr size_t kWrites = 64, kBytes = 64 << 10;
    SharedMemory in((kWrites + 1) * kBytes), out(kWrites * kBytes);
    fillPattern(out.data(), out.bytes(), 1);
    Bytes unused;
    void* const local = link.registerMemory(out.piece(), &unused);
    void* const remote = link.share(in.piece())[static_cast<size_t>(1 - rank.index)];
    std::vector<Write> writes(kWrites);
    for (size_t i = 0; i < kWrites; ++i) {
      Write& write = writes[i];
      write.source = out.data() + i * kBytes;
      write.localMemory = local;
      write.remoteMemory = write.flagMemory = remote;
      write.remoteOffset = (i + 1) * kBytes;
      write.bytes = kBytes;
      write.flagOffset = 8 * i;
      write.flagValue = i + 1;
    }
    rank.barrier();
    const int64_t before = copies(), beforeStores = stores();
    expect(link.post(1 - rank.index, writes.data(), static_cast<int>(kWrites)) == kWrites, "not all are accepted");
    // Groups of 2 MiB, each one copy of payload one call for its flags and one to tell of the end.
    const int64_t made = copies() - before, told = stores() - beforeStores;
    expect(made == 2 && told == 4, "%lld copies and %lld calls to store for %zu contiguous writes",
           static_cast<long long>(made), static_cast<long long>(told), kWrites);
    link.awaitSent(kWrites);
    rank.barrier();
    for (size_t i = 0; i < kWrites; ++i) expect(loadFlag(in.data() + 8 * i) == i + 1, "flag %zu is wrong", i);
    expect(findDifference(in.data() + kBytes, kWrites * kBytes, 1) < 0, "the payload is wrong");
    // Every other one: none is contiguous.
    const int64_t then = copies();
    for (size_t i = 0; i < kWrites; i += 2) writes[i / 2] = writes[i];
    expect(link.post(1 - rank.index, writes.data(), 8) == 8, "not all are accepted");
    expect(copies() - then == 8, "%lld copies for 8 writes", static_cast<long long>(copies() - then));
    link.awaitSent(8);
    rank.barrier();
  });
}

TEST_CASE("GPU memory: after deregistering, and after release, nothing touches it") {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    runTwo(setupFor("ordered"), mode, [](Rank& rank) {
      Link link(rank);
      constexpr size_t kBytes = 1 << 20, kWrites = 8;
      SharedMemory in(kWrites * kBytes);
      const auto out = std::make_unique<SharedMemory>(kBytes);
      std::memset(out->data(), 0x33, kBytes);
      Bytes unused;
      void* const local = link.registerMemory(out->piece(), &unused);
      void* const remote = link.share(in.piece())[static_cast<size_t>(1 - rank.index)];
      for (size_t i = 0; i < kWrites; ++i) {
        Write write = {};
        write.source = out->data() + 8;
        write.localMemory = local;
        write.remoteMemory = write.flagMemory = remote;
        write.remoteOffset = i * kBytes + 8;
        write.flagOffset = i * kBytes;
        write.flagValue = 1;
        write.bytes = kBytes - 8;
        link.post(1 - rank.index, &write, 1);
      }
      if (rank.index == 0) link.releaseMemory(remote);  // an unmapping under a copy would end the fake
      link.deregisterMemory(local);
      std::memset(out->data(), 0x44, kBytes);
      link.awaitSent(kWrites);
      rank.barrier();
      for (size_t i = 0; i < kWrites; ++i)
        expect(findOther(in.data() + i * kBytes + 8, kBytes - 8, std::byte{0x33}) < 0, "write %zu is wrong", i);
      rank.barrier();
    });
  }
}

TEST_CASE("GPU memory: deregistering ends what the model still holds, from there and to there") {
  for (const char* contract : {"ordered", "completion"}) {
    for (const Mode mode : {Mode::threads, Mode::processes}) {
      runTwo(setupFor(contract, {{"MKERNEL_LOOPBACK_LATENCY_US", "100000"}}), mode, [](Rank& rank) {
        Link link(rank);
        Lane lane(link, 2);
        SharedMemory victim(4096);
        Bytes key;
        void* const local = link.registerMemory(victim.piece(), &key);
        const Bytes theirs = rank.allgather(key)[static_cast<size_t>(1 - rank.index)];
        if (rank.index == 0) {
          Write from = lane.write(0), to = lane.write(1);
          from.source = victim.data();
          from.localMemory = local;
          to.remoteMemory = link.importMemory(1, theirs);
          to.remoteOffset = 0;
          const auto posted = Clock::now();
          link.postAll(1, {from, to});
          link.deregisterMemory(local);
          rank.barrier();
          rank.barrier();
          const bool inTime = Clock::now() - posted < 50ms;  // else the machine is too busy to tell
          std::map<uint64_t, int> status;
          for (const auto deadline = rank.deadline(); status.size() < 2;) {
            expect(Clock::now() < deadline, "%zu completions", status.size());
            for (const Event& event : link.poll())
              if (event.kind == MK_EVENT_SENT) status[event.cookie] = event.status;
          }
          expect(status[0] == mkErrorTransport, "status %d of the write from there", status[0]);
          expect(!inTime || status[1] == mkErrorTransport, "status %d of the write to there", status[1]);
        } else {
          rank.barrier();
          link.deregisterMemory(local);
          rank.barrier();
        }
        rank.barrier();
        expect(lane.untouched(0), "the write from there has arrived");
        rank.barrier();
      });
    }
  }
}

TEST_CASE("GPU memory: a fault of the GPU fails the writes, and the endpoint closes") {
  runTwo(setupFor("completion"), Mode::processes, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 50);
    rank.barrier();
    if (rank.index == 0) {
      failAfter(20);
      std::map<int, size_t> statuses;
      size_t posted = 0, completed = 0, errors = 0;
      for (const auto deadline = rank.deadline(); completed < 50 || errors == 0;) {
        expect(Clock::now() < deadline, "%zu completions, %zu errors", completed, errors);
        if (posted < 50) {
          const Write write = lane.write(posted);
          posted += static_cast<size_t>(link.post(1, &write, 1));
        }
        for (const Event& event : link.poll()) {
          if (event.kind == MK_EVENT_SENT) ++completed, ++statuses[event.status];
          if (event.kind != MK_EVENT_ERROR) continue;
          ++errors;
          expect(event.peer == 1 && event.status == mkErrorTransport, "error of peer %d", event.peer);
          expect(std::strstr(link.table().lastError(), "CUDA_ERROR_ILLEGAL_ADDRESS") != nullptr, "the reason: %s",
                 link.table().lastError());
        }
      }
      expect(errors == 1 && statuses[mkSuccess] <= 20 && statuses[mkErrorTransport] == 50 - statuses[mkSuccess],
             "%zu errors, %zu successes", errors, statuses[mkSuccess]);
    }
    rank.barrier();
    link.close();
  });
}

}  // namespace
}  // namespace test
