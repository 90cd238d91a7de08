// The GEMM+AllReduce kernel: one persistent launch of clusters of two blocks.  Warps 0 to 3 load, keep flags and store
// (two); two warpgroups compute, or, in clusters that do not, receive from other nodes or copy.  Warps that wait for other ranks are never those that others of the
// block wait for without a way out: on failure they mark the block and go on, so that every tile begun is gone through by all, and
// all leave by the ordinary end of the list of tasks.
#pragma once

#include "kernels/gemm_ar_compute.cuh"
#include "kernels/gemm_ar_move.cuh"
#include "kernels/gemm_ar_receive.cuh"
#include "protocol/control.h"
#include "protocol/gemm_ar.h"

namespace mk::kernels {

// The end of the control role, by whoever is last to finish; see protocol/control.h.
template <class C, class Platform>
__device__ __forceinline__ bool closeLaunch(const Block<C>& b, Platform& platform) {
  using protocol::OwnLayout;
  const GemmArParams& p = b.p;
  const uint64_t epoch = platform.epoch();
  // Without a stage, the proof that all my output has arrived is one flag from each owner; with one, it has been copied.
  if (!b.staged()) {
    for (uint32_t l = 0; l < b.locals(); ++l) {
      if (l == b.local() || (p.owners >> l & 1) == 0) continue;
      // Producer: owner l, in FlagKeeper::finish() or Receiver::tileOut().
      if (!platform.wait(protocol::heap(b.local(), b.bankFlags(epoch) + (p.outFlags + l) * 8), epoch,
                         protocol::Match::equal,
                         protocol::Why{protocol::Stage::output, static_cast<int32_t>(l), -1, 0}))
        return false;
    }
  }
  // FlagKeeper::finish() has told the peers already, if there was a tile to tell of.
  const bool told = !b.multiNode() && !b.staged() && (b.locals() == 1 || p.ownedParts != 0);
  if (told) {
    storeRelaxed(platform.own(OwnLayout::donePublished), epoch);
  } else if (!protocol::close(platform)) {
    return false;
  }
  // Nobody but this thread is left to use these words.
  platform.ownReset(OwnLayout::ticket);
  platform.ownReset(OwnLayout::claimCompute);
  platform.ownReset(OwnLayout::claimReceive);
  platform.ownReset(OwnLayout::claimCopy);
  platform.ownReset(OwnLayout::finished);
  storeRelaxed(platform.own(OwnLayout::epoch), epoch);
  return true;
}

// The flag warp of a block.  One is the launch's control agent too: first it opens the launch, which its tiles have to wait for
// anyway.  The last to finish closes it.
template <class C>
__device__ __forceinline__ void flags(const Block<C>& b, bool computes, bool controls) {
  FlagKeeper<C> keeper(b);
  LanePlatform<C::kGeneral> platform(b.p.memory, sched::Role::control);
  if (controls && !protocol::enter(platform, b.p.hash)) sharedStoreRelease(b.at(C::L::kFailed), 1);
  if (computes) keeper.tiles();
  if (keeper.finish()) closeLaunch(b, platform);
}

// The send role: posts node sums as they are complete.
template <class C>
__device__ __forceinline__ bool send(const Block<C>& b) {
  LanePlatform<true> platform(b.p.memory, sched::Role::send);
  return protocol::GemmAr<LanePlatform<true>>(platform, b.p.plan, b.p.hash).send();
}

template <class C>
__device__ __forceinline__ void initBarriers(const Block<C>& b) {
  using L = typename C::L;
  for (uint32_t i = 0; i < L::kStages; ++i) {
    barrierInit(b.at(L::kFull + 8 * i), 1);
    barrierInit(b.at(L::kEmpty + 8 * i), 2 * sched::kClusterBlocks);  // two warpgroups in each block
  }
  for (uint32_t i = 0; i < 2 * L::kBuffers; ++i) {
    barrierInit(b.at(L::kChunkFull + 8 * i), 4);
    barrierInit(b.at(L::kChunkEmpty + 8 * i), 1);
  }
  for (uint32_t i = 0; i < kTaskSlots; ++i) {
    barrierInit(b.at(L::kTaskFull + 8 * i), 1);
    barrierInit(b.at(L::kTaskEmpty + 8 * i), kTaskReaders);
  }
  for (uint32_t i = 0; i < C::kFlagBands; ++i) barrierInit(b.at(L::kPartialReady + 8 * i), 1);
  barrierInit(b.at(L::kPartialTaken), 8);
  barrierInit(b.at(L::kDrained), kDrainArrivals);
  barrierInit(b.at(L::kRoleKnown), 1);
  sharedStoreRelease(b.at(L::kHanded), 0);
  sharedStoreRelease(b.at(L::kHanded + 4), 0);
  sharedStoreRelease(b.at(L::kFailed), 0);
  barrierInitDone();
}

// Registers of a thread: 2 warpgroups and 1, of 168 each at the start.
constexpr int kComputeRegisters = 224, kMoveRegisters = 56;

// Brings what every launch reads of its parameters into the constant cache, and the tensor maps.
template <class C>
__device__ __forceinline__ void warmUp(const GemmArParams& p, uint32_t thread) {
  if (thread == 32) {
    const auto touch = [](auto v) { asm volatile("" ::"l"(static_cast<uint64_t>(v))); };
    touch(p.memory.place.nodes);
    touch(p.memory.controlLayout.locals);
    touch(reinterpret_cast<uintptr_t>(p.memory.own));
    touch(p.memory.timeoutNs);
    touch(p.plan.shape.m);
    touch(p.plan.grid.m);
    touch(p.plan.chunks.tiles);
    touch(p.plan.chunks.window);
    touch(p.plan.parts);
    touch(p.order.tiles);
    touch(p.order.startFull);
    touch(p.order.byWave.divisor);
    touch(p.order.byLocals.divisor);
    touch(p.choice.paceNs);
    touch(p.operands.k);
    touch(p.partialFlags);
    touch(p.kSteps);
  } else if (thread == 64) {
    prefetchMap(&p.a);
    prefetchMap(&p.b);
  } else if (thread == 96) {
    prefetchMap(&p.c);
    for (uint32_t l = 0; l < p.memory.place.locals; ++l) {
      if (l != p.memory.place.local && !(C::kGeneral && p.plan.shape.staged)) prefetchMap(&p.peerC[l]);
    }
  }
}

template <class C>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    gemmArKernel(const __grid_constant__ GemmArParams p) {
  using L = typename C::L;
  using protocol::OwnLayout;
  extern __shared__ uint8_t shared[];
  const uint32_t aligned = (sharedAddress(shared) + 1023) & ~1023u;
  const Block<C> b{p, aligned, blockInCluster()};
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) initBarriers<C>(b);
  warmUp<C>(p, threadIdx.x);
  clusterSync();
  // Nothing that other launches or ranks write or read is touched above this.
  awaitLaunchBefore();
  if (threadIdx.x == 96) addOnly(p.memory.own + OwnLayout::blocksBegun, 1);
  // So at most one launch waits beside the one that runs: what waits takes room from others on this device.
  letNextLaunch();

