// The computing warpgroups: the main loop, and what becomes of a tile's sums.  A peer's tile is rounded and handed to the storing warp
// in the order in which it lies in registers; to an own one the peers' partial results are added, and it is finished and handed on
// as an image of the result, or, with several nodes, stored as the node's sum.  Of a tile that spans shards both: peers' rows are
// handed on, own ones stored to C from here.  Of turned tiles the first warpgroup does so, when the second, which has the other half of
// K, has handed it its sums.
#pragma once

#include <type_traits>

#include "kernels/gemm_block.cuh"
#include "kernels/wgmma.cuh"

namespace mk::kernels {

__device__ __forceinline__ uint32_t pack(__nv_bfloat16, float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint32_t pack(__half, float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float2 unpack(__nv_bfloat16, uint32_t v) {
  return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
}
__device__ __forceinline__ float2 unpack(__half, uint32_t v) {
  float2 f;
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
      : "=f"(f.x), "=f"(f.y)
      : "r"(v));
  return f;
}
// One element, of the inputs' type or fp32.
template <class In>
__device__ __forceinline__ float loadElement(const void* base, uint64_t index, bool wide) {
  if (wide) return static_cast<const float*>(base)[index];
  return static_cast<float>(static_cast<const In*>(base)[index]);
}

__device__ __forceinline__ float activated(float x, protocol::Activation kind) {
  switch (kind) {
    case protocol::Activation::relu:
      return x < 0.0f ? 0.0f : x;  // not fmaxf, which drops a NaN
    case protocol::Activation::gelu:
      return x * normcdff(x);
    case protocol::Activation::silu:
      return x / (1.0f + expf(-x));
    default:
      return x;
  }
}

// Offset of 16 bytes in a chunk: rows of 128 bytes, swizzled as the copy unit does.
__device__ __forceinline__ uint32_t inChunk(uint32_t row, uint32_t unit) {
  return row * 128 + ((unit ^ (row & 7)) << 4);
}

// One computing thread.  A fragment d[4 i + ...] holds columns 8 i + 2 (lane % 4), + 1 of row lane / 4 of the warp's 16, then the
// same of 8 rows below.
template <class C>
class Computer {
  using L = typename C::L;
  using In = typename C::In;
  static constexpr int kN = C::kN;
  static constexpr bool kAlongN = C::kAlongN;
  // A tile is finished in bands of 64 columns, while a peer's partial result of the next two is under way.  The sums themselves
  // are never changed, only copies of a band's: where they are, the next products depend on it, and the compiler takes the
  // matrix instructions one by one.
  static constexpr int kBands = (kN + 63) / 64;
  static_assert(C::kFlagBands == 1 || C::kFlagBands == kBands);
  static_assert(!C::kSpanning || kBands <= 2);
  static_assert(!C::kSplits || 2 * L::kFinishers * 64 * kN * 4 <= sched::SplitMemory::kSumsEach);

 public:
  __device__ __forceinline__ Computer(const Block<C>& b, uint32_t thread)
      : b_(b), p_(b.p), thread_(thread & 127), group_(groupOf(thread)), warp_(thread_ >> 5), lane_(thread_ & 31) {}

  __device__ __forceinline__ void run() {
    const uint64_t epoch = loadRelaxed(p_.memory.own + protocol::OwnLayout::epoch) + 1;
    char* const bank = p_.memory.heaps[b_.local()] + b_.bankData(epoch);
    const bool wireWide = b_.wireWide(), outWide = b_.outWide();
    TaskReader<C> tasks(b_);
    uint32_t partials = 0;
    for (;;) {
      tasks.wait();
      uint32_t read = 0;
      const Task t = tasks.readUniform(&read);
      if (lane_ == 0 && t.kind != taskEnd) tasks.release(read);
      tasks.next();
      if (t.kind == taskEnd) return;
      const bool mine = t.kind == taskMine;
      const bool add = mine && b_.adds() && b_.finishes(group_);
      const char* const partial =
          bank + t.place + (b_.firstRow(group_) + warp_ * 16) * kN * b_.wireBytes() + lane_ * 16;

      const uint32_t steps = b_.stepsOf(t.part).count;
      const uint32_t early = !C::kSums ? 0 : p_.choice.early < steps ? p_.choice.early : steps;
      uint32_t k = 0;
      // Whoever has no rows of the tile leaves the matrix unit to others.  (Narrow tiles of AllGather are not bound by it.)
      const bool idle = !C::kTurned && (C::kSums || L::kWide) && b_.rowsOf(t.rows, group_) == 0;
      if (idle) {
        for (; k + early < steps; ++k) pass();
      } else {
        for (; k + early < steps; ++k) step(k);
      }
      if (add) {
        barrierWait(b_.at(L::kPartialReady), partials & 1);
        if (!wireWide) {
          hold<0>(partial);
          if constexpr (C::kFlagBands == 1 && kBands > 1) hold<1>(partial);
        }
      }
      if constexpr (C::kSums) {
        if (idle) {
          for (; k < steps; ++k) pass();
        } else {
          for (; k < steps; ++k) step(k);
        }
      }
      if constexpr (!kAtOnce) {
        productsWait<0>();
        if (!idle) release(previous_);
      }
      // Nothing that uses the sums may move up beyond this.
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) asm volatile("" : "+f"(d_[i])::"memory");
      const uint32_t rows = b_.rowsOf(t.rows, group_);
      if constexpr (C::kSpanning) {
        spanningTile(t, partial, partials);
        continue;
      }
      const uint32_t first = b_.firstRow(group_);
      char* const sum = b_.nodeSums() ? bank + t.sum : nullptr;
      const bool wide = b_.nodeSums() ? wireWide : outWide;
      const bool split = b_.split() && rows != 0;
      bool last = true;
      if constexpr (C::kSplits && !C::kTurned) {
        if (split) last = leavePart<kN / 8>(d_, t);
      }
      bands<0>([&](auto number) {
        constexpr int kBand = decltype(number)::value;
        float v[32];
        bandSums<kBand>(v);
        if constexpr (C::kSplits) {
          if constexpr (C::kTurned) {
            if (split) last = leavePart<8>(v, t);
          }
          if (split && last) addParts<kBand>(v, t);
        }
        const bool stores = last && rows != 0 && kBand * 64 < t.cols;
        if (C::kSums && !mine) {
          if (stores) {
            if (wireWide) {
              pushWide(v, t.cols - kBand * 64);
            } else {
              push(v);
            }
          }
          return;
        }
        if (add) {
          if constexpr (C::kFlagBands > 1 && kBand > 0) {
            barrierWait(b_.at(L::kPartialReady + 8 * kBand), partials & 1);
            if (!wireWide) hold<kBand>(partial);
          }
          if (!wireWide) {
#pragma unroll
            for (int i = 0; i < 4; ++i) addPacked(v + i * 8, held_[kBand % 2 * 4 + i]);
            if constexpr (C::kFlagBands == 1 && kBand + 2 < kBands) hold<kBand + 2>(partial);
          }
          addOthers(v, partial, wireWide, kBand);
          if constexpr (kBand + 1 == kBands) {
            ++partials;
            __syncwarp();
            if (lane_ == 0) barrierArrive(b_.at(L::kPartialTaken));
          }
        }
        if (stores) {
          if (!b_.nodeSums() && !b_.plain()) finish(v, t, first, rows, outWide, kBand);
          if (wide) {
            imagesWide(v, t.cols, rows, sum, first, kBand);
          } else {
            images(v, t.cols, rows, sum, first, kBand);
          }
        }
      });
      if (!last) giveNothing();
    }
  }

 private:
  // As one value for a whole warp: branches depend on it (see TaskReader::readUniform()), and places of operands, which the
  // matrix instructions take from the warp's own registers.
  static __device__ __forceinline__ uint32_t groupOf(uint32_t thread) {
    return __shfl_sync(0xffffffffu, thread >> 7, 0);
  }
  // With three stages the products of one are awaited at once; two warpgroups keep the matrix unit busy.
  static constexpr bool kAtOnce = L::kWide;
  // Named barriers of the warpgroups.
  static constexpr uint32_t kPartBarrier = 2;

  __device__ __forceinline__ void step(uint32_t k) {
    barrierWait(b_.at(L::kFull + 8 * stage_), parity_);
    const uint32_t at = b_.at(stage_ * b_.stageBytes());
    // Its rows; turned: its half of K.
    const uint64_t a = operandAlongK(at + group_ * 64 * 128);
    const uint32_t b = at + L::kABytes + (C::kTurned ? group_ * b_.halfOfB() : 0);
    const uint64_t bAt = kAlongN ? operandAlongN(b) : operandAlongK(b);
    productsFence();
#pragma unroll
    for (uint32_t i = 0; i < kBoxK / 16; ++i)
      Products<In, kN, kAlongN ? 1 : 0>::add(d_, a + 2 * i, bAt + (kAlongN ? 128 : 2) * i, k | i);
    productsCommit();
    if constexpr (kAtOnce) {
      productsWait<0>();
      release(stage_);
    } else if (k > 0) {
      productsWait<1>();
      release(previous_);
    }
    previous_ = stage_;
    nextStage();
  }
  __device__ __forceinline__ void pass() {
    barrierWait(b_.at(L::kFull + 8 * stage_), parity_);
    release(stage_);
    nextStage();
  }
  __device__ __forceinline__ void nextStage() {
    if (++stage_ == b_.stages()) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }
  // To both blocks' loading warps, since each fills half of B here.
  __device__ __forceinline__ void release(uint32_t stage) {
    if (thread_ < sched::kClusterBlocks) barrierArriveAt(inBlock(b_.at(L::kEmpty + 8 * stage), thread_));
  }

  // Turned: from each thread of the second warpgroup to that of the first which has the same elements, 16 bytes beside the next
  // thread's.  The place is free once the first has read the tile before.
  __device__ __forceinline__ uint32_t halfSumsAt() const { return b_.at(L::kHalfSums) + thread_ * 16; }
  __device__ __forceinline__ void handHalfSums(const float* v) {
    barrierWait(b_.at(L::kHalfSumsEmpty), (halfSums_ & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      const float* const d = v + i * 4;
      sharedStore(halfSumsAt() + i * 2048,
                  uint4{__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]), __float_as_uint(d[3])});
    }
    halfSumsDone(L::kHalfSumsFull);
  }
  __device__ __forceinline__ void addHalfSums(float* v) {
    barrierWait(b_.at(L::kHalfSumsFull), halfSums_ & 1);
    uint4 piece[kN / 8];
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) piece[i] = sharedLoad(halfSumsAt() + i * 2048);
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) addWide(v + i * 4, piece[i]);
    halfSumsDone(L::kHalfSumsEmpty);
  }
  __device__ __forceinline__ void halfSumsDone(uint32_t barrier) {
    __syncwarp();
    if (lane_ == 0) barrierArrive(b_.at(barrier));
    ++halfSums_;
  }

  // A band's sums; turned: of all of K, in the warpgroup that finishes tiles.
  template <int kBand>
  __device__ __forceinline__ void bandSums(float* v) {
    constexpr int kFirst = sched::chunkCol(kBand, 64, kN) / 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = d_[kFirst + i];
    if constexpr (C::kTurned) {
      if (b_.finishes(group_)) {
        addHalfSums(v);
      } else {
        handHalfSums(v);
      }
    }
  }

  // Where K is split: this warpgroup's sums of a part of a tile, in pieces of 16 bytes, one beside the next thread's.
  __device__ __forceinline__ char* partAt(const Task& t, uint32_t part) const {
    return p_.memory.splitSums + p_.split.place(t.splitTile, part, b_.index, group_, L::kFinishers) * (64 * kN * 4) +
           thread_ * 16;
  }
  // Leaves them.  True: all other parts have been left before.  A part that is worth nothing is not counted, so that nobody
  // finishes the tile.
  template <int kPieces>
  __device__ __forceinline__ bool leavePart(const float* v, const Task& t) {
    char* const to = partAt(t, t.part);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float* const d = v + i * 4;
      storeData(to + i * 2048,
                uint4{__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]), __float_as_uint(d[3])});
    }
    const uint32_t word = b_.at(L::kLastPart + 4 * group_);
    namedSync(kPartBarrier + group_, 128);
    if (thread_ == 0) {
      bool last = false;
      if (sharedLoadAcquire(b_.at(L::kFailed)) == 0) {
        uint64_t* const count = p_.memory.splitCounts + sched::KSplit::count(t.splitTile, b_.index, group_);
        last = addAcqRel(count, 1) + 1 == p_.split.parts;
        if (last) storeRelaxed(count, 0);  // for the next launch
      }
      sharedStoreRelease(word, last ? 1 : 0);
    }
    namedSync(kPartBarrier + group_, 128);
    return __shfl_sync(0xffffffffu, sharedLoadAcquire(word), 0) != 0;
  }
  // All parts' sums, in their order.
  template <int kBand>
  __device__ __forceinline__ void addParts(float* v, const Task& t) const {
    const uint32_t own = t.part, parts = p_.split.parts;
    uint4 now[8], next[8];  // the next one is on its way meanwhile
    const auto read = [&](uint4(&to)[8], uint32_t x) {
      const char* const from = partAt(t, x) + sched::chunkCol(kBand, 64, kN) / 8 * 2048;
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = loadData(from + i * 2048);
    };
    read(now, own == 0 ? 1 : 0);
    float sum[32];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      sum[i] = own == 0 ? 0 + v[i] : 0;  // not v[i], which may be -0 where others begin with 0
#pragma unroll 1
    for (uint32_t x = own == 0 ? 1 : 0; x < parts;) {
      const uint32_t after = x + 1 == own ? x + 2 : x + 1;
      if (after < parts) read(next, after);
#pragma unroll
      for (int i = 0; i < 8; ++i) addWide(sum + i * 4, now[i]);
      if (x + 1 == own) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[i] += v[i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) now[i] = next[i];
      x = after;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = sum[i];
  }
  // Tells the storing warp that this tile is finished elsewhere.
  __device__ __forceinline__ void giveNothing() {
    takeChunk();
    if (thread_ == 0) sharedStoreRelease(b_.at(L::kNothing + 4 * chunkSlot()), 1);
    giveChunk();
  }

  // What becomes of a spanning tile: what peers collect goes out before this block waits for theirs.
  __device__ __forceinline__ void spanningTile(const Task& t, const char* partial, uint32_t& partials) {
    const sched::RowSpan part = b_.partOf(t, group_);
    const bool gives = b_.shards().gives(part), keeps = b_.shards().keeps(part);
    float sums[32];
    bandSums<0>(sums);
    if (gives) {
      push(sums);
      if constexpr (kBands > 1) {
        if (t.cols > 64) {
          float v[32];
          bandSums<1>(v);
          push(v);
        }
      }
    }
    const bool adds = b_.adds() && b_.finishes(group_) && b_.shards().keeps(b_.partOf(t));
    if (adds) barrierWait(b_.at(L::kPartialReady), partials++ & 1);
    if (adds && keeps) {
      hold<0>(partial);
      if constexpr (kBands > 1) hold<1>(partial);
    }
    bands<0>([&](auto number) {
      constexpr int kBand = decltype(number)::value;
      if constexpr (kBand > 0) bandSums<kBand>(sums);
      if (adds && keeps) {
#pragma unroll
        for (int i = 0; i < 4; ++i) addPacked(sums + i * 8, held_[kBand * 4 + i]);
        addOthers(sums, partial, false, kBand);
      }
      if constexpr (kBand + 1 == kBands) {
        __syncwarp();
        if (adds && lane_ == 0) barrierArrive(b_.at(L::kPartialTaken));
      }
      if (keeps && kBand * 64 < t.cols) storeOwn(sums, t, part, kBand);
    });
  }

  // This rank's rows of a band of a tile that spans shards, to C: two neighbours of a row at a time, of which four threads have
  // 16 bytes.  (The copy unit cannot: a box that begins before the first row of C is an illegal instruction to it.)
  __device__ __forceinline__ void storeOwn(const float* v, const Task& t, const sched::RowSpan& part, int band) const {
    if (__any_sync(0xffffffffu, sharedLoadAcquire(b_.at(L::kFailed)) != 0)) return;
    const sched::RowSpan own = part.with(b_.shards().of(b_.local()));
    const uint32_t n = C::kTurned ? p_.order.m : p_.order.n;
    char* const c = static_cast<char*>(p_.operands.c);
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t across = i / 2 * 8, down = warp_ * 16 + i % 2 * 8;
      uint32_t pair = pack(In(), v[2 * i], v[2 * i + 1]);
      if constexpr (C::kTurned) pair = turnedMatrix(pair);
      const uint32_t row = C::kTurned ? t.col + across + lane_ / 4 : t.row + b_.firstRow(group_) + down + lane_ / 4;
      const uint32_t col =
          (C::kTurned ? t.row + b_.firstRow(group_) + down : t.col + band * 64 + across) + lane_ % 4 * 2;
      if (row < own.first || row >= own.end || col >= n) continue;
      *reinterpret_cast<uint32_t*>(c + (uint64_t{row - p_.firstRow} * p_.operands.cStride + col) * 2) = pair;
    }
  }

  // Calls work(number of the band) for each, known at compile time: registers have no index.
  template <int kBand, class Work>
  static __device__ __forceinline__ void bands(Work&& work) {
    if constexpr (kBand < kBands) {
      work(std::integral_constant<int, kBand>());
      bands<kBand + 1>(work);
    }
  }
  template <int kBand>
  __device__ __forceinline__ void hold(const char* partial) {
#pragma unroll
    for (int i = 0; i < 4; ++i) held_[kBand % 2 * 4 + i] = loadData(partial + (kBand * 4 + i) * 512);
  }
  static __device__ __forceinline__ void addPacked(float* v, const uint4& piece) {
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float2 f = unpack(In(), words[x]);
      v[2 * x] += f.x;
      v[2 * x + 1] += f.y;
    }
  }
  static __device__ __forceinline__ void addWide(float* v, const uint4& piece) {
    v[0] += __uint_as_float(piece.x);
    v[1] += __uint_as_float(piece.y);
    v[2] += __uint_as_float(piece.z);
    v[3] += __uint_as_float(piece.w);
  }
  // Partial results of a band but the one held, in the order of the local ranks.
  __device__ __forceinline__ void addOthers(float* v, const char* partial, bool wide, int band) {
    uint64_t slot = 0;
    if constexpr (C::kSums) slot = p_.plan.slotBytes();
    for (uint32_t x = wide ? 0 : 1; x + 1 < b_.locals(); ++x) {
      const char* const from = partial + x * slot;
      uint4 piece[4];
      if (wide) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
#pragma unroll
          for (int y = 0; y < 4; ++y) piece[y] = loadData(from + (band * 8 + i + y) * 512);
#pragma unroll
          for (int y = 0; y < 4; ++y) addWide(v + (i + y) * 4, piece[y]);
        }
      } else {
#pragma unroll
        for (int y = 0; y < 4; ++y) piece[y] = loadData(from + (band * 4 + y) * 512);
#pragma unroll
        for (int y = 0; y < 4; ++y) addPacked(v + y * 8, piece[y]);
      }
    }
  }
  __device__ __forceinline__ void finish(float* v, const Task& t, uint32_t first, uint32_t rows, bool wide, int band) {
    const float alpha = p_.operands.alpha, beta = p_.operands.beta;
    const void* const bias = p_.operands.bias;
    const bool biasWide = p_.operands.biasType == Type::f32;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const uint32_t row = warp_ * 16 + (lane_ >> 2) + (i >> 1 & 1) * 8;
      const uint32_t col = band * 64 + i / 4 * 8 + (lane_ & 3) * 2 + (i & 1);
      v[i] *= alpha;
      if (row >= rows || col >= t.cols) continue;
      if (beta != 0.0f)
        v[i] +=
            beta * loadElement<In>(p_.operands.c,
                                   uint64_t{b_.rowOfC(t.row) + first + row} * p_.operands.cStride + t.col + col, wide);
      if (bias != nullptr) v[i] += loadElement<In>(bias, t.col + col, biasWide);
    }
    const protocol::Activation kind = p_.operands.activation;
    if (kind == protocol::Activation::none) return;
    // A loop in earnest, through memory: unrolled it would be longer than all the rest of the kernel.
    float w[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) w[i] = v[i];
