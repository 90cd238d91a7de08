// Conformance: what is refused, and how endpoints end.  See conformance.h.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "conformance.h"
#include "link.h"

namespace test {

using namespace std::chrono_literals;

namespace {

constexpr std::byte kGuard{0xa5};

size_t openDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

size_t sharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != std::string::npos;
  return count;
}

// A small area on every rank: 8 bytes for a flag, then payload, all else guard.
class Area {
 public:
  explicit Area(Link& link) : link_(link), in_(kBytes), out_(kBytes) {
    std::memset(in_.data(), static_cast<int>(kGuard), kBytes);
    std::memset(out_.data(), 0x77, kBytes);
    std::memset(in_.data(), 0, 8);
    Bytes unused;
    local_ = link.registerMemory(out_.piece(), &unused);
    remotes_ = link.share(in_.piece());
  }

  static constexpr size_t kBytes = 8192;
  Write write(int peer) const {
    Write write = {};
    write.source = out_.data() + 100;
    write.localMemory = local_;
    write.remoteMemory = write.flagMemory = remotes_[static_cast<size_t>(peer)];
    write.remoteOffset = 200;
    write.bytes = 300;
    write.flagValue = 1;
    write.immediate = 1;
    return write;
  }
  void* remote(int peer) const { return remotes_[static_cast<size_t>(peer)]; }
  mkTransportMemory_t piece() const { return in_.piece(); }
  std::byte* in() { return in_.data(); }
  const std::byte* out() const { return out_.data(); }
  bool untouched() const {
    return findOther(in_.data(), 8, std::byte{0}) < 0 && findOther(in_.data() + 8, kBytes - 8, kGuard) < 0;
  }

  // One write each way between this rank and the peer, which calls it too.
  void exchange(int peer, uint32_t value) {
    Write one = write(peer);
    one.flagValue = one.immediate = value;
    link_.postAll(peer, {one});
    link_.awaitNotification(peer, value, in_.data());
    expect(findOther(in_.data() + 200, 300, std::byte{0x77}) < 0, "payload from peer %d is wrong", peer);
  }

 private:
  Link& link_;
  SharedMemory in_, out_;
  void* local_ = nullptr;
  std::vector<void*> remotes_;
};

// A write to a peer that is gone is an error: of the call, or of the write's completion.
void expectWriteFails(Link& link, int peer, const Write& write) {
  int accepted = 0;
  const auto deadline = link.rank().deadline();
  if (link.table().post(link.endpoint(), peer, &write, 1, &accepted) != mkSuccess) return;
  for (;;) {
    for (const Event& event : link.poll()) {
      if (event.kind == MK_EVENT_ERROR && event.peer == peer) return;
      if (event.kind != MK_EVENT_SENT || event.peer != peer) continue;
      expect(event.status != mkSuccess, "a write to peer %d, which is gone, has succeeded", peer);
      return;
    }
    expect(Clock::now() < deadline, "a write to peer %d, which is gone, neither completes nor fails", peer);
  }
}

}  // namespace