  // The first clusters to come receive or copy, where there is need; control is with the first of them.  Where all compute, it is
  // with whoever claims the first tile.
  const uint32_t receivers = C::kGeneral ? p.choice.receiveClusters : 0;
  const uint32_t others = C::kGeneral ? receivers + p.choice.copyClusters : 0;
  uint32_t ticket = others;
  if (others != 0) {
    if (threadIdx.x == 0 && b.index == 0) {
      ticket = static_cast<uint32_t>(addRelaxed(p.memory.own + OwnLayout::ticket, 1));
      for (uint32_t i = 0; i < sched::kClusterBlocks; ++i)
        asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(inBlock(b.at(L::kTicket), i)), "r"(ticket) : "memory");
    }
    clusterSync();
    ticket = sharedLoadAcquire(b.at(L::kTicket));
  }
  const bool computes = !C::kGeneral || ticket >= others;
  const bool first = ticket == 0 && others != 0 && b.index == 0;

  if (threadIdx.x >= 128) {
    registersUp<kComputeRegisters>();
    const uint32_t thread = threadIdx.x - 128;
    if (computes) {
      Computer<C>(b, thread).run();
    } else if constexpr (C::kGeneral) {
      const bool receives = ticket < receivers;
      Receiver<C> receiver(b, receives ? sched::Role::receive : sched::Role::copyOut, thread,
                           reinterpret_cast<uint64_t*>(shared + (b.at(L::kMailbox) - sharedAddress(shared))));
      if (!(receives ? receiver.receive() : receiver.copyOut())) sharedStoreRelease(b.at(L::kFailed), 1);
      namedSync(BlockPlatform::kAgentBarrier, BlockPlatform::kThreads);
    }
    if (thread == 0) barrierArrive(b.at(L::kDrained));
  } else {
    registersDown<kMoveRegisters>();
    if (lane == 0) {
      if (warp == 1) {
        bool controls = first;
        if (others == 0 && b.index == 0) {
          barrierWait(b.at(L::kRoleKnown), 0);
          controls = sharedLoadAcquire(b.at(L::kControl)) != 0;
        }
        flags<C>(b, computes, controls);
      } else if (!computes) {
        if constexpr (C::kGeneral) {
          if (warp == 0 && first && b.multiNode() && !send(b)) sharedStoreRelease(b.at(L::kFailed), 1);
          barrierArrive(b.at(L::kDrained));
        }
      } else if (warp == 0) {
        load<C>(b);
      } else {
        store<C>(b, warp - 2);
      }
    }
    __syncwarp();
  }
  // No block may leave while the other can still write to it.
  clusterSync();
  if (threadIdx.x == 96) addOnly(p.memory.own + OwnLayout::blocksLeft, 1);
}

}  // namespace mk::kernels
