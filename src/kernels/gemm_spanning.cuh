// The storing warps where tiles span shards (GEMM+ReduceScatter, sched/gemm_rs.h): what peers collect of each tile, as it lies in
// registers.  The own rows of the result are stored by those who made them.
#pragma once

#include "kernels/gemm_move.cuh"

namespace mk::kernels {

// Stores the chunks of one computing warpgroup.
template <class C>
class SpanningStorer {
  using L = typename C::L;

 public:
  __device__ __forceinline__ SpanningStorer(const Block<C>& b, uint32_t group)
      : b_(b), group_(group), platform_(b.p.memory, sched::Role::compute) {}

  __device__ __forceinline__ void run() {
    TaskReader<C> tasks(b_);
    uint32_t handed = 0;
    for (;;) {
      const Task t = tasks.take();
      if (t.kind == taskEnd) break;
      const sched::RowSpan all = b_.partOf(t), part = b_.partOf(t, group_);
      const uint32_t chunks = (t.cols + kChunkCols - 1) / kChunkCols;
      // The block's other warpgroup may give rows where this one does not; both storing warps say that a tile has been sent.
      if (b_.shards().gives(all)) {
        if (b_.shards().gives(part)) give(t, part, chunks);
        storesComplete();
        letGo(count_);
        sharedStoreRelease(b_.at(L::kHanded + 4 * group_), ++handed);
      }
    }
    barrierArrive(b_.at(L::kDrained));
  }

 private:
  static constexpr uint32_t kChunkCols = 64;  // of two bytes; turned tiles have one chunk

  // Partial results lie by warp, then chunk; in a turned tile those of 16 rows of C are 512 bytes of each warp's.
  __device__ __forceinline__ void give(const Task& t, const sched::RowSpan& part, uint32_t chunks) {
    const uint32_t local = b_.local(), locals = b_.locals();
    for (uint32_t l = 0; l < locals; ++l) {
      if (l != local && b_.shards().has(l, part)) openBank(l);
    }
    const uint64_t bank = b_.bankData(platform_.epoch());
    const uint32_t within = b_.firstRow(group_) * C::kN * 2;
    for (uint32_t j = 0; j < chunks; ++j) {
      const uint32_t from = takeChunk();
      if (!bad_) {
        // The next rank's first, so that not all store to one at a time.
        for (uint32_t s = 1; s < locals; ++s) {
          const uint32_t l = local + s < locals ? local + s : local + s - locals;
          const sched::RowSpan pieces = b_.shards().pieces(l, part);
          if (pieces.empty()) continue;
          char* const to = b_.p.memory.heaps[l] + bank +
                           (uint64_t{t.ownedTile} * (locals - 1) + sched::skipSelf(local, l)) * b_.p.plan.slotBytes() +
                           within;
          if constexpr (C::kTurned) {
            const uint32_t warps = (b_.rowsOf(t.rows, group_) + 15) / 16;
            const uint32_t before = pieces.first * 512, bytes = (pieces.end - pieces.first) * 512;
            for (uint32_t w = 0; w < warps; ++w)
              storeBytes(to + w * kPieceBytes + before, from + w * kPieceBytes + before, bytes);
          } else {
            for (uint32_t q = pieces.first; q < pieces.end; ++q)
              storeBytes(to + q * (16 * C::kN) * 2 + j * kPieceBytes, from + q * kPieceBytes, kPieceBytes);
          }
        }
        storesCommit();
      }
      letGoButOne();
    }
  }
  __device__ __forceinline__ uint32_t slotOf(uint32_t chunk) const {
    return group_ * L::kBuffers + chunk % L::kBuffers;
  }
  __device__ __forceinline__ uint32_t takeChunk() {
    const uint32_t slot = slotOf(count_);
    barrierWait(b_.at(L::kChunkFull + 8 * slot), count_ / L::kBuffers & 1);
    ++count_;
    bad_ = bad_ || sharedLoadAcquire(b_.at(L::kFailed)) != 0;
    return b_.at(L::kChunks + slot * kChunkBytes);
  }
  // Buffers whose stores have been read; after a failure all, or the computing warps would wait in vain.
  __device__ __forceinline__ void letGoButOne() {
    if (bad_) {
      storesRead<0>();
      letGo(count_);
    } else {
      storesRead<1>();
      letGo(count_ - 1);
    }
  }
  __device__ __forceinline__ void letGo(uint32_t until) {
    for (; letGo_ < until; ++letGo_) barrierArrive(b_.at(L::kChunkEmpty + 8 * slotOf(letGo_)));
  }

  __device__ __forceinline__ void openBank(uint32_t l) {
    if (bad_ || banks_.await(b_, platform_, l)) return;
    bad_ = true;
    sharedStoreRelease(b_.at(L::kFailed), 1);
  }

  const Block<C>& b_;
  const uint32_t group_;
  LanePlatform<C::kGeneral> platform_;
  uint32_t count_ = 0, letGo_ = 0;  // chunks so far, those whose buffers are free again
  FreeBanks banks_;
  bool bad_ = false;
};

}  // namespace mk::kernels
