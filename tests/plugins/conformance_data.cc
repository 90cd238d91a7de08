// Conformance: data gets through, whole, in time, in order of payload and notification.  See conformance.h.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "conformance.h"
#include "traffic.h"

namespace test {

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLargest = 64 << 20;

}  // namespace

void checkSizes(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    std::vector<uint64_t> sizes = {// Small ones, on both sides of powers of two.
                                   0,
                                   1,
                                   2,
                                   3,
                                   4,
                                   5,
                                   7,
                                   8,
                                   9,
                                   15,
                                   16,
                                   17,
                                   63,
                                   64,
                                   65,
                                   127,
                                   255,
                                   256,
                                   511,
                                   513,
                                   4095,
                                   4096,
                                   4097,
                                   8191,
                                   0,
                                   9999,
                                   65535,
                                   65536,
                                   65537,
                                   262144,
                                   (1 << 20) - 1,
                                   1 << 20,
                                   (1 << 20) + 13,
                                   16 << 20};
    const uint64_t most = rank.plugin.properties().maxBytes;
    std::erase_if(sizes, [&](uint64_t size) { return size > most; });
    // In one piece, or in as few as the plugin takes.
    for (uint64_t left = kLargest; left > 0; left -= std::min(left, most)) sizes.push_back(std::min(left, most));
    Link link(rank);
    Traffic(link, sizes, 1, 11).run();
  });
}

void checkStream(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 3, [](Rank& rank) {
    Link link(rank);
    for (uint64_t round = 0; round < 2; ++round) {
      std::mt19937_64 random(round);  // the same sizes on every rank
      std::vector<uint64_t> sizes(400);
      for (uint64_t& size : sizes) size = random() % 8 == 0 ? 0 : random() % 3000;
      Traffic(link, sizes, 4, 100 + round).run();
      rank.barrier();
    }
  });
}

void checkBackPressure(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    const uint32_t most = rank.plugin.properties().maxOutstanding;
    Traffic traffic(link, std::vector<uint64_t>(std::min<size_t>(8 * size_t{most} + 100, 60000), 24), 2, 7);
    const auto deadline = rank.deadline();
    if (rank.index == 0) {
      // Without poll, the first `most` writes are taken and no more; traffic itself checks the limit.
      while (traffic.posted(1) < most) {
        expect(Clock::now() < deadline, "only %zu of %u writes are accepted", traffic.posted(1), most);
        traffic.post(1, static_cast<int>(most));
      }
      expect(traffic.post(1, 1) == 0, "a write beyond maxOutstanding is accepted");
      // While the peer does not poll, writing may stall, but nothing is lost.
      for (const auto end = Clock::now() + 100ms; Clock::now() < end && traffic.posted(1) < 8 * size_t{most};) {
        traffic.receive();
        traffic.post(1, 10);
      }
      rank.barrier();
    } else {
      rank.barrier();
    }
    while (rank.index == 0 ? !traffic.allSent() : traffic.received(0) < 8 * size_t{most}) {
      expect(Clock::now() < deadline, "%s", traffic.missing().c_str());
      if (rank.index == 0) traffic.post(1, 20);
      traffic.receive();
    }
    rank.barrier();
  });
}

void checkRegistrations(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    const int peer = 1 - rank.index;
    constexpr size_t kPiece = 65536, kPieces = 3;
    SharedMemory memory(kPieces * kPiece), source(kPiece);
    Bytes unused;
    void* const local = link.registerMemory(source.piece(), &unused);

    // Writes a fresh pattern into the piece over there, and checks what came here.
    uint64_t version = 0;
    const auto exchange = [&](void* remote, size_t piece, size_t offsetInRemote) {
      ++version;
      constexpr size_t kBytes = 5001, kAt = 16;  // the first 8 bytes of a piece are for the flag
      storeFlag(memory.data() + piece * kPiece, 0);
      fillPattern(source.data(), kBytes, mix(version, static_cast<uint64_t>(rank.index)));
      rank.barrier();
      Write write = {};
      write.source = source.data();
      write.localMemory = local;
      write.remoteMemory = write.flagMemory = remote;
      write.remoteOffset = offsetInRemote + kAt;
      write.bytes = kBytes;
      write.flagOffset = offsetInRemote;
      write.flagValue = write.immediate = static_cast<uint32_t>(version);
      link.postAll(peer, {write});
      link.awaitNotification(peer, static_cast<uint32_t>(version), memory.data() + piece * kPiece);
      const int64_t at =
          findDifference(memory.data() + piece * kPiece + kAt, kBytes, mix(version, static_cast<uint64_t>(peer)));
      expect(at < 0, "piece %zu, version %llu: payload wrong from byte %lld on", piece,
             static_cast<unsigned long long>(version), static_cast<long long>(at));
      rank.barrier();
    };

    // Pieces of one descriptor, registered one after another as a heap grows.
    std::vector<void*> own, there;
    for (size_t piece = 0; piece < kPieces; ++piece) {
      const std::vector<void*> shared = link.share(memory.piece(piece * kPiece, kPiece));
      own.push_back(shared[static_cast<size_t>(rank.index)]);
      there.push_back(shared[static_cast<size_t>(peer)]);
      for (size_t earlier = 0; earlier <= piece; ++earlier) exchange(there[earlier], earlier, 0);
    }
    // Two imports of one registration are independent, and so are overlapping registrations.
    Bytes key;
    void* const whole = link.registerMemory(memory.piece(), &key);
    const Bytes theirs = rank.allgather(key)[static_cast<size_t>(peer)];
    void* const first = link.importMemory(peer, theirs);
    void* const second = link.importMemory(peer, theirs);
    expect(first != second, "two imports have one handle");
    exchange(first, 1, kPiece);
    link.releaseMemory(first);
    exchange(second, 2, 2 * kPiece);
    link.releaseMemory(second);
    rank.barrier();
    link.deregisterMemory(whole);
    // One goes, the others stay; the memory can come back under a new key.
    link.releaseMemory(there[1]);
    rank.barrier();
    link.deregisterMemory(own[1]);
    exchange(there[0], 0, 0);
    exchange(there[2], 2, 0);
    exchange(link.share(memory.piece(kPiece, kPiece))[static_cast<size_t>(peer)], 1, 0);
    // An old key names nothing any more.
    rank.barrier();
    void* remote = nullptr;
    expect(!rank.setup.knowsEndedKeys ||
               link.table().importMemory(link.endpoint(), peer, theirs.data(), 50, &remote) != mkSuccess,
           "the key of a registration that has ended can still be imported");
    rank.barrier();
  });
}

}  // namespace test
