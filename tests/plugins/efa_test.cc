// The efa transport: what loading libfabric does to the process, what is refused, how failures are told, and how endpoints
// end when peers do not help.  What every transport does is in efa_conformance_test.cc.
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "efa/control.h"
#include "efa_setup.h"
#include "lane.h"
#include "support/child.h"
#include "words.h"

namespace test {
namespace {

using namespace std::chrono_literals;

std::string logText() {
  std::string all;
  for (const std::string& line : takeLog()) all += line + "\n";
  return all;
}

// Why the plugin cannot be initialised; "" if it can.
std::string refusal(const Setup& setup) {
  try {
    const Plugin plugin(setup.path, setup.params);
    return "";
  } catch (const CheckFailed& failure) {
    return failure.what();
  }
}

void run(const Setup& setup, Mode mode, const std::function<void(Rank&)>& body) {
  REQUIRE_NOTHROW(runWorld(setup, mode, 2, body));
}

// ---- Loading -------------------------------------------------------------------------------------------------------

using Handlers = std::array<void (*)(int), _NSIG>;
Handlers handlers() {
  Handlers all = {};
  for (int signal = 1; signal < _NSIG; ++signal) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0) all[static_cast<size_t>(signal)] = action.sa_handler;
  }
  return all;
}

void ownHandler(int) {}

TEST_CASE("child: signal handlers", "[.]") {
  // Catch2 has handlers of its own while a case runs; these are the program's.
  signal(SIGTERM, ownHandler);
  signal(SIGBUS, ownHandler);
  const Handlers before = handlers();
  {
    // Not through efa_setup.h, which looks into libfabric itself: here it is loaded by the plugin first.
    setenv("MK_TEST_FABRIC", "handlers", 1);
    const Setup setup = {MK_TEST_EFA, {{"MKERNEL_EFA_PROVIDER", "shm"}, {"MKERNEL_EFA_LIBRARY", MK_TEST_FABRIC}}};
    const Plugin plugin(setup.path, setup.params);
    CHECK(handlers() == before);
    void* endpoint = nullptr;
    uint8_t address[MK_TRANSPORT_ADDRESS_BYTES];
    plugin.succeed(plugin.table().open(plugin.context(), 0, &endpoint, address), "open");
    CHECK(handlers() == before);
    plugin.succeed(plugin.table().close(endpoint), "close");
  }
  CHECK(handlers() == before);
  // The control: without the plugin's care they are replaced.
  void* object = dlopen(MK_TEST_FABRIC, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(object != nullptr);
  decltype(&::fi_getinfo) getinfo = nullptr;
  void* found = dlsym(object, "fi_getinfo");
  std::memcpy(&getinfo, &found, sizeof(getinfo));
  fi_info* list = nullptr;
  getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, nullptr, &list);
  CHECK(handlers() != before);
  signal(SIGTERM, SIG_DFL);
}

TEST_CASE("efa: signal handlers are the program's, whatever libfabric installs") {
  const Child child = runSelf("child: signal handlers", {});
  INFO(child.out << child.err);
  CHECK(child.status == 0);
}

TEST_CASE("efa: not usable, and why") {
  CHECK(missing(refusal(over("net", {{"MKERNEL_EFA_LIBRARY", "/nowhere/libfabric.so.1"}})),
                {"libfabric cannot be loaded: /nowhere/libfabric.so.1: cannot open"}) == "");
  CHECK(missing(refusal(over("net", {{"MKERNEL_EFA_LIBRARY", "libm.so.6"}})), {"exports no fi_getinfo"}) == "");
  CHECK(missing(refusal(over("nosuch")), {"provider nosuch (MKERNEL_EFA_PROVIDER): no device"}) == "");
  for (const char* const several : {"^tcp", "efa,shm"})
    CHECK(missing(refusal(over(several)), {std::string("MKERNEL_EFA_PROVIDER=") + several, "one provider's name"}) ==
          "");
  CHECK(missing(refusal(over("net", {{"MKERNEL_EFA_DOMAIN", "nosuch0"}})), {"a name in MKERNEL_EFA_DOMAIN"}) == "");
  CHECK(missing(refusal(over("net", {{"MKERNEL_EFA_OUTSTANDING", "0"}})),
                {"MKERNEL_EFA_OUTSTANDING=0: must be an integer from 1 to 4096"}) == "");
  CHECK(missing(refusal(modelled("net", "fixeddata")), {"8 bytes of data with each write"}) == "");
  if (access("/sys/class/infiniband", F_OK) != 0)
    CHECK(missing(refusal(over("efa")), {"provider efa (MKERNEL_EFA_PROVIDER): no device: No data available"}) == "");
}

