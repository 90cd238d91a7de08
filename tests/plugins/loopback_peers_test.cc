// The loopback transport: memory between processes, and who may connect.  What every transport does is in conformance_test.cc.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lane.h"
#include "words.h"

namespace test {
namespace {

using namespace std::chrono_literals;

const char* const kLoopback = MK_TEST_LOOPBACK;

// ---- Memory --------------------------------------------------------------------------------------------------------

TEST_CASE("loopback: memory without a descriptor can be written from its own process only") {
  const auto body = [](Rank& rank) {
    Link link(rank);
    SharedMemory memory(4096);
    mkTransportMemory_t piece = memory.piece();
    piece.fd = -1;
    piece.fdOffset = 0;
    Bytes key;
    link.registerMemory(piece, &key);
    const Bytes theirs = rank.allgather(key)[static_cast<size_t>(1 - rank.index)];
    void* remote = nullptr;
    const int result = link.table().importMemory(link.endpoint(), 1 - rank.index, theirs.data(), 1000, &remote);
    const bool threads = rank.setup.params.count("threads") != 0;
    expect(result == (threads ? mkSuccess : mkErrorNotRegistered), "result %d", result);
    expect(threads || std::strstr(link.table().lastError(), "without a descriptor") != nullptr, "the reason: %s",
           link.table().lastError());
    rank.barrier();
  };
  runLoopback({{"threads", ""}}, Mode::threads, 2, body);
  runLoopback({}, Mode::processes, 2, body);
}

TEST_CASE("loopback: memory that its descriptor does not hold is refused") {
  runLoopback({}, Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    SharedMemory memory(8192);
    mkTransportMemory_t piece = memory.piece();
    void* handle = nullptr;
    uint8_t key[MK_TRANSPORT_KEY_BYTES];
    const auto refused = [&](const char* words) {
      expect(link.table().registerMemory(link.endpoint(), &piece, &handle, key) == mkErrorInvalidArgument, "taken: %s",
             words);
      expect(std::strstr(link.table().lastError(), words) != nullptr, "the reason: %s", link.table().lastError());
    };
    piece.bytes = 8193;
    refused("ends beyond its descriptor");
    piece.bytes = 100;
    piece.fdOffset = 8;
    refused("is not mapped from offset 8");
    rank.barrier();
  });
}

TEST_CASE("loopback: CUDA memory without a driver is refused, and host memory is not concerned") {
  if (void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); driver != nullptr) {
    dlclose(driver);
    MK_SKIP_TEST("there is a CUDA driver here");
  }
  runLoopback({}, Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    SharedMemory memory(4096);
    mkTransportMemory_t piece = memory.piece();
    piece.kind = MK_MEMORY_KIND_CUDA;
    void* handle = nullptr;
    uint8_t key[MK_TRANSPORT_KEY_BYTES];
    expect(link.table().registerMemory(link.endpoint(), &piece, &handle, key) == mkErrorNotSupported, "taken");
    expect(std::strstr(link.table().lastError(), "needs the NVIDIA driver's library") != nullptr &&
               std::strstr(link.table().lastError(), "libcuda.so.1") != nullptr,
           "the reason: %s", link.table().lastError());
    Bytes unused;
    link.registerMemory(memory.piece(), &unused);
    rank.barrier();
  });
}

TEST_CASE("loopback: handles that have ended name nothing") {
  runLoopback({}, Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 1);
    SharedMemory more(4096);
    Bytes key;
    void* const local = link.registerMemory(more.piece(), &key);
    void* const remote = link.importMemory(1 - rank.index, rank.allgather(key)[static_cast<size_t>(1 - rank.index)]);
    link.releaseMemory(remote);
    rank.barrier();
    link.deregisterMemory(local);
    int accepted = 0;
    Write write = lane.write(0);
    write.localMemory = local;
    expect(link.table().post(link.endpoint(), 1 - rank.index, &write, 1, &accepted) == mkErrorInvalidArgument,
           "source");
    write = lane.write(0);
    write.remoteMemory = remote;
    expect(link.table().post(link.endpoint(), 1 - rank.index, &write, 1, &accepted) == mkErrorInvalidArgument,
           "destination");
    expect(link.table().deregisterMemory(link.endpoint(), local) == mkErrorInvalidArgument, "deregistered twice");
    expect(link.table().releaseMemory(link.endpoint(), remote) == mkErrorInvalidArgument, "released twice");
    rank.barrier();
  });
}