void checkRefusals(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 3, [](Rank& rank) {
    Link link(rank);
    Area area(link);
    const auto& properties = rank.plugin.properties();
    if (rank.index == 0) {
      using Spoil = std::function<void(Write&)>;
      const uint64_t room = Area::kBytes;
      std::vector<std::pair<const char*, Spoil>> cases = {
          {"source before its memory", [&](Write& w) { w.source = area.out() - 1; }},
          {"source ends behind its memory", [&](Write& w) { w.source = area.out() + room - 299; }},
          {"source behind its memory", [&](Write& w) { w.source = area.out() + room + 4096; }},
          {"destination ends behind its memory", [&](Write& w) { w.remoteOffset = room - 299; }},
          {"destination behind its memory", [&](Write& w) { w.remoteOffset = room + 1; }},
          {"destination that wraps", [](Write& w) { w.remoteOffset = ~uint64_t{0} - 100; }},
          {"length that wraps", [](Write& w) { w.bytes = ~uint64_t{0} - 100; }},
          {"more than maxBytes", [&](Write& w) { w.bytes = properties.maxBytes + 1; }},
          {"no source memory", [](Write& w) { w.localMemory = nullptr; }},
          {"no destination memory", [](Write& w) { w.remoteMemory = nullptr; }},
          {"another peer's memory", [&](Write& w) { w.remoteMemory = area.remote(2); }},
      };
      if (link.ordered()) {
        cases.emplace_back("misaligned flag", [](Write& w) { w.flagOffset = 4; });
        cases.emplace_back("flag behind its memory", [&](Write& w) { w.flagOffset = room; });
        cases.emplace_back("flag that wraps", [](Write& w) { w.flagOffset = ~uint64_t{7}; });
        cases.emplace_back("no flag memory", [](Write& w) { w.flagMemory = nullptr; });
        cases.emplace_back("another peer's flag memory", [&](Write& w) { w.flagMemory = area.remote(2); });
      }
      const auto refused = [&](const char* what, int peer, const Write* writes, int count) {
        int accepted = -1;
        const int result = link.table().post(link.endpoint(), peer, writes, count, &accepted);
        expect(result == mkErrorInvalidArgument, "%s: result %d, must be %d", what, result, mkErrorInvalidArgument);
        expect(accepted <= 0, "%s: refused, yet %d accepted", what, accepted);
        expect(*link.table().lastError() != '\0', "%s: refused without a reason", what);
      };
      for (const auto& [what, spoil] : cases) {
        Write pair[2] = {area.write(1), area.write(1)};
        spoil(pair[1]);
        refused(what, 1, &pair[1], 1);
        refused(what, 1, pair, 2);  // the good one before it does not go either
      }
      const Write good = area.write(1);
      for (const int peer : {-1, 3, 1000000, 0}) refused("peer out of range, or oneself", peer, &good, 1);
      expect(link.pollFor(20ms).empty(), "refused writes cause events");
    }
    rank.barrier();
    std::this_thread::sleep_for(10ms);
    expect(area.untouched(), "a refused write has written");
    rank.barrier();
    if (rank.index != 2) area.exchange(1 - rank.index, 5);  // the connection has not suffered
    rank.barrier();

    // Memory: what makes no sense is refused, and keys are a peer's own.
    mkTransportMemory_t memory = {};
    memory.structSize = sizeof(memory);
    memory.kind = 999;
    memory.address = area.in();
    memory.bytes = 100;
    memory.fd = -1;
    void* handle = nullptr;
    uint8_t key[MK_TRANSPORT_KEY_BYTES] = {};
    expect(link.table().registerMemory(link.endpoint(), &memory, &handle, key) != mkSuccess,
           "memory of kind 999 taken");
    memory.kind = MK_MEMORY_KIND_HOST;
    memory.bytes = 0;
    expect(link.table().registerMemory(link.endpoint(), &memory, &handle, key) != mkSuccess, "0 bytes of memory taken");
    Bytes own;
    link.registerMemory(area.piece(), &own);
    const std::vector<Bytes> keys = rank.allgather(own);
    const int next = (rank.index + 1) % 3, other = (rank.index + 2) % 3;
    expect(link.table().importMemory(link.endpoint(), next, keys[static_cast<size_t>(other)].data(), 50, &handle) !=
               mkSuccess,
           "a key of peer %d is taken for one of peer %d", other, next);
    expect(link.table().importMemory(link.endpoint(), next, key, 50, &handle) != mkSuccess, "a key of zeros is taken");
    rank.barrier();
  });
}

void checkOrderlyClose(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 3, [](Rank& rank) {
    Link link(rank);
    Area area(link);
    rank.barrier();
    if (rank.index == 1) {
      link.close();
      rank.barrier();
      return;
    }
    rank.barrier();
    for (const Event& event : link.pollFor(30ms))
      expect(event.kind != MK_EVENT_ERROR, "a peer that closed in order, with nothing posted, is an error");
    rank.barrier();
    area.exchange(2 - rank.index, 9);
    expectWriteFails(link, 1, area.write(1));
    // The others are not concerned.
    rank.barrier();
    area.exchange(2 - rank.index, 10);
    rank.barrier();
  });
}

