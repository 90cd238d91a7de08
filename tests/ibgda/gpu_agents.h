// The agents of gpu_test on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rank_memory.h"

namespace gpu {

constexpr uint32_t kWords = 4;                   // of a payload
constexpr uint64_t kTimeoutNs = 10'000'000'000;  // of a wait on the GPU

// Epochs are numbered from 1, so that a word of zeros is none.
MK_HD constexpr uint64_t payloadWord(uint64_t place, uint64_t epoch, uint32_t i) {
  return place << 40 ^ epoch << 8 ^ i;
}

struct Job {
  uint64_t each = 0;    // posts of each agent
  uint32_t places = 0;  // of each agent, used in turn
  uint32_t words = kWords;
};

// One agent per block, which post to nodes 1 and 2 in turn.
cudaError_t post(const mk::kernels::RankMemory& memory, const Job& job, uint32_t blocks, cudaStream_t stream);
// One agent that posts to node 1, and waits each time until it sees the flag: flags by the epoch's parity.  Its clock goes into
// `times`.
cudaError_t bounce(const mk::kernels::RankMemory& memory, uint64_t rounds, const uint64_t* even, const uint64_t* odd,
                   uint64_t* times, cudaStream_t stream);

}  // namespace gpu
