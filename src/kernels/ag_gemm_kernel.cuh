// The kernel of AllGather+GEMM: one persistent launch of clusters of two blocks that compute tiles of C, each from rows of one rank
// or of all, as they come.  Rows are moved beside that by a warp of some of the blocks (ag_gemm_move.cuh).  With several nodes the
// first cluster to come does not compute: a thread of it sends.  As in gemm_kernel.cuh, whoever waits for other ranks in vain marks
// the block and goes on, so that all leave by the ordinary end of the list of tasks.
#pragma once

#include "kernels/ag_gemm_move.cuh"
#include "kernels/gemm_compute.cuh"
#include "kernels/gemm_start.cuh"
#include "protocol/ag_gemm.h"
#include "protocol/control.h"

namespace mk::kernels {

// The end of the control role, by whoever is last to finish.
template <class C, class Platform>
__device__ __forceinline__ void closeGather(const Block<C>& b, Platform& platform) {
  const uint64_t epoch = platform.epoch(), flags = b.bankFlags(epoch);
  const sched::AgMoves& moves = b.p.moves;
  // Movers have seen all that comes from other nodes; of what local peers store there is one flag each.
  for (uint32_t l = 0; l < b.locals(); ++l) {
    if (l == b.local() || (moves.senders >> l & 1) == 0) continue;
    // Producer: local rank l, in Mover::raise().
    if (!platform.wait(protocol::heap(b.local(), flags + (moves.outFlags + l) * 8), epoch, protocol::Match::equal,
                       protocol::Why{protocol::Stage::output, static_cast<int32_t>(l), -1, 0}))
      return;
  }
  if (protocol::close(platform)) endLaunch(platform);
}

// Warp 1: of one block it is the launch's control agent too, which opens the launch.  The last to finish closes it.
template <class C>
__device__ __forceinline__ void watch(const Block<C>& b, bool computes, bool controls, uint32_t lane) {
  using L = typename C::L;
  LanePlatform<C::kGeneral> platform(b.p.memory, sched::Role::control);
  // A launch that only leaves, behind one that has failed, does not enter: its peers may still look at what that one told them.  Nor
  // must it complete that one's count.
  bool leaving = lane == 0 && platform.leaving();
  if (lane == 0 && controls && (leaving || !protocol::enter(platform, b.p.hash)))
    sharedStoreRelease(b.at(L::kFailed), 1);
  __syncwarp();
  if (computes) watchRows(b, lane);
  if (lane != 0) return;
  // Where nobody is told anything, the count is on its way while the last tile is being stored: whoever has no tile left uses
  // none of the words that the last resets.  (An abort seen later than here, by whoever stores or counts a part of a tile, no
  // longer keeps this launch from being closed; all after it leave all the same.)
  const bool early = b.alone() && b.p.choice.movers == 0;
  uint64_t* const finished = platform.own(protocol::OwnLayout::finished);
  uint64_t before = 0;
  // A block that is marked already has left out a tile.
  leaving = leaving || sharedLoadAcquire(b.at(L::kFailed)) != 0;
  if (early && !leaving) before = addRelaxed(finished, 1);
  barrierWait(b.at(L::kDrained), 0);
  if (leaving || sharedLoadAcquire(b.at(L::kFailed)) != 0) return;
  if (!early) before = addAcqRel(finished, 1);
  if (before + 1 == gridDim.x) closeGather(b, platform);
}

template <class C>
__device__ __forceinline__ void sendRows(const Block<C>& b) {
  using P = LanePlatform<true>;
  P platform(b.p.memory, sched::Role::send);
  if (!protocol::AgGemm<P>(platform, b.p.plan, b.p.hash).send()) sharedStoreRelease(b.at(C::L::kFailed), 1);
}

template <class C>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    agGemmKernel(const __grid_constant__ AgGemmParams p) {
  using L = typename C::L;
  extern __shared__ uint8_t shared[];
  const Block<C> b{p, alignedShared(shared), blockInCluster()};
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  sched::AgStep step;
  const bool known = warp == 0 && firstTile(b, &step);
  if (known && b.alone() && p.choice.streamsB && electOne()) fetchAhead(b, step);
  __syncwarp();
  startBlock(b);
  awaitTurn(b);
  // Control is with the sending cluster; where there is none, with the first to come.
  const uint32_t senders = C::kGeneral ? p.choice.receiveClusters : 0;
  const uint32_t ticket = senders != 0 ? takeTicket(b) : 0;
  const bool computes = senders == 0 || ticket >= senders;
  const bool first = senders != 0 && ticket == 0 && b.index == 0;

  if (threadIdx.x >= 128) {
    registersUp<kComputeRegisters<C>>();
    if (computes) Computer<C>(b, threadIdx.x - 128).run();
    if (threadIdx.x == 128) barrierArrive(b.at(L::kDrained));
  } else {
    registersDown<kMoveRegisters<C>>();
    if (warp == 1) {
      bool controls = first;
      if (senders == 0 && b.index == 0 && lane == 0)
        controls = addRelaxed(p.memory.own + protocol::OwnLayout::ticket, 1) == 0;
      watch(b, computes, controls, lane);
    } else if (electOne()) {
      if (warp == 3) {
        if (!Mover<C>(b).run()) sharedStoreRelease(b.at(L::kFailed), 1);
        barrierArrive(b.at(L::kDrained));
      } else if (!computes) {
        if constexpr (C::kGeneral) {
          if (warp == 0 && first) sendRows(b);
        }
        barrierArrive(b.at(L::kDrained));
      } else if (warp == 0) {
        loadRows(b, known, step);
      } else {
        storeTiles(b);
      }
    }
    __syncwarp();
  }
  leaveBlock(b);
}

}  // namespace mk::kernels