TEST_CASE("efa: a message is as long as the provider's, and the log says what was found") {
  const Setup setup = modelled("efa", "efa,most=65536,version=20");
  takeLog();
  const Plugin plugin(setup.path, setup.params);
  CHECK(plugin.properties().maxBytes == 65536);
  CHECK(plugin.properties().contract == MK_CONTRACT_COMPLETION);
  CHECK(plugin.properties().immediateBits == 32);
  mkTransportDevice_t device = {};
  device.structSize = sizeof(device);
  plugin.succeed(plugin.table().deviceInfo(plugin.context(), 0, &device), "deviceInfo");
  CHECK(std::string(device.name) == "rdmap0s1-rdm");
  const std::string log = logText();
  INFO(log);
  CHECK(missing(log, {"provider efa (fabric efa-direct) of libfabric 1.20, built with "}) == "");
  CHECK(missing(log, {"writes up to 65536 bytes; the sender is told by its address"}) == "");
}

TEST_CASE("efa: whether writes are the device's own") {
  struct Case {
    const char *model, *words;
  };
  for (const Case& one : {Case{"efa,version=20", "writes native"}, Case{"efa,version=20,emulated", "writes emulated"},
                          Case{"efa,version=17", "libfabric does not say"}}) {
    takeLog();
    const Setup setup = modelled("efa", one.model);
    const Plugin plugin(setup.path, setup.params);
    void* endpoint = nullptr;
    uint8_t address[MK_TRANSPORT_ADDRESS_BYTES];
    plugin.succeed(plugin.table().open(plugin.context(), 0, &endpoint, address), "open");
    plugin.succeed(plugin.table().close(endpoint), "close");
    const std::string log = logText();
    INFO(one.model << ": " << log);
    CHECK(missing(log, {one.words}) == "");
  }
}

// ---- Order ---------------------------------------------------------------------------------------------------------

// How many arrivals come before one that was posted earlier.
void countOvertaking(Rank& rank, size_t slots, size_t least, size_t most) {
  Link link(rank);
  Lane lane(link, slots);
  if (rank.index == 0) {
    std::vector<Write> writes;
    for (size_t slot = 0; slot < slots; ++slot) writes.push_back(lane.write(slot));
    link.postAll(1, writes);
    link.awaitSent(slots);
    rank.barrier();
    return;
  }
  size_t overtaken = 0, count = 0;
  uint32_t highest = 0;
  for (const auto deadline = rank.deadline(); count < slots;) {
    expect(Clock::now() < deadline, "%zu of %zu arrivals have not come: lost", slots - count, slots);
    for (const Event& event : link.poll()) {
      expect(event.kind == MK_EVENT_ARRIVED, "event of kind %u", event.kind);
      expect(lane.payloadIsThere(event.immediate), "slot %u arrives before its payload", event.immediate);
      overtaken += event.immediate < highest ? 1 : 0;
      highest = std::max(highest, event.immediate);
      ++count;
    }
  }
  rank.barrier();
  expect(overtaken >= least && overtaken <= most, "%zu of %zu arrivals were overtaken", overtaken, slots);
}

TEST_CASE("efa: the test's libfabric reorders, and nothing minds") {
  run(over("net"), Mode::processes, [](Rank& rank) { countOvertaking(rank, 1000, 0, 0); });
  run(modelled("net", "shuffle"), Mode::processes, [](Rank& rank) { countOvertaking(rank, 1000, 300, 1000); });
}

// ---- Receivers that do not poll --------------------------------------------------------------------------------------

