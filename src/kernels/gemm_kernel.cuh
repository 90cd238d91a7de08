// The kernel of GEMM+AllReduce and GEMM+ReduceScatter: one persistent launch of clusters of two blocks.  Warps 0 to 3 load, keep flags and store
// (two); two warpgroups compute, or, in clusters that do not, receive from other nodes or copy.  Warps that wait for other ranks are never those that others of the
// block wait for without a way out: on failure they mark the block and go on, so that every tile begun is gone through by all, and
// all leave by the ordinary end of the list of tasks.
#pragma once

#include "kernels/gemm_compute.cuh"
#include "kernels/gemm_move.cuh"
#include "kernels/gemm_receive.cuh"
#include "kernels/gemm_spanning.cuh"
#include "kernels/gemm_start.cuh"
#include "protocol/control.h"
#include "protocol/gemm_ar.h"
#include "protocol/gemm_rs.h"

namespace mk::kernels {

// The end of the control role, by whoever is last to finish; see protocol/control.h.
template <class C, class Platform>
__device__ __forceinline__ bool closeLaunch(const Block<C>& b, Platform& platform) {
  using protocol::OwnLayout;
  const auto& p = b.p;
  const uint64_t epoch = platform.epoch();
  // Without a stage, the proof that all my output has arrived is one flag from each owner; with one, it has been copied.  A
  // ReduceScatter's is stored by this rank alone.
  if constexpr (C::kSpreads) {
    for (uint32_t l = 0; !b.staged() && l < b.locals(); ++l) {
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
  endLaunch(platform);
  return true;
}

// The flag warp of a block.  One is the launch's control agent too: first it opens the launch, which its tiles have to wait for
// anyway.  The last to finish closes it.
template <class C>
__device__ __forceinline__ void flags(const Block<C>& b, bool computes, bool controls) {
  FlagKeeper<C> keeper(b);
  LanePlatform<C::kGeneral> platform(b.p.memory, sched::Role::control);
  // A launch that only leaves does not enter: its peers may still look at what the one that has failed told them.
  if (controls && (keeper.leaving() || !protocol::enter(platform, b.p.hash)))
    sharedStoreRelease(b.at(C::L::kFailed), 1);
  if (computes) keeper.tiles();
  if (keeper.finish()) closeLaunch(b, platform);
}

// The send role: posts node sums as they are complete.
template <class C>
__device__ __forceinline__ bool send(const Block<C>& b) {
  using P = LanePlatform<true>;
  P platform(b.p.memory, sched::Role::send);
  if constexpr (C::kOp == Operation::gemmRs) {
    return protocol::GemmRs<P>(platform, b.p.plan, b.p.hash).send();
  } else {
    return protocol::GemmAr<P>(platform, b.p.plan, b.p.hash).send();
  }
}

template <class C>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    gemmKernel(const __grid_constant__ typename C::Params p) {
  using L = typename C::L;
  extern __shared__ uint8_t shared[];
  const Block<C> b{p, alignedShared(shared), blockInCluster()};
  const uint32_t warp = threadIdx.x / 32;

  StepOf<C> step;
  const bool known = warp == 0 && firstTile(b, &step);
  if (known && b.alone() && p.choice.streamsB && electOne()) fetchAhead(b, step);
  __syncwarp();
  startBlock(b);
  awaitTurn(b);
  // The first clusters to come receive or copy, where there is need; control is with the first of them.  Where all compute, it is
  // with whoever claims the first tile.
  const uint32_t receivers = C::kGeneral ? p.choice.receiveClusters : 0;
  const uint32_t others = C::kGeneral ? receivers + p.choice.copyClusters : 0;
  const uint32_t ticket = others != 0 ? takeTicket(b) : others;
  const bool computes = !C::kGeneral || ticket >= others;
  const bool first = ticket == 0 && others != 0 && b.index == 0;

  if (threadIdx.x >= 128) {
    registersUp<kComputeRegisters<C>>();
    const uint32_t thread = threadIdx.x - 128;
    if (computes) {
      Computer<C>(b, thread).run();
      // All have read what peers have sent.  Elsewhere nobody is told before the storing warps have all that was made of it.
      if constexpr (C::kSpanning) namedSync(BlockPlatform::kAgentBarrier, BlockPlatform::kThreads);
    } else if constexpr (C::kGeneral) {
      const bool receives = ticket < receivers;
      Receiver<C> receiver(b, receives ? sched::Role::receive : sched::Role::copyOut, thread,
                           reinterpret_cast<uint64_t*>(shared + (b.at(L::kMailbox) - sharedAddress(shared))));
      bool ok = true;
      if (receives) {
        ok = receiver.receive();
      } else if constexpr (C::kSpreads) {
        ok = receiver.copyOut();
      }
      if (!ok) sharedStoreRelease(b.at(L::kFailed), 1);
      namedSync(BlockPlatform::kAgentBarrier, BlockPlatform::kThreads);
    }
    if (thread == 0) barrierArrive(b.at(L::kDrained));
  } else {
    registersDown<kMoveRegisters<C>>();
    if (electOne()) {
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
        load<C>(b, known, step);
      } else if constexpr (C::kSpanning) {
        SpanningStorer<C>(b, warp - 2).run();
      } else {
        store<C>(b, warp - 2);
      }
    }
    __syncwarp();
  }
  leaveBlock(b);
}

}  // namespace mk::kernels
