#include "queue/agents.h"

#include "kernels/platform.cuh"
#include "protocol/command_ring.h"

namespace gpu {

namespace {

using namespace mk;
using kernels::LanePlatform;
using kernels::RankMemory;
using protocol::OwnLayout;
using protocol::Write;
using Lane = LanePlatform<true>;

__device__ uint64_t cyclesNow() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
  return t;
}

struct Stopwatch {
  uint64_t ns, cycles;
  __device__ Stopwatch() : ns(kernels::clockNs()), cycles(cyclesNow()) {}
  __device__ void stop(Clocks* clocks, uint64_t rounds, uint64_t wrong) const {
    clocks->cycles = cyclesNow() - cycles;
    clocks->ns = kernels::clockNs() - ns;
    clocks->wrong = wrong;
    clocks->rounds = rounds;
  }
};

// False: the value did not come.
__device__ bool await(const uint64_t* word, uint64_t value) {
  const uint64_t begin = kernels::clockNs();
  for (uint32_t polls = 1; kernels::loadAcquire(word) != value; ++polls)
    if (polls % 32 == 0 && kernels::clockNs() - begin > kTimeoutNs) return false;
  return true;
}

__global__ void bareKernel(uint64_t* to, const uint64_t* from, uint64_t rounds, Trip* trips, Clocks* clocks) {
  const Stopwatch watch;
  uint64_t i = 0;
  for (; i < rounds; ++i) {
    const auto begin = cyclesNow();
    kernels::storeReleaseSystem(to, i + 1);
    if (!await(from, i + 1)) break;
    trips[i] = cyclesNow() - begin;
  }
  watch.stop(clocks, i, 0);
}

__global__ void roundTripKernel(RankMemory memory, Write write, uint64_t rounds, uint64_t pauseNs, Until until,
                                Trip* trips, Clocks* clocks) {
  Lane lane(memory, sched::Role::send);
  const uint64_t before = lane.ownLoad(OwnLayout::ringTail);  // all of them have completed
  const protocol::Why queue{protocol::Stage::queue, -1, static_cast<int32_t>(write.node), 0};
  const protocol::Why completion{protocol::Stage::completion, -1, static_cast<int32_t>(write.node), 0};
  const Stopwatch watch;
  uint64_t i = 0;
  for (; i < rounds; ++i) {
    for (const uint64_t since = kernels::clockNs(); pauseNs != 0 && kernels::clockNs() - since < pauseNs;) {
    }
    const auto begin = cyclesNow();
    write.epoch = i + 1;
    if (!protocol::post(lane, write)) break;
    const uint64_t number = before + i + 1;
    if (until == Until::credit) {
      if (!lane.wait(protocol::own(OwnLayout::credits), number, protocol::Match::atLeast, queue)) break;
      trips[i] = cyclesNow() - begin;
    }
    if (!lane.wait(protocol::own(OwnLayout::completions), number, protocol::Match::atLeast, completion)) break;
    if (until == Until::completion) trips[i] = cyclesNow() - begin;
  }
  watch.stop(clocks, i, 0);
}

__device__ uint64_t* heapWord(const RankMemory& memory, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(memory.heaps[0] + offset);
}
__device__ const uint64_t* flagOf(const RankMemory& memory, uint64_t place, uint32_t node, uint64_t epoch) {
  return heapWord(
      memory, sched::arrivalFlag(memory.heapLayout, memory.controlLayout, sched::kControlSlots + place, node, epoch));
}

__global__ void pingPongKernel(RankMemory memory, Game game, Trip* trips, Clocks* clocks) {
  Lane lane(memory, sched::Role::send);
  const Stopwatch watch;
  uint64_t wrong = 0, i = 0;
  const auto send = [&](uint64_t place, uint64_t epoch) {
    const uint64_t from = game.sourceAt + place * 8;
    kernels::storeRelaxed(heapWord(memory, from), payloadWord(place, epoch, 0));
    return protocol::post(lane, Write{game.node, from, game.destinationAt + place * 8, 8, sched::kControlSlots, epoch});
  };
  const auto receive = [&](uint64_t place, uint64_t epoch) {
    if (!await(flagOf(memory, 0, game.node, epoch), epoch)) return false;
    wrong +=
        kernels::loadRelaxed(heapWord(memory, game.destinationAt + place * 8)) != payloadWord(place, epoch, 0) ? 1 : 0;
    return true;
  };
  for (; i < game.rounds; ++i) {
    const uint64_t place = i % kPlaces, epoch = game.firstEpoch + i;
    const auto begin = cyclesNow();
    if (!(game.first ? send(place, epoch) && receive(place, epoch) : receive(place, epoch) && send(place, epoch)))
      break;
    trips[i] = cyclesNow() - begin;
  }
  watch.stop(clocks, i, wrong);
}

__global__ void postKernel(RankMemory memory, Job job) {
  if (threadIdx.x != 0) return;
  Lane lane(memory, sched::Role::send);
  for (uint64_t place = blockIdx.x; place < job.count; place += gridDim.x) {
    const uint64_t from = job.sourceAt + place * job.bytes;
    if (job.stamp) kernels::storeRelaxed(heapWord(memory, from), payloadWord(place, job.epoch, 0));
    if (!protocol::post(lane, Write{job.node, from, job.destinationAt + place * job.bytes, job.bytes,
                                    sched::kControlSlots + place, job.epoch}))
      return;
  }
}

__global__ void fillKernel(RankMemory memory, Job job) {
  const uint64_t words = job.bytes / 8;
  for (uint64_t place = blockIdx.x; place < job.count; place += gridDim.x)
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
      *heapWord(memory, job.sourceAt + place * job.bytes + i * 8) = payloadWord(place, job.epoch, i);
}

__global__ void checkKernel(RankMemory memory, Job job, unsigned long long* wrong) {
  const uint64_t words = job.bytes / 8;
  unsigned long long bad = 0;
  for (uint64_t place = blockIdx.x; place < job.count; place += gridDim.x) {
    if (threadIdx.x == 0 && kernels::loadAcquire(flagOf(memory, place, job.node, job.epoch)) != job.epoch) ++bad;
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
      if (kernels::loadRelaxed(heapWord(memory, job.destinationAt + place * job.bytes + i * 8)) !=
          payloadWord(place, job.epoch, i))
        ++bad;
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

}  // namespace

cudaError_t bare(uint64_t* to, const uint64_t* from, uint64_t rounds, Trip* trips, Clocks* clocks,
                 cudaStream_t stream) {
  bareKernel<<<1, 1, 0, stream>>>(to, from, rounds, trips, clocks);
  return cudaGetLastError();
}

cudaError_t roundTrips(const RankMemory& memory, const Write& write, uint64_t rounds, uint64_t pauseNs, Until until,
                       Trip* trips, Clocks* clocks, cudaStream_t stream) {
  roundTripKernel<<<1, 1, 0, stream>>>(memory, write, rounds, pauseNs, until, trips, clocks);
  return cudaGetLastError();
}

cudaError_t pingPong(const RankMemory& memory, const Game& game, Trip* trips, Clocks* clocks, cudaStream_t stream) {
  pingPongKernel<<<1, 1, 0, stream>>>(memory, game, trips, clocks);
  return cudaGetLastError();
}

cudaError_t post(const RankMemory& memory, const Job& job, uint32_t blocks, cudaStream_t stream) {
  postKernel<<<blocks, 32, 0, stream>>>(memory, job);
  return cudaGetLastError();
}

cudaError_t fill(const RankMemory& memory, const Job& job, cudaStream_t stream) {
  fillKernel<<<1024, 256, 0, stream>>>(memory, job);
  return cudaGetLastError();
}

cudaError_t check(const RankMemory& memory, const Job& job, unsigned long long* wrong, cudaStream_t stream) {
  checkKernel<<<1024, 256, 0, stream>>>(memory, job, wrong);
  return cudaGetLastError();
}

}  // namespace gpu
