// What the warps of a block share in the kernels of all operations: the map of shared memory, and the ring of tasks, by which the
// loading thread of a cluster tells all warps of both blocks which tile is next.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/mbarrier.cuh"
#include "kernels/params.h"
#include "kernels/platform.cuh"
#include "kernels/tma.cuh"

namespace mk::kernels {

constexpr uint32_t kThreads = 384;
constexpr uint32_t kBoxK = 64;          // of K across a box: what a warpgroup multiplies in a step
constexpr uint32_t kChunkBytes = 8192;  // 64 rows of 128 bytes
constexpr uint32_t kPieceBytes = 2048;  // of a chunk: the 16 rows of one warp
constexpr uint32_t kTaskSlots = 4;
constexpr uint32_t kTaskBytes = 48;
// Who reports to the flag warp at its end: loading warp, the two that store or move, computing ones.
constexpr uint32_t kDrainArrivals = 4;

using sched::Operation;

static_assert(kTurnedWeightBytes == sched::kTurnedRows / sched::kClusterBlocks * sched::stepK(true) * 2);

// Offsets in shared memory.
template <int kN, Operation kOp>
struct Layout {
  static constexpr bool kMoves = kOp == Operation::agGemm;
  // Tiles are of the product transposed: their rows are columns of C, and rows of B (N, K).  There a block's two warpgroups have
  // half of each step's K each; elsewhere half of the block's rows.
  static constexpr bool kTurned = kN == sched::kTurnedCols;
  static constexpr bool kWide = kN > 128;
  static constexpr uint32_t kBlockRows = (kTurned ? sched::kTurnedRows : sched::kClusterRows) / sched::kClusterBlocks;
  static constexpr uint32_t kStepK = sched::stepK(kTurned);
  // Warpgroups that finish tiles.
  static constexpr uint32_t kFinishers = kTurned ? 1 : 2;
  // Chunks of a finished tile, per warpgroup that finishes some; and of rows on their way to a peer.
  static constexpr uint32_t kBuffers = kWide && !kMoves ? 4 : 2;
  static constexpr uint32_t kMoveBuffers = !kMoves ? 0 : kWide ? 6 : 4;
  static constexpr uint32_t kABytes = kBlockRows * kStepK * 2;
  static constexpr uint32_t kBBytes = kN * kStepK * 2;
  static constexpr uint32_t kStageBytes = kABytes + kBBytes;
  // Turned: at most; with 64 rows of A there are turnedStageRoom() / 32 KiB.
  static constexpr uint32_t kStages = kTurned ? kMostTurnedStages : kWide ? 3 : 5;
  static constexpr uint32_t kChunks = kTurned ? turnedStageRoom(kMoves) : kStages * kStageBytes;
  // Products of 64 columns read beyond a last box that is shorter.
  static_assert(!kTurned || (kN - 8) * kStepK <= kFinishers * kBuffers * kChunkBytes);
  // Turned: sums over half of K, from the warpgroup that does not finish tiles to the one that does.
  static constexpr uint32_t kHalfSums = kChunks + kFinishers * kBuffers * kChunkBytes;
  static constexpr uint32_t kHalfSumsBytes = kTurned ? kBlockRows * kN * 4 : 0;
  static constexpr uint32_t kMoved = kHalfSums + kHalfSumsBytes;
  static constexpr uint32_t kTasks = kMoved + kMoveBuffers * kChunkBytes;
  static constexpr uint32_t kBarriers = kTasks + kTaskSlots * kTaskBytes;
  static constexpr uint32_t kFull = kBarriers;
  static constexpr uint32_t kEmpty = kFull + 8 * kStages;
  static constexpr uint32_t kChunkFull = kEmpty + 8 * kStages;
  static constexpr uint32_t kChunkEmpty = kChunkFull + 8 * kFinishers * kBuffers;
  static constexpr uint32_t kHalfSumsFull = kChunkEmpty + 8 * kFinishers * kBuffers;
  static constexpr uint32_t kHalfSumsEmpty = kHalfSumsFull + 8;
  static constexpr uint32_t kTaskFull = kHalfSumsEmpty + 8;
  static constexpr uint32_t kTaskEmpty = kTaskFull + 8 * kTaskSlots;  // used in the leading block
  static constexpr uint32_t kPartialReady = kTaskEmpty + 8 * kTaskSlots;
  static constexpr uint32_t kPartialTaken = kPartialReady + 8 * sched::mostFlagBands(kN);
  static constexpr uint32_t kMoveFull = kPartialTaken + 8;
  static constexpr uint32_t kDrained = kMoveFull + 8 * kMoveBuffers;
  static constexpr uint32_t kRoleKnown = kDrained + 8;
  static constexpr uint32_t kMailbox = kRoleKnown + 8;
  static constexpr uint32_t kHanded = kMailbox + 16;  // tiles handed to the flag warp, by each storing warp
  static constexpr uint32_t kFailed = kHanded + 8;    // this block's results are worth nothing
  static constexpr uint32_t kRowsKnown = kHanded;     // AllGather: tiles whose rows of A have come
  static constexpr uint32_t kControl = kFailed + 4;   // 1: this block has the control role
  static constexpr uint32_t kTicket = kControl + 4;   // of the cluster, where some do not compute
  // Where K is split: whether a warpgroup was the last of its tile's parts to come, and for each chunk whether it holds
  // nothing, since the tile is finished elsewhere.
  static constexpr uint32_t kLastPart = kTicket + 4;
  static constexpr uint32_t kNothing = kLastPart + 4 * kFinishers;
  static constexpr uint32_t kEnd = kNothing + 4 * kFinishers * kBuffers;
  static constexpr uint32_t kBytes = kEnd + 1024;  // and room to align the stages
};
static_assert(Layout<256, Operation::gemmAr>::kBytes <= 232448 && Layout<128, Operation::gemmAr>::kBytes <= 232448);
static_assert(Layout<sched::kTurnedCols, Operation::gemmAr>::kBytes <= 232448);
static_assert(Layout<sched::kTurnedCols, Operation::agGemm>::kBytes <= 232448);
static_assert(Layout<sched::kMediumCols, Operation::agGemm>::kBytes <= 232448);
static_assert(Layout<sched::kSlimCols, Operation::agGemm>::kBytes <= 232448);
static_assert(Layout<256, Operation::agGemm>::kBytes <= 232448 && Layout<128, Operation::agGemm>::kBytes <= 232448);

template <Operation kOp>
using ParamsOf = std::conditional_t<kOp == Operation::gemmAr, GemmArParams,
                                    std::conditional_t<kOp == Operation::gemmRs, GemmRsParams, AgGemmParams>>;

// Which tiles an instance computes.  spanning: of GEMM+ReduceScatter, with rows of several ranks (sched/gemm_rs.h).
enum class Tiles { byOwner, spanning };

// One instance of a kernel.  Those that are not general are for one node, results of the inputs' type, which is what travels too,
// and a plain product: all blocks compute.
template <Operation kOperation, class InType, int kTileN, bool kBAlongN, bool kIsGeneral, Tiles kTiles = Tiles::byOwner>
struct Config {
  using In = InType;
  using L = Layout<kTileN, kOperation>;
  using Params = ParamsOf<kOperation>;
  static constexpr Operation kOp = kOperation;
  static constexpr bool kTurned = L::kTurned;
  // Partial results travel; finished tiles do.
  static constexpr bool kSums = kOp != Operation::agGemm, kSpreads = kOp == Operation::gemmAr;
  // Who reads a task: flag warp, storing warps, eight computing ones of each block, and the following block's loading warp.
  static constexpr uint32_t kTaskReaders = 2 * (kSums ? 11 : 10) + 1;
  static constexpr int kN = kTileN;
  static constexpr bool kAlongN = kBAlongN;
  static constexpr bool kGeneral = kIsGeneral;
  static constexpr bool kSpanning = kTiles == Tiles::spanning;
  // Several clusters may have a part of a tile's K each.
  static constexpr bool kSplits = kOp == Operation::agGemm && !L::kWide;
  // A tile's columns are announced in at most so many bands.
  static constexpr uint32_t kFlagBands = kSpanning ? 1 : sched::mostFlagBands(kTileN);
};

enum TaskKind : uint32_t { taskEnd, taskPeers, taskMine, taskSpanning };

// A tile as the warps see it: three words of 16 bytes.
struct Task {
  uint32_t kind, owner, row, col;
  uint32_t rows, cols;
  uint64_t place;  // of the partial result in the owner's bank: mine of a peer's tile, the first peer's of mine
  uint32_t tile, ownedTile, ownedChunk;
  uint64_t sum;              // with several nodes: of the node's sum of the tile, packed
  uint32_t part, splitTile;  // of AllGather, where K is split: which of the parts, and of which tile
};

// A position of the operation's order.
template <class C>
using StepOf = std::remove_cvref_t<decltype(std::declval<typename C::Params>().order.at(0))>;

__device__ __forceinline__ bool exists(const sched::TileStep&) { return true; }
__device__ __forceinline__ bool exists(const sched::RsStep& s) { return s.exists; }
__device__ __forceinline__ bool exists(const sched::AgStep& s) { return s.exists; }

// Its words as AllGather+GEMM has them: all tiles are own ones.
struct RowsTask {
  uint32_t kind, row, col;
  uint32_t rows, cols;
  uint32_t node, local, rank;  // whose rows of A
  uint32_t shardRow, firstChunk, endChunk;
  uint32_t part;  // of K
};

template <class C>
struct Block {
  const typename C::Params& p;
  const uint32_t base;   // of shared memory, aligned to 1024
  const uint32_t index;  // in the cluster; 0 leads

