// The agents of gpu_queue on the GPU: they post by the library's own device code, and clock what comes back.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rank_memory.h"

namespace gpu {

constexpr uint64_t kTimeoutNs = 10'000'000'000;  // of a wait on the GPU

// Word i of the payload at `place` that is sent in `epoch`; never 0.
MK_HD constexpr uint64_t payloadWord(uint64_t place, uint64_t epoch, uint64_t i) {
  return ((place + 1) * 0x9e3779b97f4a7c15u + (epoch << 32 | i) * 0xd1342543de82ef95u) | 1;
}

// Of one round, in cycles of the multiprocessor: until the agent has seen what it waited for; and how long a cycle is.
using Trip = uint64_t;
struct Clocks {
  uint64_t ns = 0, cycles = 0;  // of the whole kernel
  uint64_t rounds = 0;          // that went well
  uint64_t wrong = 0;           // payloads
};

// One agent and a host thread that answers `to` in `from`: both in pinned host memory.
cudaError_t bare(uint64_t* to, const uint64_t* from, uint64_t rounds, Trip* trips, Clocks* clocks, cudaStream_t stream);

// One agent that posts to `node`, each command when the one before has completed, `pauseNs` later.  The clock stops at the
// completion, or at the credit, which says that the proxy has read the command; not at both, for each look at the host's
// memory takes a microsecond.
enum class Until { credit, completion };
cudaError_t roundTrips(const mk::kernels::RankMemory& memory, const mk::protocol::Write& write, uint64_t rounds,
                       uint64_t pauseNs, Until until, Trip* trips, Clocks* clocks, cudaStream_t stream);

// One agent on each of two ranks: 8-byte writes there and back, each seen by its flag and checked.  Epochs are firstEpoch
// and up; sources and destinations are places of the heap, kPlaces words each.
constexpr uint64_t kPlaces = 64;
struct Game {
  bool first = false;
  uint32_t node = 0;  // of the other
  uint64_t sourceAt = 0, destinationAt = 0;
  uint64_t firstEpoch = 0, rounds = 0;
};
cudaError_t pingPong(const mk::kernels::RankMemory& memory, const Game& game, Trip* trips, Clocks* clocks,
                     cudaStream_t stream);

// Writes of `bytes` bytes from and to places of their own, `count` in all, in one epoch.
struct Job {
  uint32_t node = 0;
  uint64_t sourceAt = 0, destinationAt = 0;
  uint64_t bytes = 0, count = 0, epoch = 0;
  bool stamp = false;  // agents write the payload themselves, right before they post
};
// One agent per block; place i is agent i % blocks'.
cudaError_t post(const mk::kernels::RankMemory& memory, const Job& job, uint32_t blocks, cudaStream_t stream);
cudaError_t fill(const mk::kernels::RankMemory& memory, const Job& job, cudaStream_t stream);
// What has come from `node`: *wrong += words that are not right, and flags that are not there.
cudaError_t check(const mk::kernels::RankMemory& memory, const Job& job, unsigned long long* wrong,
                  cudaStream_t stream);

}  // namespace gpu