// Rank 0 writes many times what rank 1's completion queue has room for, while rank 1 is away.
void writeMeanwhile(Rank& rank, const std::function<void()>& away, const std::function<void(pid_t)>& comeBack) {
  constexpr size_t kSlots = 3000;
  Link link(rank);
  Lane lane(link, kSlots);
  const pid_t own = getpid();
  Bytes mine(sizeof(own));
  std::memcpy(mine.data(), &own, sizeof(own));
  pid_t other = 0;
  std::memcpy(&other, rank.allgather(mine)[1].data(), sizeof(other));
  if (rank.index == 0) {
    size_t posted = 0, sent = 0;
    const auto deadline = rank.deadline();
    bool back = false;
    for (const auto end = Clock::now() + 400ms; sent < kSlots;) {
      expect(Clock::now() < deadline, "%zu of %zu completions have not come: lost", kSlots - sent, kSlots);
      if (!back && Clock::now() >= end) {
        comeBack(other);
        back = true;
      }
      if (posted < kSlots) {
        const Write write = lane.write(posted);
        posted += static_cast<size_t>(link.post(1, &write, 1));
      }
      for (const Event& event : link.poll()) {
        expect(event.kind == MK_EVENT_SENT && event.status == mkSuccess, "event of kind %u, status %d: %s", event.kind,
               event.status, link.table().lastError());
        ++sent;
      }
    }
    if (!back) comeBack(other);
    rank.barrier();
    return;
  }
  away();
  std::vector<bool> seen(kSlots);
  size_t count = 0;
  for (const auto deadline = rank.deadline(); count < kSlots;) {
    expect(Clock::now() < deadline, "%zu of %zu arrivals have not come: lost", kSlots - count, kSlots);
    for (const Event& event : link.poll()) {
      expect(event.kind == MK_EVENT_ARRIVED && event.immediate < kSlots, "event of kind %u: %s", event.kind,
             link.table().lastError());
      expect(lane.payloadIsThere(event.immediate), "slot %u arrives before its payload", event.immediate);
      if (!seen[event.immediate]) ++count;
      seen[event.immediate] = true;
    }
  }
  rank.barrier();
}

Setup shortQueue() { return modelled("efa", "efa,offload,queue=128"); }

TEST_CASE("efa: the receiver's thread is away, and its completion queue short") {
  run(shortQueue(), Mode::processes, [](Rank& rank) {
    writeMeanwhile(
        rank, [] { std::this_thread::sleep_for(500ms); }, [](pid_t) {});
  });
}

TEST_CASE("efa: the receiver's process is stopped, and its completion queue short") {
  run(shortQueue(), Mode::processes, [](Rank& rank) {
    writeMeanwhile(
        rank, [] { raise(SIGSTOP); }, [](pid_t other) { kill(other, SIGCONT); });
  });
}

// ---- Failures ------------------------------------------------------------------------------------------------------

TEST_CASE("efa: an entry of the error queue fails its write, and names the peer and the provider's words") {
  run(modelled("efa", "efa,fail=5"), Mode::processes, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 40);
    if (rank.index == 0) {
      std::vector<Write> writes;
      for (size_t slot = 0; slot < 20; ++slot) writes.push_back(lane.write(slot));
      link.postAll(1, writes);
      size_t good = 0, bad = 0;
      std::string reason;
      for (const auto deadline = rank.deadline(); good + bad < 20 || reason.empty();) {
        expect(Clock::now() < deadline, "%zu completions and \"%s\"", good + bad, reason.c_str());
        for (const Event& event : link.poll()) {
          if (event.kind == MK_EVENT_ERROR) {
            expect(event.peer == 1 && event.status == mkErrorTransport, "error of peer %d, status %d", event.peer,
                   event.status);
            reason = link.table().lastError();
          } else {
            (event.status == mkSuccess ? good : bad)++;
          }
        }
      }
      expect(bad >= 1, "no write has failed");
      expect(
          reason.find("a write of 48 bytes to peer 1 (") != reason.npos &&
              reason.find("Input/output error (-5); provider's code 13: code 13 of the test's device") != reason.npos,
          "the reason: %s", reason.c_str());
      // Nothing succeeds any more.
      const Write late = lane.write(30);
      link.post(1, &late, 1);
      for (bool told = false; !told;)
        for (const Event& event : link.poll())
          if (event.kind == MK_EVENT_SENT) {
            expect(event.cookie == 30 && event.status == mkErrorTransport, "status %d", event.status);
            told = true;
          }
    }
    rank.barrier();
  });
}