  __device__ __forceinline__ uint32_t at(uint32_t offset) const { return base + offset; }
  __device__ __forceinline__ bool multiNode() const { return C::kGeneral && p.memory.place.nodes > 1; }
  // There is nobody else.
  __device__ __forceinline__ bool alone() const { return locals() == 1 && !multiNode(); }
  // Tiles are claimed in one order by all clusters together.  No peer waits for tiles of AllGather+GEMM; but with several nodes the
  // first clusters to come do not compute, and numbers say nothing.
  __device__ __forceinline__ bool inOrder() const {
    return multiNode() || (C::kOp != Operation::agGemm && locals() > 1);
  }
  // Own tiles are stored as the node's sums, for whole blocks to add those of other nodes.
  __device__ __forceinline__ bool nodeSums() const { return C::kSums && multiNode(); }
  __device__ __forceinline__ uint32_t wireBytes() const {
    if constexpr (C::kGeneral && C::kSums) {
      return p.plan.shape.wireBytes;
    } else {
      return 2;
    }
  }
  __device__ __forceinline__ bool wireWide() const { return C::kGeneral && C::kSums && wireBytes() == 4; }
  __device__ __forceinline__ uint32_t outBytes() const { return C::kGeneral && p.operands.out == Type::f32 ? 4 : 2; }
  __device__ __forceinline__ bool outWide() const { return outBytes() == 4; }
  __device__ __forceinline__ bool plain() const { return !C::kGeneral || isPlain(p.operands); }
  __device__ __forceinline__ uint32_t locals() const { return p.memory.place.locals; }
  __device__ __forceinline__ uint32_t local() const { return p.memory.place.local; }
  __device__ __forceinline__ bool staged() const {
    if constexpr (C::kGeneral && C::kSpreads) {
      return p.plan.shape.staged && locals() > 1;
    } else {
      return false;
    }
  }
  // Own tiles are added to: partial results come from peers.
  __device__ __forceinline__ bool adds() const { return C::kSums && locals() > 1; }
  __device__ __forceinline__ uint64_t bankData(uint64_t epoch) const {
    return p.memory.heapLayout.data(static_cast<uint32_t>(epoch & 1));
  }
  __device__ __forceinline__ uint64_t bankFlags(uint64_t epoch) const {
    return p.memory.heapLayout.flags(static_cast<uint32_t>(epoch & 1));
  }
  __device__ __forceinline__ uint32_t bands() const { return C::kFlagBands == 1 ? 1 : p.choice.flagBands; }
  // The plan's partialFlag() and stagedTile(), without a division.
  __device__ __forceinline__ uint64_t partialFlag(uint32_t ownedTile, uint32_t from, uint32_t owner,
                                                  uint32_t band) const {
    return p.partialFlags + (uint64_t{ownedTile} * (locals() - 1) + sched::skipSelf(from, owner)) * p.plan.parts +
           index * bands() + band;
  }
  __device__ __forceinline__ uint64_t stagedTile(uint32_t tile) const {
    return p.stage + uint64_t{tile} * p.plan.outSlotBytes();
  }
  // Row of C of a tile of mine that is mine to finish: ReduceScatter's C has this rank's rows alone.
  __device__ __forceinline__ uint32_t rowOfC(uint32_t row) const {
    if constexpr (C::kOp == Operation::gemmRs) {
      return row - p.firstRow;
    } else {
      return row;
    }
  }
  // Stages of operands, and their bytes: turned tiles have the more of them the fewer rows of A there are.  A box of these may be
  // shorter than what is multiplied: what lies behind it gives columns that nobody stores.
  __device__ __forceinline__ uint32_t stages() const { return C::kTurned ? p.turnedStages : C::L::kStages; }
  __device__ __forceinline__ uint32_t halfOfB() const { return C::kTurned ? p.turnedBoxBytes : C::L::kBBytes / 2; }
  __device__ __forceinline__ uint32_t stageBytes() const { return C::L::kABytes + 2 * halfOfB(); }
  // Rows of a tile that a block has.  What is multiplied in place of those that AllGather's low turned tiles lack gives columns
  // of C that nobody stores.
  __device__ __forceinline__ uint32_t blockRows() const {
    if constexpr (C::kTurned && !C::kSums) {
      return p.turnedBlockRows;
    } else {
      return C::L::kBlockRows;
    }
  }
  // K is split between clusters.
  __device__ __forceinline__ bool split() const {
    if constexpr (C::kSplits) {
      return p.split.parts > 1;
    } else {
      return false;
    }
  }
  __device__ __forceinline__ sched::KSteps stepsOf(uint32_t part) const {
    if constexpr (C::kSplits) {
      return p.split.of(part);
    } else {
      return {0, 1, p.kSteps};
    }
  }
  // Whether warpgroup `group` does more than multiply.
  __device__ __forceinline__ bool finishes(uint32_t group) const { return !C::kTurned || group == 0; }
  // Rows of a tile that it finishes: the first of them, and how many there are.
  __device__ __forceinline__ uint32_t firstRow(uint32_t group) const {
    return index * blockRows() + (C::kTurned ? 0 : group * 64);
  }
  __device__ __forceinline__ uint32_t rowsOf(uint32_t rows, uint32_t group) const {
    if (!finishes(group)) return 0;
    const uint32_t first = firstRow(group), most = C::kTurned ? blockRows() : 64;
    return rows <= first ? 0 : (rows - first < most ? rows - first : most);
  }
  // Of spanning tiles: the rows of C as the local ranks collect them; those that this block, or a warpgroup of it, computes.
  __device__ __forceinline__ sched::RowShards shards() const {
    return {C::kTurned ? p.order.n : p.order.m, p.shardRows, local()};
  }
  __device__ __forceinline__ sched::RowSpan partOf(const Task& t) const {
    return sched::rowsOfBlock(t, C::kTurned, index * C::L::kBlockRows, C::L::kBlockRows);
  }
  __device__ __forceinline__ sched::RowSpan partOf(const Task& t, uint32_t group) const {
    return sched::rowsOfPart(t, C::kTurned, firstRow(group), finishes(group) ? 64 : 0);
  }
};

// One reader's place in the ring of tasks.
template <class C>
class TaskReader {
  using L = typename C::L;