#pragma unroll 1
    for (int i = 0; i < 32; ++i) w[i] = activated(w[i], kind);
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = w[i];
  }

  __device__ __forceinline__ uint32_t chunkSlot() const { return group_ * L::kBuffers + chunk_ % L::kBuffers; }
  // A free chunk of this warpgroup, and handing it to the storing warp.
  __device__ __forceinline__ uint32_t takeChunk() {
    const uint32_t slot = chunkSlot();
    barrierWait(b_.at(L::kChunkEmpty + 8 * slot), (chunk_ / L::kBuffers & 1) ^ 1);
    if (C::kSplits && thread_ == 0) sharedStoreRelease(b_.at(L::kNothing + 4 * slot), 0);
    return b_.at(L::kChunks + slot * kChunkBytes);
  }
  __device__ __forceinline__ void giveChunk() {
    fenceAsyncShared();
    __syncwarp();
    if (lane_ == 0) barrierArrive(b_.at(L::kChunkFull + 8 * chunkSlot()));
    ++chunk_;
  }

  __device__ __forceinline__ void push(const float* v) {
    const uint32_t to = takeChunk() + warp_ * kPieceBytes + lane_ * 16;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float* const d = v + q * 8;
      sharedStore(to + q * 512, uint4{pack(In(), d[0], d[1]), pack(In(), d[2], d[3]), pack(In(), d[4], d[5]),
                                      pack(In(), d[6], d[7])});
    }
    giveChunk();
  }
  // left: columns from this band's first on.
  __device__ __forceinline__ void pushWide(const float* v, uint32_t left) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (j * 32 >= left) break;
      const uint32_t to = takeChunk() + warp_ * kPieceBytes + lane_ * 16;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float* const d = v + j * 16 + q * 4;
        sharedStore(to + q * 512,
                    uint4{__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]), __float_as_uint(d[3])});
      }
      giveChunk();
    }
  }

  // Chunks as images of the result; turned: in C's orientation.  sum: they go to this tile's packed node sum, whose rows begin at `first` here.
  __device__ __forceinline__ void images(const float* v, uint32_t cols, uint32_t rows, char* sum, uint32_t first,
                                         int band) {
    const uint32_t matrix = lane_ >> 3;
    const uint32_t row = warp_ * 16 + (matrix & 1) * 8 + (lane_ & 7);
    const uint32_t chunk = takeChunk();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float* const d = v + i * 8;
      const uint32_t a = pack(In(), d[0], d[1]), b = pack(In(), d[2], d[3]);
      const uint32_t c = pack(In(), d[4], d[5]), e = pack(In(), d[6], d[7]);
      if constexpr (C::kTurned) {
        const uint32_t turnedRow = (2 * i + (matrix >> 1)) * 8 + (lane_ & 7);
        storeMatricesTurned(chunk + inChunk(turnedRow, warp_ * 2 + (matrix & 1)), a, b, c, e);
      } else {
        storeMatrices(chunk + inChunk(row, 2 * i + (matrix >> 1)), a, b, c, e);
      }
    }
    if (sum != nullptr) storeSum(chunk, sum, first, rows, cols, band * 64, 2);
    giveChunk();
  }
  __device__ __forceinline__ void imagesWide(const float* v, uint32_t cols, uint32_t rows, char* sum, uint32_t first,
                                             int band) {
    const uint32_t row = warp_ * 16 + (lane_ >> 2);
    const uint32_t half = (lane_ & 1) * 8;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (band * 64 + j * 32 >= cols) break;
      const uint32_t chunk = takeChunk();
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float* const d = v + j * 16 + i * 4;
        const uint32_t unit = 2 * i + (lane_ >> 1 & 1);
        sharedStore(chunk + inChunk(row, unit) + half, d[0], d[1]);
        sharedStore(chunk + inChunk(row + 8, unit) + half, d[2], d[3]);
      }
      if (sum != nullptr) storeSum(chunk, sum, first, rows, cols, band * 64 + j * 32, 4);
      giveChunk();
    }
  }
  // This warp's rows of a chunk.  The place is free: control of an earlier launch has seen the writes complete that read it.
  __device__ __forceinline__ void storeSum(uint32_t chunk, char* sum, uint32_t first, uint32_t rows, uint32_t cols,
                                           uint32_t col, uint32_t bytes) {
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = warp_ * 16 + i * 4 + (lane_ >> 3), unit = lane_ & 7;
      const uint32_t at = col + unit * (16 / bytes);
      if (row < rows && at < cols)
        storeData(sum + (uint64_t{first + row} * cols + at) * bytes, sharedLoad(chunk + inChunk(row, unit)));
    }
  }

  const Block<C>& b_;
  const typename C::Params& p_;
  const uint32_t thread_, group_, warp_, lane_;
  uint32_t stage_ = 0, parity_ = 0, previous_ = 0, chunk_ = 0, halfSums_ = 0;
  float d_[kN / 2];
  uint4 held_[8];
};

}  // namespace mk::kernels