void checkCloseWithWork(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    constexpr size_t kBytes = 1 << 20, kWrites = 16;
    SharedMemory in(kBytes * kWrites), out(kBytes);
    std::memset(out.data(), 0x33, kBytes);
    Bytes unused;
    void* const local = link.registerMemory(out.piece(), &unused);
    void* const remote = link.share(in.piece())[static_cast<size_t>(1 - rank.index)];
    if (rank.index == 0) {
      for (size_t i = 0; i < kWrites; ++i) {
        Write write = {};
        write.source = out.data() + 8;
        write.localMemory = local;
        write.remoteMemory = write.flagMemory = remote;
        write.remoteOffset = i * kBytes + 8;
        write.flagOffset = i * kBytes;
        write.flagValue = write.immediate = 1;
        write.bytes = kBytes - 8;
        link.post(1, &write, 1);
      }
      link.close();
      // A source that is written, or unmapped, does not matter any more either.
      std::memset(out.data(), 0x44, kBytes);
      rank.barrier();
    } else {
      rank.barrier();
      const std::vector<std::byte> then(in.data(), in.data() + in.bytes());
      link.pollFor(40ms);
      expect(std::equal(then.begin(), then.end(), in.data()), "memory is written after its writer's close");
      expect(std::find(then.begin(), then.end(), std::byte{0x44}) == then.end(), "a source is read after close");
    }
    rank.barrier();
  });
}

void checkCycles(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [mode](Rank& rank) {
    size_t descriptors = 0, mappings = 0;
    for (int cycle = 0; cycle < 12; ++cycle) {
      {
        Link link(rank);
        Area area(link);
        area.exchange(1 - rank.index, static_cast<uint32_t>(cycle) + 1);
        rank.barrier();
        // What is left is freed by close; every other time, not everything is.
        if (cycle % 2 == 0) link.releaseMemory(area.remote(1 - rank.index));
        link.close();
      }
      rank.barrier();
      // Counting opens one itself, so between threads one rank counts for all.
      if (mode == Mode::threads && rank.index != 0) {
        rank.barrier();
        continue;
      }
      const size_t descriptorsNow = openDescriptors(), mappingsNow = sharedMappings();
      if (cycle == 1) descriptors = descriptorsNow, mappings = mappingsNow;
      expect(cycle < 2 || descriptorsNow == descriptors, "%zu descriptors are open after %d cycles, %zu after two",
             descriptorsNow, cycle + 1, descriptors);
      expect(cycle < 2 || mappingsNow == mappings, "%zu shared mappings are left after %d cycles, %zu after two",
             mappingsNow, cycle + 1, mappings);
      rank.barrier();
    }
  });
}

void checkPeerLoss(const Setup& setup, Mode) {
  runWorld(
      setup, Mode::processes, 3,
      [](Rank& rank) {
        Link link(rank);
        Area area(link);
        rank.barrier();
        if (rank.index == 1) kill(getpid(), SIGKILL);
        const auto deadline = rank.deadline();
        for (bool lost = false; !lost;) {
          expect(Clock::now() < deadline, "the death of peer 1 is not noticed");
          if (!rank.setup.knowsDeaths) {
            const Write write = area.write(1);
            int accepted = 0;
            link.table().post(link.endpoint(), 1, &write, 1, &accepted);
          }
          for (const Event& event : link.poll()) {
            if (event.kind != MK_EVENT_ERROR) continue;
            expect(event.peer == 1 && event.status != mkSuccess, "error event of peer %d, status %d", event.peer,
                   event.status);
            expect(*link.table().lastError() != '\0', "error event without a reason");
            lost = true;
          }
        }
        expectWriteFails(link, 1, area.write(1));
        rank.barrier();
        area.exchange(2 - rank.index, 3);
        rank.barrier();
      },
      1);
}

const std::vector<Check>& conformanceChecks() {
  static const std::vector<Check> checks = {
      {"sizes from 0 to 64 MiB at odd offsets", checkSizes},
      {"streams between three ranks", checkStream},
      {"batches of every length", checkBatches},
      {"more writes than 16 bits count", checkCounters},
      {"addresses beyond 32 bits", checkFar},
      {"back-pressure", checkBackPressure},
      {"registrations", checkRegistrations},
      {"refusals", checkRefusals},
      {"a peer that closes", checkOrderlyClose},
      {"close with work under way", checkCloseWithWork},
      {"open and close again and again", checkCycles},
      {"a peer that is killed", checkPeerLoss, true},
  };
  return checks;
}

}  // namespace test