 public:
  __device__ __forceinline__ explicit TaskReader(const Block<C>& b) : block_(b) {}

  __device__ __forceinline__ void wait() { barrierWait(block_.at(L::kTaskFull + 8 * slot_), parity_); }
  // The task to come is known.
  __device__ __forceinline__ bool known() const { return barrierTest(block_.at(L::kTaskFull + 8 * slot_), parity_); }
  // For whole warps whose matrix instructions depend on it: the compiler must know that all threads read the same, or it takes
  // those one by one.  read: for release().
  __device__ __forceinline__ Task readUniform(uint32_t* read) const {
    const uint32_t at = block_.at(L::kTasks + kTaskBytes * slot_);
    uint4 a = sharedLoad(at), b = sharedLoad(at + 16), c = {};
    uniform(&a.x);
    uniform(&a.w);
    uniform(&b.x);
    uniform(&b.y);
    if constexpr (C::kSplits) uniform(&b.w);
    if constexpr (C::kGeneral) {
      c = sharedLoad(at + 32);
      uniform(&c.z);
      uniform(&c.w);
    }
    *read = zeroOf(a, b, c);
    return unpack(a, b, c);
  }
  // One thread of each reader, after all its threads have read.  The arrival goes to another block, by another way than the loads,
  // and nothing orders it behind them: it may free the slot before it has been read.  So its address depends on what they have brought, by `read`.
  // Not of the end: nobody waits for that, and the block it goes to might have left (Schedule::drain).
  __device__ __forceinline__ void release(uint32_t read) const {
    barrierArriveAt(inBlock(block_.at(L::kTaskEmpty + 8 * slot_), 0) + read);
  }
  __device__ __forceinline__ void next() {
    if (++slot_ == kTaskSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }
  // For readers of one thread.
  __device__ __forceinline__ Task take() {
    wait();
    const uint32_t at = block_.at(L::kTasks + kTaskBytes * slot_);
    const uint4 a = sharedLoad(at), b = sharedLoad(at + 16), c = C::kGeneral ? sharedLoad(at + 32) : uint4{};
    const Task t = unpack(a, b, c);
    if (t.kind != taskEnd) release(zeroOf(a, b, c));
    next();
    return t;
  }
  __device__ __forceinline__ RowsTask takeRows() {
    wait();
    const uint32_t at = block_.at(L::kTasks + kTaskBytes * slot_);
    const uint4 a = sharedLoad(at), b = sharedLoad(at + 16), c = sharedLoad(at + 32);
    RowsTask t;
    t.kind = a.x & 0xff;
    if (t.kind != taskEnd) release(zeroOf(a, b, c));
    next();
    t.local = a.x >> 8;
    t.row = a.y;
    t.col = a.z;
    t.rows = a.w & 0xffff;
    t.cols = a.w >> 16;
    t.node = b.x;
    t.rank = b.y;
    t.shardRow = b.z;
    t.part = b.w >> 16;
    t.firstChunk = c.x;
    t.endChunk = c.y;
    return t;
  }
  // The task to come is known, and there is none.
  __device__ __forceinline__ bool knownEnd() const {
    if (!known()) return false;
    return (sharedLoad(block_.at(L::kTasks + kTaskBytes * slot_)).x & 0xff) == taskEnd;
  }

 private:
  // Always 0, which the compiler does not know: words below 2^31, and the halves of places and sums.
  static __device__ __forceinline__ uint32_t zeroOf(const uint4& a, const uint4& b, const uint4& c) {
    return (a.x | a.y | a.z | a.w | (b.x & b.y) | b.y | b.z | b.w | c.x | c.y | (c.z & c.w) | c.w) >> 31;
  }
  static __device__ __forceinline__ void uniform(uint32_t* v) { *v = __shfl_sync(0xffffffffu, *v, 0); }
  static __device__ __forceinline__ Task unpack(const uint4& a, const uint4& b, const uint4& c) {
    Task t;
    t.kind = a.x & 0xff;
    t.owner = a.x >> 8;
    t.row = a.y;
    t.col = a.z;
    t.rows = a.w & 0xffff;
    t.cols = a.w >> 16;
    t.place = b.x | static_cast<uint64_t>(b.y) << 32;
    t.tile = b.z;
    t.ownedTile = b.w;
    t.ownedChunk = c.x;
    t.sum = c.z | static_cast<uint64_t>(c.w) << 32;
    t.part = C::kSplits ? b.w >> 16 : 0;
    t.splitTile = b.w & 0xffff;
    return t;
  }

  const Block<C>& block_;
  uint32_t slot_ = 0, parity_ = 0;
};

// The cluster's schedule, kept by the loading thread of the leading block: claims tiles and tells all warps of both blocks.
template <class C>
class Schedule {
  using L = typename C::L;