TEST_CASE("loopback: deregistering ends what is under way from there and to there") {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    runLoopback({{"MKERNEL_LOOPBACK_LATENCY_US", "20000"}}, mode, 2, [](Rank& rank) {
      Link link(rank);
      Lane lane(link, 2);
      SharedMemory victim(4096);
      Bytes key;
      void* const local = link.registerMemory(victim.piece(), &key);
      const Bytes theirs = rank.allgather(key)[static_cast<size_t>(1 - rank.index)];
      if (rank.index == 0) {
        void* const remote = link.importMemory(1, theirs);
        Write from = lane.write(0), to = lane.write(1);
        from.source = victim.data();
        from.localMemory = local;
        to.remoteMemory = remote;
        to.remoteOffset = 0;
        link.postAll(1, {from, to});
        link.deregisterMemory(local);
      }
      rank.barrier();
      if (rank.index == 1) link.deregisterMemory(local);
      rank.barrier();
      if (rank.index == 0) {
        std::map<uint64_t, int> status;
        bool error = false;
        for (const auto deadline = rank.deadline(); status.size() < 2 || !error;) {
          expect(Clock::now() < deadline, "%zu completions, %d errors", status.size(), error);
          for (const Event& event : link.poll()) {
            if (event.kind == MK_EVENT_SENT) status[event.cookie] = event.status;
            error |= event.kind == MK_EVENT_ERROR;
          }
        }
        expect(status[0] == mkErrorTransport && status[1] == mkErrorTransport, "status %d and %d", status[0],
               status[1]);
      }
      rank.barrier();
      expect(lane.untouched(0) && lane.untouched(1), "a flag was raised all the same");
      expect(findOther(victim.data(), victim.bytes(), std::byte{0}) < 0, "memory was written after its deregistration");
      rank.barrier();
    });
  }
}

TEST_CASE("loopback: a peer that is in no call holds up no registration") {
  runLoopback({}, Mode::processes, 2, [](Rank& rank) {
    Link link(rank);
    SharedMemory memory(4096);
    Bytes key;
    if (rank.index == 0) {
      // Far more than the socket takes.
      std::vector<void*> handles;
      for (int i = 0; i < 1500; ++i) {
        handles.push_back(link.registerMemory(memory.piece(), &key));
        if (i % 2 == 0) link.deregisterMemory(handles.back());
      }
    }
    const Bytes last = rank.allgather(key)[0];
    if (rank.index == 1) link.importMemory(0, last);
    // Meanwhile the owner does something now and then, as a proxy does.
    if (rank.index == 0) link.pollFor(300ms);
    rank.barrier();
  });
}

// ---- Connecting ----------------------------------------------------------------------------------------------------

// The abstract name of the socket behind an address.
std::string nameIn(const uint8_t* address) {
  const char* const begin = "mkernel-loopback-";
  const uint8_t* const end = address + MK_TRANSPORT_ADDRESS_BYTES;
  const uint8_t* const found = std::search(address, end, begin, begin + std::strlen(begin));
  expect(found != end, "no name in the address");
  return reinterpret_cast<const char*>(found);
}

int strayTo(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  expect(fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0, "no stray connection");
  return fd;
}

