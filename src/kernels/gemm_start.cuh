// How a block of any operation's kernel begins and ends, and a launch.
#pragma once

#include "kernels/gemm_block.cuh"

namespace mk::kernels {

__device__ __forceinline__ uint32_t alignedShared(const void* shared) {
  return (sharedAddress(shared) + 1023) & ~1023u;
}

template <class C>
__device__ __forceinline__ void initBarriers(const Block<C>& b) {
  using L = typename C::L;
  for (uint32_t i = 0; i < L::kStages; ++i) {
    barrierInit(b.at(L::kFull + 8 * i), 1);
    barrierInit(b.at(L::kEmpty + 8 * i), 2 * sched::kClusterBlocks);  // two warpgroups in each block
  }
  for (uint32_t i = 0; i < L::kFinishers * L::kBuffers; ++i) {
    barrierInit(b.at(L::kChunkFull + 8 * i), 4);
    barrierInit(b.at(L::kChunkEmpty + 8 * i), 1);
  }
  for (uint32_t i = 0; i < kTaskSlots; ++i) {
    barrierInit(b.at(L::kTaskFull + 8 * i), 1);
    barrierInit(b.at(L::kTaskEmpty + 8 * i), C::kTaskReaders);
  }
  for (uint32_t i = 0; i < C::kFlagBands; ++i) barrierInit(b.at(L::kPartialReady + 8 * i), 1);
  barrierInit(b.at(L::kPartialTaken), 4 * L::kFinishers);
  if constexpr (C::kTurned) {
    barrierInit(b.at(L::kHalfSumsFull), 4);
    barrierInit(b.at(L::kHalfSumsEmpty), 4);
  }
  if constexpr (L::kMoves) {
    for (uint32_t i = 0; i < L::kMoveBuffers; ++i) barrierInit(b.at(L::kMoveFull + 8 * i), 1);
  }
  barrierInit(b.at(L::kDrained), kDrainArrivals);
  if constexpr (C::kSums) barrierInit(b.at(L::kRoleKnown), 1);  // AllGather: who has control is asked of a word
  sharedStoreRelease(b.at(L::kHanded), 0);
  sharedStoreRelease(b.at(L::kHanded + 4), 0);
  sharedStoreRelease(b.at(L::kFailed), 0);
  barrierInitDone();
}

// Registers of a thread: 2 warpgroups and 1, of 168 each at the start, which is all there are to share out: whoever asked for
// more would wait for ever.  Whoever moves rows needs more, and narrow tiles less.
template <class C>
constexpr int kComputeRegisters = !C::kSums     ? 208
                                  : C::L::kWide ? 224
                                                : 216;
template <class C>
constexpr int kMoveRegisters = 3 * 168 - 2 * kComputeRegisters<C>;

// Brings the tensor maps to the copy unit.  (Parameters need no such thing: reading them beforehand took 0.3 us more than it saved.)
template <class C>
__device__ __forceinline__ void warmUp(const typename C::Params& p, uint32_t thread) {
  if (thread == 64) {
    prefetchMap(&p.a.whole);
    prefetchMap(&p.b);
  } else if (thread == 96) {
    prefetchMap(&p.c);
    if constexpr (C::kSpreads) {
      for (uint32_t l = 0; l < p.memory.place.locals; ++l) {
        if (l != p.memory.place.local && !(C::kGeneral && p.plan.shape.staged)) prefetchMap(&p.peerC[l]);
      }
    }
  }
}

// The tile of a cluster that goes by its number, for the loading warp to work out while others make the barriers: its words of
// the parameters come one line of the cache after the other.  False: it has to ask.
template <class C>
__device__ __forceinline__ bool firstTile(const Block<C>& b, StepOf<C>* step) {
  // There are always steps; but where they stand is read too before there is nothing else to wait for.
  if (b.inOrder() || clusterNumber() >= b.p.order.positions || b.p.kSteps == 0) return false;
  *step = b.p.order.at(clusterNumber());
  return exists(*step);
}

template <class C>
__device__ __forceinline__ void startBlock(const Block<C>& b) {
  // Not by the loading warp, which has something else to do.
  if (threadIdx.x == 32) initBarriers<C>(b);
  warmUp<C>(b.p, threadIdx.x);
  // The words in this block's memory; barriers have a fence of their own.
  __syncthreads();
  clusterMeet();
}

// Each warp, before it touches what other launches or ranks write or read (but for fetchAhead(), which reads nothing).
template <class C>
__device__ __forceinline__ void awaitTurn(const Block<C>& b) {
  awaitLaunchBefore();
  if (threadIdx.x == 96) addOnly(b.p.memory.own + protocol::OwnLayout::blocksBegun, 1);
  // So at most one launch waits beside the one that runs: what waits takes room from others on this device.
  letNextLaunch();
}

// The cluster's number in the order of coming.  All threads.
template <class C>
__device__ __forceinline__ uint32_t takeTicket(const Block<C>& b) {
  using L = typename C::L;
  if (threadIdx.x == 0 && b.index == 0) {
    const auto ticket = static_cast<uint32_t>(addRelaxed(b.p.memory.own + protocol::OwnLayout::ticket, 1));
    for (uint32_t i = 0; i < sched::kClusterBlocks; ++i)
      asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(inBlock(b.at(L::kTicket), i)), "r"(ticket) : "memory");
  }
  clusterSync();
  return sharedLoadAcquire(b.at(L::kTicket));
}

template <class C>
__device__ __forceinline__ void leaveBlock(const Block<C>& b) {
  // No block may leave while the other can still write to it.
  clusterMeet();
  if (threadIdx.x == 96) addOnly(b.p.memory.own + protocol::OwnLayout::blocksLeft, 1);
}

// The last step of a launch: nobody but this thread is left to use these words.
template <class Platform>
__device__ __forceinline__ void endLaunch(Platform& platform) {
  using protocol::OwnLayout;
  platform.ownReset(OwnLayout::ticket);
  platform.ownReset(OwnLayout::claimCompute);
  platform.ownReset(OwnLayout::claimReceive);
  platform.ownReset(OwnLayout::claimMove);
  platform.ownReset(OwnLayout::moveTicket);
  platform.ownReset(OwnLayout::claimCopy);
  platform.ownReset(OwnLayout::finished);
  storeRelaxed(platform.own(OwnLayout::epoch), platform.epoch());
}

}  // namespace mk::kernels