 public:
  __device__ __forceinline__ explicit Schedule(const Block<C>& b)
      : b_(b), platform_(b.p.memory, sched::Role::compute) {}

  // Where nobody waits for another's tile, each cluster may take the one of its number at once; later claims count from there.
  // Otherwise the order of the claims must be that in which clusters come.
  __device__ __forceinline__ void claimFirst() {
    if (b_.inOrder()) return claim();
    position_ = clusterNumber();
    asked_ = false;
  }
  // What is claimed becomes known when it is used: announce() of it may come much later.
  __device__ __forceinline__ void claim() {
    if (oneEach()) {
      position_ = b_.p.order.positions;
      asked_ = false;
      return;
    }
    position_ = addRelaxed(counter(), 1) + (b_.inOrder() ? 0 : b_.p.choice.clusters);
    asked_ = true;
    failed_ = loadRelaxed(platform_.own(protocol::OwnLayout::failed));
    revoked_ = loadRelaxed(platform_.own(protocol::OwnLayout::revoked));
  }
  // Before the second claim: not before everyone has a first tile, or the order would be upset; but whoever is not resident is
  // not waited for.
  __device__ __forceinline__ void awaitOthers() const {
    if (!b_.inOrder()) return;
    const uint64_t start = clockNs();
    while (loadRelaxed(counter()) < b_.p.choice.clusters && clockNs() - start < 3000) {
    }
  }
  // Clusters go by their number, and none has a second tile: there is nothing to ask for.
  __device__ __forceinline__ bool oneEach() const {
    return !b_.inOrder() && b_.p.choice.clusters >= b_.p.order.positions;
  }
  __device__ __forceinline__ bool firstOfAll() const { return position_ == 0; }
  // Tells all.  False: there is no tile left.  `step`: the tile.
  template <class Step>
  __device__ __forceinline__ bool announce(Step* step) {
    const auto& order = b_.p.order;
    bool end = false;
    for (;;) {
      const bool leave = asked_ && (failed_ == platform_.epoch() || revoked_ != 0);
      if (leave) {
        platform_.fail(protocol::FailRecord::revoked, protocol::Why{}, 0, revoked_);
        sharedStoreRelease(b_.at(L::kFailed), 1);
      }
      end = position_ >= order.positions || leave;
      if (end) break;
      *step = order.at(static_cast<uint32_t>(position_));
      if (exists(*step)) break;
      claim();  // a short shard lacks it
    }
    uint4 words[3] = {};
    if (!end) fill(words, *step);
    send(words);
    return !end;
  }
  // Once all has been told: until all readers have released the tiles, so that no arrival is on its way to a block that leaves.
  __device__ __forceinline__ void drain() const {
    const uint32_t tiles = count_ - 1;  // and the end
    for (uint32_t i = tiles > kTaskSlots ? tiles - kTaskSlots : 0; i < tiles; ++i)
      barrierWait(b_.at(L::kTaskEmpty + 8 * (i % kTaskSlots)), i / kTaskSlots & 1);
  }
  // A first tile that goes by the cluster's number, and exists.
  __device__ __forceinline__ void announceFirst(const StepOf<C>& step) {
    position_ = clusterNumber();
    uint4 words[3];
    fill(words, step);
    send(words);
  }

