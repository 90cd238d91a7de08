// Roles of whole blocks.  Receive: sums what arrives from other nodes, in the order of the nodes, finishes it and stores it to
// every local copy of C, or, of a ReduceScatter, to this rank's.  Copy: from this rank's stage to its ordinary C.  The steps are
// those of protocol::GemmAr's and GemmRs' receive() and copyOut(); here each piece of 16 bytes goes through them in registers.
#pragma once

#include "kernels/gemm_compute.cuh"
#include "protocol/command_ring.h"
#include "protocol/tile_cursor.h"

namespace mk::kernels {

template <class C>
class Receiver {
  using In = typename C::In;
  using Match = protocol::Match;
  using Why = protocol::Why;
  using Stage = protocol::Stage;
  using OwnLayout = protocol::OwnLayout;

 public:
  __device__ __forceinline__ Receiver(const Block<C>& b, sched::Role role, uint32_t thread, volatile uint64_t* mailbox)
      : b_(b),
        p_(b.p),
        plan_(b.p.plan),
        platform_(b.p.memory, role, thread, mailbox),
        bank_(b.bankData(platform_.epoch())),
        flags_(b.bankFlags(platform_.epoch())) {}

  __device__ __forceinline__ bool receive() {
    for (;;) {
      const uint64_t number = platform_.claim(protocol::OwnLayout::claimReceive);
      if constexpr (C::kOp == Operation::gemmRs) {
        if (number >= plan_.chunksOf(node(), b_.local())) return true;
        if (!ownRows(number)) return false;
      } else {
        const uint64_t owned = plan_.owned();
        if (number >= plan_.rail.tasks(owned)) return true;
        const sched::Rail::Task task = plan_.rail.task(number, owned, b_.local(), node());
        if (task.exists && !chunk(task.index, task.finish)) return false;
      }
    }
  }
  __device__ __forceinline__ bool copyOut() {
    for (;;) {
      const uint64_t position = platform_.claim(OwnLayout::claimCopy);
      if (position >= p_.order.positions) return true;
      const sched::TileStep t = p_.order.at(static_cast<uint32_t>(position));
      if (t.owner == b_.local()) continue;
      for (uint32_t part = 0; part < plan_.stagedParts(); ++part) {
        // Producer: the tile's owner, in FlagKeeper::raise() or tileOut().
        if (!platform_.wait(flag(b_.local(), plan_.stagedFlag(t.tile, part)), platform_.epoch(), Match::equal,
                            Why{Stage::staged, static_cast<int32_t>(t.owner), -1, t.tile}))
          return false;
      }
      const uint32_t outBytes = plan_.shape.outBytes;
      const uint32_t elements = 16 / outBytes, across = t.cols / elements;
      const sched::FastDivision byRow(across);
      const char* const image = p_.memory.heaps[b_.local()] + bank_ + b_.stagedTile(t.tile);
      const uint32_t count = across * t.rows;
      for (uint32_t first = platform_.thread(); first < count; first += 4 * BlockPlatform::kThreads) {
        uint4 v[4];
#pragma unroll
        for (uint32_t x = 0; x < 4; ++x) {
          const uint32_t u = first + x * BlockPlatform::kThreads;
          const uint32_t row = byRow.divide(u), col = (u - row * across) * elements;
          if (u < count) v[x] = loadData(image + inImage(row, col));
        }
#pragma unroll
        for (uint32_t x = 0; x < 4; ++x) {
          const uint32_t u = first + x * BlockPlatform::kThreads;
          const uint32_t row = byRow.divide(u), col = (u - row * across) * elements;
          if (u < count)
            storeData(p_.operands.c + (uint64_t{t.row + row} * p_.operands.cStride + t.col + col) * outBytes, v[x]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ uint32_t node() const { return p_.memory.place.node; }
  __device__ __forceinline__ uint32_t nodes() const { return p_.memory.place.nodes; }
  __device__ __forceinline__ protocol::Ref flag(uint32_t local, uint64_t word) const {
    return protocol::heap(local, flags_ + word * 8);
  }

  // Until all nodes' sums of a chunk are here.  flagWord: of this node's.
  __device__ __forceinline__ bool waitSums(uint64_t i, uint64_t flagWord, uint64_t item) {
    // Producer: this rank's flag warps, in FlagKeeper::raise().
    if (!platform_.wait(flag(b_.local(), flagWord), platform_.epoch(), Match::equal, Why{Stage::nodeSum, -1, -1, item}))
      return false;
    for (uint32_t n = 0; n < nodes(); ++n) {
      if (n != node() && !arrived(i, n, Stage::nodeArrival)) return false;
    }
    return true;
  }
  // ReduceScatter: chunk i of this rank's rows.
  __device__ __forceinline__ bool ownRows(uint64_t i) {
    const uint64_t railChunk = plan_.railChunk(node(), i);
    if (!waitSums(i, plan_.nodeSumFlag(node(), i), railChunk)) return false;
    const uint32_t count = plan_.tilesIn(node(), b_.local(), i);
    for (uint32_t j = 0; j < count; ++j) {
      const sched::GemmRsTile t = plan_.tileOf(node(), b_.local(), i * plan_.chunkTiles + j);
      Sums from;
      from.tile = t.shape;
      from.tile.row -= t.firstRow;
      from.before = plan_.elementsBefore(t);
      from.own = plan_.nodeSum(node(), i);
      from.arrived = plan_.arrivedSum(i, sched::unskipSelf(0, node()), node());
      sum(from);
    }
    return true;
  }

  // Sums and finishes chunk i of mine, or passes on what its home has finished.
  __device__ __forceinline__ bool chunk(uint64_t i, bool finish) {
    const uint64_t e = platform_.epoch();
    if (finish) {
      if (!waitSums(i, plan_.nodeSumFlag(i), i)) return false;
    } else if (!arrived(i, plan_.rail.home(i, b_.local()), Stage::result)) {
      return false;
    }
    for (uint32_t l = 0; l < b_.locals(); ++l) {
      // Producer: this launch's control agent, once the peer has entered.
      if (l != b_.local() && !platform_.wait(protocol::own(OwnLayout::peerOpen(l)), e, Match::equal,
                                             Why{Stage::entered, static_cast<int32_t>(l), -1, 0}))
        return false;
    }
    const bool home = finish && plan_.rail.exchange == sched::Exchange::home;
    const uint64_t chunkNumber = plan_.chunks.ownedChunk(b_.local(), i);
    const uint64_t first = plan_.chunks.firstTile(chunkNumber);
    const uint32_t count = plan_.chunks.tilesIn(chunkNumber);
    for (uint32_t j = 0; j < count; ++j) {
      const protocol::TileTask t = protocol::taskOfTile(plan_, first + j);
      if (finish) {
        Sums from;
        from.tile = t.shape;
        from.number = static_cast<uint32_t>(t.tile);
        from.before = plan_.elementsBefore(t.tile);
        from.own = plan_.nodeSum(i);
        from.arrived = plan_.arrivedSum(i, sched::unskipSelf(0, node()), node());
        from.result = plan_.result(i);
        from.home = home;
        sum(from);
      } else {
        forward(t, i);
      }
      tileOut(t);
    }
    if (!home) return true;
    const uint64_t bytes = plan_.elementsOfChunk(chunkNumber) * plan_.shape.outBytes;
    for (uint32_t s = 0; s + 1 < nodes(); ++s) {
      const uint32_t n = plan_.rail.target(node(), s);
      // Producer: this launch's control agent, once the rail peer has entered.
      if (!platform_.wait(protocol::own(OwnLayout::railOpen(b_.locals(), n)), e, Match::equal,
                          Why{Stage::entered, -1, static_cast<int32_t>(n), 0}))
        return false;
      const uint64_t at = bank_ + plan_.result(i);
      if (!protocol::post(platform_, protocol::Write{n, at, at, bytes, plan_.slot(i), e})) return false;
    }
    return true;
  }
  // Producer: the rail peer on node n, by a command.
  __device__ __forceinline__ bool arrived(uint64_t i, uint32_t n, Stage stage) {
    const uint64_t at =
        sched::arrivalFlag(p_.memory.heapLayout, p_.memory.controlLayout, plan_.slot(i), n, platform_.epoch());
    return platform_.wait(protocol::heap(b_.local(), at), platform_.epoch(), Match::equal,
                          Why{stage, -1, static_cast<int32_t>(n), i});
  }

  // A tile, and where its sums lie in the bank.
  struct Sums {
    sched::Tile tile;               // in rows of C
    uint32_t number = 0;            // of the tile, where it is staged
    uint64_t before = 0;            // elements before it in its packed chunk
    uint64_t own = 0, arrived = 0;  // this node's sum of the chunk; of the others, one after the other
    uint64_t result = 0;            // home: the finished chunk
    bool home = false;
  };
  __device__ __forceinline__ void sum(const Sums& t) {
    if (plan_.shape.wireBytes == 2) return sum<false, false>(t);
    if (plan_.shape.outBytes == 2) return sum<true, false>(t);
    sum<true, true>(t);
  }
  // Each thread has several pieces of a result in hand, of 16 bytes, all of whose loads are under way at once: the latency of one
  // is a microsecond.
  static constexpr uint32_t kAtOnce = 4;

  template <bool kWireWide, bool kOutWide>
  __device__ __forceinline__ void sum(const Sums& t) {
    constexpr uint32_t kOutBytes = kOutWide ? 4 : 2, kElements = 16 / kOutBytes;
    constexpr uint32_t kUnit = kElements * (kWireWide ? 4 : 2), kLoads = kUnit / 16;
    const uint32_t across = t.tile.cols / kElements, count = across * t.tile.rows;
    const sched::FastDivision byRow(across);
    const char* const bank = p_.memory.heaps[b_.local()] + bank_ + t.before * (kWireWide ? 4 : 2);
    const char* const own = bank + t.own;
    const char* const arrived = bank + t.arrived;
    const uint64_t chunkBytes = plan_.chunkBytes();
    char* const result = p_.memory.heaps[b_.local()] + bank_ + t.result + t.before * kOutBytes;
    const bool plain = b_.plain();
    for (uint32_t first = platform_.thread(); first < count; first += kAtOnce * BlockPlatform::kThreads) {
      float sums[kAtOnce][8];
#pragma unroll
      for (uint32_t x = 0; x < kAtOnce; ++x) {
#pragma unroll
        for (uint32_t y = 0; y < 8; ++y) sums[x][y] = 0.0f;
      }
      for (uint32_t n = 0; n < nodes(); ++n) {
        const char* const from = n == node() ? own : arrived + sched::skipSelf(n, node()) * chunkBytes;
        uint4 v[kAtOnce][kLoads];
#pragma unroll
        for (uint32_t x = 0; x < kAtOnce; ++x) {
          const uint32_t u = first + x * BlockPlatform::kThreads;
#pragma unroll
          for (uint32_t y = 0; y < kLoads; ++y)
            v[x][y] = loadData(from + uint64_t{u < count ? u : first} * kUnit + y * 16);
        }
#pragma unroll
        for (uint32_t x = 0; x < kAtOnce; ++x) {
#pragma unroll
          for (uint32_t y = 0; y < kLoads; ++y) addPiece<kWireWide>(sums[x] + y * 4, v[x][y]);
        }
      }
#pragma unroll
      for (uint32_t x = 0; x < kAtOnce; ++x) {
        const uint32_t u = first + x * BlockPlatform::kThreads;
        if (u < count) {
          const uint32_t row = byRow.divide(u), col = (u - row * across) * kElements;
          if (!plain) finishElements(sums[x], t.tile, row, col, kElements);
          const uint4 v = round<kOutWide>(sums[x]);
          if (t.home) storeData(result + uint64_t{u} * 16, v);
          storeEverywhere(t.tile, t.number, row, col, v);
        }
      }
    }
  }
  __device__ __forceinline__ void forward(const protocol::TileTask& t, uint64_t i) {
    const uint32_t outBytes = plan_.shape.outBytes, elements = 16 / outBytes;
    const uint32_t across = t.shape.cols / elements, count = across * t.shape.rows;
    const sched::FastDivision byRow(across);
    const char* const result =
        p_.memory.heaps[b_.local()] + bank_ + plan_.result(i) + plan_.elementsBefore(t.tile) * outBytes;
    for (uint32_t first = platform_.thread(); first < count; first += kAtOnce * BlockPlatform::kThreads) {
      uint4 v[kAtOnce];
#pragma unroll
      for (uint32_t x = 0; x < kAtOnce; ++x) {
        const uint32_t u = first + x * BlockPlatform::kThreads;
        v[x] = loadData(result + uint64_t{u < count ? u : first} * 16);
      }
#pragma unroll
      for (uint32_t x = 0; x < kAtOnce; ++x) {
        const uint32_t u = first + x * BlockPlatform::kThreads;
        const uint32_t row = byRow.divide(u);
        if (u < count)
          storeEverywhere(t.shape, static_cast<uint32_t>(t.tile), row, (u - row * across) * elements, v[x]);
      }
    }
  }
  // Eight elements of the inputs' type, or four of fp32.
  template <bool kWide>
  static __device__ __forceinline__ void addPiece(float* sum, const uint4& v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t x = 0; x < 4; ++x) {
      if constexpr (kWide) {
        sum[x] += __uint_as_float(words[x]);
      } else {
        const float2 f = unpack(In(), words[x]);
        sum[2 * x] += f.x;
        sum[2 * x + 1] += f.y;
      }
    }
  }
  __device__ __forceinline__ void finishElements(float (&sum)[8], const sched::Tile& t, uint32_t row, uint32_t col,
                                                 uint32_t elements) {
    const GemmOperands& op = p_.operands;
    const uint64_t x = t.col + col;
#pragma unroll
    for (uint32_t y = 0; y < 8; ++y) {
      if (y >= elements) break;
      sum[y] *= op.alpha;
      if (op.beta != 0.0f)
        sum[y] += op.beta * loadElement<In>(op.c, (t.row + row) * op.cStride + x + y, plan_.shape.outBytes == 4);
      if (op.bias != nullptr) sum[y] += loadElement<In>(op.bias, x + y, op.biasType == Type::f32);
    }
    if (op.activation == protocol::Activation::none) return;
    float w[8];
#pragma unroll
    for (uint32_t y = 0; y < 8; ++y) w[y] = sum[y];
#pragma unroll 1
    for (uint32_t y = 0; y < elements; ++y) w[y] = activated(w[y], op.activation);
#pragma unroll
    for (uint32_t y = 0; y < 8; ++y) sum[y] = w[y];
  }
  template <bool kWide>
  static __device__ __forceinline__ uint4 round(const float (&s)[8]) {
    if constexpr (kWide)
      return {__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]), __float_as_uint(s[3])};
    return {pack(In(), s[0], s[1]), pack(In(), s[2], s[3]), pack(In(), s[4], s[5]), pack(In(), s[6], s[7])};
  }
  // A staged tile is the images of its chunks: bands of 64 rows, and in each chunk after chunk.
  __device__ __forceinline__ uint32_t inImage(uint32_t row, uint32_t col) const {
    const uint32_t outBytes = plan_.shape.outBytes, chunkCols = 128 / outBytes;
    return row / 64 * (64 * C::kN * outBytes) + col / chunkCols * kChunkBytes +
           inChunk(row % 64, col % chunkCols * outBytes / 16);
  }
  __device__ __forceinline__ void storeEverywhere(const sched::Tile& t, uint32_t number, uint32_t row, uint32_t col,
                                                  const uint4& v) {
    const uint64_t inC = ((t.row + row) * p_.operands.cStride + t.col + col) * plan_.shape.outBytes;
    storeData(p_.operands.c + inC, v);
    if constexpr (C::kSpreads) {
      const uint64_t inStage = bank_ + b_.stagedTile(number) + inImage(row, col);
      for (uint32_t l = 0; l < b_.locals(); ++l) {
        if (l == b_.local()) continue;
        storeData(b_.staged() ? p_.memory.heaps[l] + inStage : p_.peers[l] + inC, v);
      }
    }
  }

  __device__ __forceinline__ void tileOut(const protocol::TileTask& t) {
    if (b_.locals() == 1) return;
    if (!b_.staged() && !platform_.arrive(OwnLayout::tilesOut, plan_.ownedTiles())) return;
    const uint64_t word = b_.staged() ? plan_.stagedFlag(t.tile) : plan_.outFlag(b_.local());
    for (uint32_t l = 0; l < b_.locals(); ++l) {
      if (l != b_.local()) platform_.publish(flag(l, word), platform_.epoch(), protocol::Scope::node);
    }
  }

  const Block<C>& b_;
  const typename C::Params& p_;
  const std::remove_cvref_t<decltype(std::declval<typename C::Params>().plan)>& plan_;
  BlockPlatform platform_;
  const uint64_t bank_, flags_;
};

}  // namespace mk::kernels
