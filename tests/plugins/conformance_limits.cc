// Conformance: where numbers of commands, of bytes and of writes in a batch come to their limits.  See conformance.h.
#include <algorithm>
#include <vector>

#include "conformance.h"
#include "traffic.h"

namespace test {

// One call with 1, 2, ... and more than maxBatch writes: what it takes, it takes from the front, and whole.
void checkBatches(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    const auto& properties = rank.plugin.properties();
    const int most = static_cast<int>(std::min(properties.maxBatch, properties.maxOutstanding));
    std::vector<int> batches;
    for (int i = 1; i <= std::min(most, 16); ++i) batches.push_back(i);
    for (const int more : {most - 1, most, most + 1, 3 * most, most}) batches.push_back(std::max(more, 1));
    size_t writes = 0;
    for (const int batch : batches) writes += static_cast<size_t>(batch);
    Traffic traffic(link, std::vector<uint64_t>(writes, 40), 1, 21);
    const int peer = 1 - rank.index;
    const auto deadline = rank.deadline();
    size_t batched = 0;
    for (const int batch : batches) {
      // With nothing under way there is room for a batch.
      while (traffic.completed(peer) < batched) {
        expect(Clock::now() < deadline, "a batch of fewer than %d writes: %s", batch, traffic.missing().c_str());
        traffic.receive();
      }
      const int accepted = traffic.post(peer, batch);
      expect(accepted >= 1, "nothing of a batch of %d writes is accepted", batch);
      batched += static_cast<size_t>(accepted);
    }
    traffic.run();
  });
}

// Indices of 16 bits wrap, on one queue, whether the plugin uses one or two requests for a write.
void checkCounters(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    Link link(rank);
    Traffic(link, std::vector<uint64_t>((1 << 16) + 5000, 9), 1, 31).run();
  });
}

// Registrations of more than 4 GiB, of which source, destination and flag lie on both sides of that mark.
void checkFar(const Setup& setup, Mode mode) {
  runWorld(setup, mode, 2, [](Rank& rank) {
    constexpr uint64_t kMark = uint64_t{1} << 32, kBytes = kMark + (2 << 20), kWriteBytes = 5001;
    struct Place {
      uint64_t source, destination, flag;
    };
    constexpr Place kPlaces[] = {
        {301, 100'003, 0},
        {kMark + 301, 200'005, 8},
        {10'007, kMark + 300'001, kMark + 500'016},
        {kMark - 2000, kMark + 400'002, 24},
        {kMark + 20'011, kMark - 2003, kMark + 500'032},
        {kBytes - kWriteBytes, kBytes - kWriteBytes, kMark + 500'040},
    };
    Link link(rank);
    const bool writes = rank.index == 0;
    SharedMemory here(writes ? 4096 : kBytes);
    std::unique_ptr<SharedMemory> out;
    if (writes) out = std::make_unique<SharedMemory>(kBytes);
    Bytes unused;
    void* const local = writes ? link.registerMemory(out->piece(), &unused) : nullptr;
    void* const remote = link.share(here.piece())[static_cast<size_t>(1 - rank.index)];
    for (const Place& place : kPlaces) {
      const auto number = static_cast<uint32_t>(&place - kPlaces) + 1;
      if (writes) {
        fillPattern(out->data() + place.source, kWriteBytes, number);
        Write write = {};
        write.source = out->data() + place.source;
        write.localMemory = local;
        write.remoteMemory = write.flagMemory = remote;
        write.remoteOffset = place.destination;
        write.bytes = kWriteBytes;
        write.flagOffset = place.flag;
        write.flagValue = write.immediate = number;
        link.postAll(1, {write});
        link.awaitSent(1);
      } else {
        link.awaitArrival(0, number, here.data() + place.flag);
        const std::byte* const at = here.data() + place.destination;
        const int64_t wrong = findDifference(at, kWriteBytes, number);
        expect(wrong < 0, "write %u, to offset %llu: payload wrong from byte %lld on", number,
               static_cast<unsigned long long>(place.destination), static_cast<long long>(wrong));
        if (place.destination > kMark)
          expect(findOther(at - kMark, kWriteBytes, std::byte{0}) < 0,
                 "write %u, to offset %llu, is seen 4 GiB before it", number,
                 static_cast<unsigned long long>(place.destination));
        if (link.ordered() && place.flag > kMark)
          expect(loadFlag(here.data() + place.flag - kMark) == 0, "the flag of write %u is seen 4 GiB before it",
                 number);
      }
      rank.barrier();
    }
  });
}

}  // namespace test