TEST_CASE("efa: a completion queue that has overflowed is the end of the device") {
  run(modelled("efa", "efa,overrun=10"), Mode::processes, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 40);
    if (rank.index == 0) {
      std::vector<Write> writes;
      for (size_t slot = 0; slot < 40; ++slot) writes.push_back(lane.write(slot));
      link.postAll(1, writes);
      size_t told = 0;
      std::string reason;
      for (const auto deadline = rank.deadline(); told < 40 || reason.empty();) {
        expect(Clock::now() < deadline, "%zu completions and \"%s\"", told, reason.c_str());
        for (const Event& event : link.poll()) {
          if (event.kind == MK_EVENT_SENT) ++told;
          if (event.kind != MK_EVENT_ERROR) continue;
          expect(event.peer == -1, "error of peer %d", event.peer);
          reason = link.table().lastError();
        }
      }
      expect(reason.find("completion queue of") != reason.npos && reason.find("has overflowed") != reason.npos,
             "the reason: %s", reason.c_str());
    }
    rank.barrier();
    // Closing does not wait for what cannot come; and what does still come must find its memory.
    link.close();
  });
}

TEST_CASE("efa: memory and endpoint are given up although a peer stands still") {
  run(over("net", {{"MKERNEL_TEARDOWN_TIMEOUT_MS", "300"}}), Mode::processes, [](Rank& rank) {
    Link link(rank);
    constexpr size_t kBytes = 16 << 20;
    SharedMemory in(kBytes), out(kBytes);
    Bytes unused;
    void* const local = link.registerMemory(out.piece(), &unused);
    void* const remote = link.share(in.piece())[static_cast<size_t>(1 - rank.index)];
    const pid_t own = getpid();
    Bytes mine(sizeof(own));
    std::memcpy(mine.data(), &own, sizeof(own));
    pid_t other = 0;
    std::memcpy(&other, rank.allgather(mine)[1].data(), sizeof(other));
    // Some providers connect with the first write.
    Write write = {};
    write.source = out.data();
    write.localMemory = local;
    write.remoteMemory = remote;
    write.bytes = 8;
    write.immediate = 1;
    link.postAll(1 - rank.index, {write});
    link.awaitNotification(1 - rank.index, 1, in.data());
    rank.barrier();
    if (rank.index == 1) {
      raise(SIGSTOP);
      rank.barrier();
      link.close();  // before the memory goes, which is half written
      return;
    }
    std::this_thread::sleep_for(100ms);
    write.bytes = kBytes;
    for (int i = 0; i < 4; ++i) expect(link.post(1, &write, 1) == 1, "a write is not taken");
    const auto begin = Clock::now();
    const int result = link.table().deregisterMemory(link.endpoint(), local);
    const std::string reason = link.table().lastError();
    expect(result == mkErrorTimeout && reason.find("still under way after 300 ms") != reason.npos,
           "deregisterMemory: result %d, %s", result, reason.c_str());
    takeLog();
    link.close();
    const auto took = Clock::now() - begin;
    kill(other, SIGCONT);
    expect(took >= 600ms && took < 15s, "deregisterMemory and close took %lld ms",
           static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
    const std::string log = logText();
    expect(log.find("writes under way have not completed within 300 ms") != log.npos, "the log: %s", log.c_str());
    rank.barrier();
  });
}

// ---- Memory of a GPU -------------------------------------------------------------------------------------------------

// One write from and to memory that is registered as a GPU's; what the log says of it.
void useGpuMemory(Rank& rank, const char* words) {
  Link link(rank);
  SharedMemory memory(8192);
  mkTransportMemory_t piece = memory.piece();
  piece.kind = MK_MEMORY_KIND_CUDA;
  takeLog();
  const std::vector<void*> shared = link.share(piece);
  const std::string log = logText();
  expect(log.find(words) != log.npos, "the log: %s", log.c_str());
  std::memset(memory.data(), rank.index + 1, 4096);
  rank.barrier();
  Write write = {};
  write.source = memory.data();
  write.localMemory = shared[static_cast<size_t>(rank.index)];
  write.remoteMemory = shared[static_cast<size_t>(1 - rank.index)];
  write.remoteOffset = 4096;
  write.bytes = 4000;
  write.immediate = 5;
  link.postAll(1 - rank.index, {write});
  link.awaitNotification(1 - rank.index, 5, memory.data());
  expect(findOther(memory.data() + 4096, 4000, static_cast<std::byte>(2 - rank.index)) < 0, "the payload is wrong");
  rank.barrier();
}

// What the library takes for "through host memory, then", and why.
void refuseGpuMemory(Rank& rank, std::initializer_list<const char*> words) {
  Link link(rank);
  SharedMemory memory(4096);
  mkTransportMemory_t piece = memory.piece();
  piece.kind = MK_MEMORY_KIND_CUDA;
  void* handle = nullptr;
  uint8_t key[MK_TRANSPORT_KEY_BYTES];
  const int result = link.table().registerMemory(link.endpoint(), &piece, &handle, key);
  const std::string reason = link.table().lastError();
  expect(result == mkErrorNotSupported, "memory of a GPU: result %d: %s", result, reason.c_str());
  for (const char* word : words) expect(reason.find(word) != reason.npos, "the reason: %s", reason.c_str());
  // Host memory still is.
  link.share(memory.piece());
  rank.barrier();
}

TEST_CASE("efa: memory of a GPU: as a DMA-BUF, else through the driver, else not") {
  run(modelled("efa", "efa,version=20"), Mode::processes, [](Rank& rank) { refuseGpuMemory(rank, {"FI_HMEM"}); });
  void* driver = dlopen(MK_TEST_CUDA, RTLD_NOW | RTLD_LOCAL);
  INFO((driver == nullptr ? dlerror() : ""));
  REQUIRE(driver != nullptr);
  run(modelled("efa", "efa,version=20"), Mode::processes,
      [](Rank& rank) { useGpuMemory(rank, "8192 bytes of GPU memory registered through DMA-BUF"); });
  run(modelled("efa", "efa,version=20,nodmabuf"), Mode::processes,
      [](Rank& rank) { useGpuMemory(rank, "not as a DMA-BUF: fi_mr_regattr (DMA-BUF): Operation not supported"); });
  run(modelled("efa", "efa,version=19"), Mode::processes,
      [](Rank& rank) { useGpuMemory(rank, "not as a DMA-BUF: libfabric is older than 1.20"); });
  run(modelled("efa", "efa,version=20,nogpu"), Mode::processes, [](Rank& rank) {
    refuseGpuMemory(rank, {"as a DMA-BUF: fi_mr_regattr (DMA-BUF): Invalid",
                           "through the driver: fi_mr_regattr: Invalid", "pinned host memory"});
  });
  run(modelled("efa", "efa,version=19,nogpu"), Mode::processes, [](Rank& rank) {
    refuseGpuMemory(rank, {"libfabric is older than 1.20", "through the driver: "});
  });
  dlclose(driver);
}

// ---- Strangers -------------------------------------------------------------------------------------------------------

TEST_CASE("efa: who connects without the secret is dropped, and holds nobody up") {
  run(over("net"), Mode::threads, [](Rank& rank) {
    const mkTransport_t& table = rank.plugin.table();
    void* endpoint = nullptr;
    Bytes address(MK_TRANSPORT_ADDRESS_BYTES);
    rank.plugin.succeed(table.open(rank.plugin.context(), 0, &endpoint, address.data()), "open");
    const std::vector<Bytes> given = rank.allgather(address);
    Bytes all;
    for (const Bytes& one : given) all.insert(all.end(), one.begin(), one.end());
    // The listener is rank 1's: one that says nothing, one that says nonsense, one with a wrong secret, one that leaves.
    std::vector<mk::plugin::UniqueFd> strangers;
    if (rank.index == 0) {
      mk::plugin::efa::Address there = {};
      std::memcpy(&there, given[1].data(), sizeof(there));
      sockaddr_in target = {};
      target.sin_family = AF_INET;
      target.sin_port = htons(static_cast<uint16_t>(there.port));
      target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      mk::plugin::efa::Message hello = {};
      hello.magic = mk::plugin::efa::kMagic;
      hello.type = mk::plugin::efa::MessageType::hello;
      hello.b = 2;
      for (int i = 0; i < 4; ++i) {
        const int fd = strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).get();
        expect(connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0,
               "the listener is not there");
        if (i == 1)
          expect(send(fd, "GET / HTTP/1.1\r\nHost: somebody.example\r\nAccept: */*\r\n\r\n", 56, MSG_NOSIGNAL) == 56,
                 "send");
        if (i == 2) expect(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello), "send");
        if (i == 3) strangers.pop_back();
      }
    }
    rank.barrier();
    if (rank.index == 0) takeLog();
    rank.barrier();
    rank.plugin.succeed(table.connect(endpoint, 2, rank.index, all.data(), rank.setup.waitMs), "connect");
    rank.barrier();
    if (rank.index == 1) {
      const std::string log = logText();
      expect(log.find("dropped a connection: wrong secret") != log.npos, "the log: %s", log.c_str());
    }
    rank.barrier();
    rank.plugin.succeed(table.close(endpoint), "close");
  });
}

}  // namespace
}  // namespace test