TEST_CASE("loopback: stray connections are dropped and hold nobody up") {
  takeLog();
  const Plugin plugin(kLoopback, {});
  void* endpoints[2];
  std::vector<uint8_t> addresses(2 * MK_TRANSPORT_ADDRESS_BYTES);
  for (size_t i = 0; i < 2; ++i)
    plugin.succeed(
        plugin.table().open(plugin.context(), 0, &endpoints[i], addresses.data() + i * MK_TRANSPORT_ADDRESS_BYTES),
        "open");
  std::vector<int> strays;
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = nameIn(addresses.data() + i * MK_TRANSPORT_ADDRESS_BYTES);
    for (int kind = 0; kind < 4; ++kind) {
      const int fd = strayTo(name);
      std::vector<uint8_t> noise(kind == 1 ? 17 : 128, 0x42);
      const uint32_t magic = 0x6d6b4c42, hello = 1;
      if (kind == 2) {  // well formed, but without the secret
        std::memcpy(noise.data(), &magic, sizeof(magic));
        std::memcpy(noise.data() + 4, &hello, sizeof(hello));
        noise.resize(80);
      }
      if (kind > 0) CHECK(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(noise.size()));
      strays.push_back(fd);  // kind 0 says nothing, and all stay open
    }
  }
  int results[2] = {-1, -1};
  const auto start = Clock::now();
  std::thread other([&] { results[1] = plugin.table().connect(endpoints[1], 2, 1, addresses.data(), 5000); });
  results[0] = plugin.table().connect(endpoints[0], 2, 0, addresses.data(), 5000);
  other.join();
  CHECK(results[0] == mkSuccess);
  CHECK(results[1] == mkSuccess);
  CHECK(Clock::now() - start < 1500ms);
  for (void* endpoint : endpoints) CHECK(plugin.table().close(endpoint) == mkSuccess);
  for (const int fd : strays) close(fd);
  size_t wrongSecret = 0, noHello = 0;
  for (const std::string& line : takeLog()) {
    wrongSecret += line.find("wrong secret") != line.npos;
    noHello += line.find("sent no hello") != line.npos;
  }
  CHECK(wrongSecret == 2);
  CHECK(noHello == 4);
}

TEST_CASE("loopback: who does not connect is named") {
  const Plugin plugin(kLoopback, {});
  void* endpoints[2];
  std::vector<uint8_t> addresses(2 * MK_TRANSPORT_ADDRESS_BYTES);
  for (size_t i = 0; i < 2; ++i)
    plugin.succeed(
        plugin.table().open(plugin.context(), 0, &endpoints[i], addresses.data() + i * MK_TRANSPORT_ADDRESS_BYTES),
        "open");
  // A write before connect is a fault of the caller.
  int accepted = 0;
  CHECK(plugin.table().post(endpoints[0], 1, nullptr, 0, &accepted) == mkErrorInvalidUsage);
  SECTION("it is late") {
    CHECK(plugin.table().connect(endpoints[0], 2, 0, addresses.data(), 60) == mkErrorTimeout);
    CHECK(missing(plugin.table().lastError(),
                  {"peer 1 (process " + std::to_string(getpid()) + ") has not connected"}) == "");
    CHECK(plugin.table().close(endpoints[1]) == mkSuccess);
  }
  SECTION("it has closed") {
    CHECK(plugin.table().close(endpoints[1]) == mkSuccess);
    CHECK(plugin.table().connect(endpoints[0], 2, 0, addresses.data(), 5000) == mkErrorRemote);
    CHECK(missing(plugin.table().lastError(), {"peer 1"}) == "");
  }
  SECTION("the list is wrong") {
    CHECK(plugin.table().connect(endpoints[0], 2, 1, addresses.data(), 5000) == mkErrorInvalidArgument);
    CHECK(plugin.table().connect(endpoints[1], 2, 2, addresses.data(), 5000) == mkErrorInvalidArgument);
    addresses[0] ^= 1;
    CHECK(plugin.table().connect(endpoints[1], 2, 1, addresses.data(), 5000) == mkErrorInvalidArgument);
    CHECK(missing(plugin.table().lastError(), {"address 0 of 2"}) == "");
    CHECK(plugin.table().close(endpoints[1]) == mkSuccess);
  }
  CHECK(plugin.table().close(endpoints[0]) == mkSuccess);
}

TEST_CASE("loopback: peers with another contract are refused") {
  const Plugin first(kLoopback, {}), second(kLoopback, {{"MKERNEL_LOOPBACK_CONTRACT", "completion"}});
  void* endpoints[2];
  std::vector<uint8_t> addresses(2 * MK_TRANSPORT_ADDRESS_BYTES);
  first.succeed(first.table().open(first.context(), 0, &endpoints[0], addresses.data()), "open");
  second.succeed(second.table().open(second.context(), 0, &endpoints[1], addresses.data() + MK_TRANSPORT_ADDRESS_BYTES),
                 "open");
  CHECK(first.table().connect(endpoints[0], 2, 0, addresses.data(), 1000) == mkErrorInvalidUsage);
  CHECK(missing(first.table().lastError(), {"MKERNEL_LOOPBACK_CONTRACT must agree"}) == "");
  CHECK(first.table().close(endpoints[0]) == mkSuccess);
  CHECK(second.table().close(endpoints[1]) == mkSuccess);
}

}  // namespace
}  // namespace test
