#include "ibgda/gpu_agents.h"

#include "kernels/platform.cuh"
#include "protocol/command_ring.h"

namespace gpu {

namespace {

using namespace mk;
using kernels::LanePlatform;
using kernels::RankMemory;
using protocol::Write;

// One agent per block.  To nodes 1 and 2 in turn.
__global__ void postKernel(RankMemory memory, Job job) {
  if (threadIdx.x != 0) return;
  LanePlatform<true> platform(memory, sched::Role::send);
  const uint64_t agent = blockIdx.x;
  for (uint64_t i = 0; i < job.each; ++i) {
    const uint64_t place = agent * job.places + i % job.places;
    const uint64_t at = memory.heapLayout.data(0) + place * kWords * 8;
    const uint64_t epoch = i + 1;
    auto* const words = reinterpret_cast<uint64_t*>(memory.heaps[0] + at);
    for (uint32_t x = 0; x < job.words; ++x)
      reinterpret_cast<volatile uint64_t*>(words)[x] = payloadWord(place, epoch, x);
    const auto node = 1 + static_cast<uint32_t>((i + agent) & 1);
    if (!protocol::post(platform, Write{node, at, at, job.words * uint64_t{8}, sched::kControlSlots + place, epoch}))
      return;
  }
}

// One agent: posts, and waits until the flag has come back to where it can see it; clocks into `times`.
__global__ void bounceKernel(RankMemory memory, uint64_t rounds, const uint64_t* even, const uint64_t* odd,
                             uint64_t* times) {
  LanePlatform<true> platform(memory, sched::Role::send);
  const uint64_t at = memory.heapLayout.data(0);
  for (uint64_t i = 1; i <= rounds; ++i) {
    const uint64_t begin = kernels::clockNs();
    if (!protocol::post(platform, Write{1, at, at, 8, sched::kControlSlots, i})) return;
    while (kernels::loadAcquire(i % 2 == 0 ? even : odd) != i) {
      if (kernels::clockNs() - begin > kTimeoutNs) {
        platform.fail(protocol::FailRecord::timeout, protocol::Why{protocol::Stage::nodeArrival, -1, 1, 0}, i, 0);
        return;
      }
    }
    times[i - 1] = kernels::clockNs() - begin;
  }
}

}  // namespace

cudaError_t post(const RankMemory& memory, const Job& job, uint32_t blocks, cudaStream_t stream) {
  postKernel<<<blocks, 32, 0, stream>>>(memory, job);
  return cudaGetLastError();
}

cudaError_t bounce(const RankMemory& memory, uint64_t rounds, const uint64_t* even, const uint64_t* odd,
                   uint64_t* times, cudaStream_t stream) {
  bounceKernel<<<1, 1, 0, stream>>>(memory, rounds, even, odd, times);
  return cudaGetLastError();
}

}  // namespace gpu