 private:
  __device__ __forceinline__ uint64_t* counter() const { return platform_.own(protocol::OwnLayout::claimCompute); }
  __device__ __forceinline__ void send(const uint4 (&words)[3]) {
    const uint32_t slot = count_ % kTaskSlots;
    if (count_ >= kTaskSlots) barrierWait(b_.at(L::kTaskEmpty + 8 * slot), (count_ / kTaskSlots - 1) & 1);
    ++count_;
    for (uint32_t block = 0; block < sched::kClusterBlocks; ++block) {
      const uint32_t to = inBlock(b_.at(L::kTasks + kTaskBytes * slot), block);
      const uint32_t full = inBlock(b_.at(L::kTaskFull + 8 * slot), block);
      barrierExpectAt(full, kTaskBytes);
      for (uint32_t i = 0; i < 3; ++i) storeAt(to + 16 * i, full, words[i]);
    }
  }
  __device__ __forceinline__ void fill(uint4 (&words)[3], const sched::TileStep& s) const {
    const uint64_t before = b_.multiNode() ? b_.p.plan.elementsBefore(s.tile) : 0;
    fillSummed(words, s, b_.multiNode() ? b_.p.plan.nodeSum(s.ownedChunk) + before * b_.wireBytes() : 0);
  }
  __device__ __forceinline__ void fill(uint4 (&words)[3], const sched::RsStep& s) const {
    uint64_t sum = 0;
    if (b_.multiNode() && s.owner == b_.local()) {
      const sched::GemmRsPlan& plan = b_.p.plan;
      const sched::GemmRsTile t = plan.tileOf(s.node, s.owner, s.ownedTile - s.node * plan.shardTiles);
      sum = plan.nodeSum(t.node, t.chunk) + plan.elementsBefore(t) * b_.wireBytes();
    }
    fillSummed(words, s, sum);
  }
  __device__ __forceinline__ void fillSummed(uint4 (&words)[3], const sched::TileStep& s, uint64_t sum) const {
    const bool mine = !C::kSpanning && s.owner == b_.local();
    const uint64_t from = mine || C::kSpanning ? 0 : sched::skipSelf(b_.local(), s.owner);
    const uint64_t place = (static_cast<uint64_t>(s.ownedTile) * (b_.locals() - 1) + from) * b_.p.plan.slotBytes();
    words[0] = {(C::kSpanning ? taskSpanning
                 : mine       ? taskMine
                              : taskPeers) |
                    s.owner << 8,
                s.row, s.col, s.rows | s.cols << 16};
    words[1] = {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), s.tile, s.ownedTile};
    words[2] = {s.ownedChunk, 0, static_cast<uint32_t>(sum), static_cast<uint32_t>(sum >> 32)};
  }
  __device__ __forceinline__ void fill(uint4 (&words)[3], const sched::AgStep& s) const {
    const uint32_t rows = C::kTurned ? s.cols : s.rows, cols = C::kTurned ? s.rows : s.cols;
    words[0] = {taskMine | s.local << 8, s.row, s.col, rows | cols << 16};
    words[1] = {s.node, s.rank, s.shardRow, s.part << 16 | (s.tile & 0xffff)};
    words[2] = {s.firstChunk, s.endChunk, 0, 0};
  }

  const Block<C>& b_;
  LanePlatform<C::kGeneral> platform_;
  uint64_t position_ = 0, failed_ = 0, revoked_ = 0;
  bool asked_ = false;
  uint32_t count_ = 0;
};

}  // namespace mk::kernels
