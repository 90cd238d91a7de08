// What the kernels are launched with.  Kernel parameters: no initialisers, the launch zeroes them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/rank_memory.h"
#include "protocol/operands.h"
#include "sched/ag_moves.h"
#include "sched/ag_order.h"
#include "sched/kernel_choice.h"
#include "sched/row_span.h"
#include "sched/rs_order.h"
#include "sched/split_k.h"
#include "sched/tile_order.h"

namespace mk::kernels {

using protocol::GemmOperands;
using protocol::isPlain;
using protocol::Type;
using protocol::typeBytes;

// A stage of turned tiles has two boxes of 64 rows of B, and two of as many rows of A as turnedBoxRows() says.  There are as many as
// the room for them holds, of which blocks that move rows too have less.
constexpr uint32_t kTurnedWeightBytes = 16384, kMostTurnedStages = 10;
constexpr uint32_t turnedStageRoom(bool moves) { return (moves ? 5 : 6) * 32768; }

// NOLINTBEGIN(cppcoreguidelines-pro-type-member-init)
// Rows of A in boxes as high as a block's part of a tile, and, unless tiles are turned, in boxes of GemmParams::lastRows.
struct RowMaps {
  CUtensorMap whole, last;
};

struct GemmParams {
  RowMaps a;
  CUtensorMap b, c;  // of turned tiles a is B, and b is A
  RankMemory memory;
  sched::KernelChoice choice;
  GemmOperands operands;
  uint32_t hash;
  uint32_t kSteps;    // of sched::stepK(), at least one
  uint32_t kFirst;    // the first of them: past the matrices' ends, where loads give zeros, if K is 0
  uint32_t lastRows;  // the last block's that has some, in eights
  // Of turned tiles: rows that a block has, a box of rows of A, and stages.
  uint32_t turnedBlockRows, turnedBoxBytes, turnedStages;
};

// Partial results travel.
struct GemmSumParams : GemmParams {
  // What the plan says at some cost, worked out beforehand.
  uint64_t partialFlags;  // first word of their kind
  uint32_t ownedParts;    // own tiles times blocks of a cluster; where tiles span shards, parts with own rows
};

struct GemmArParams : GemmSumParams {
  CUtensorMap peerC[kMaxLocals];  // by local rank, in boxes of 16 rows
  char* peers[kMaxLocals];        // their C
  sched::GemmArPlan plan;
  sched::TileOrder order;
  uint64_t outFlags, stagedFlags;  // first words of their kinds
  uint64_t stage;                  // where staged tiles begin
  uint32_t owners;                 // a bit for each local rank that owns a tile
};

// c: this rank's rows.
struct GemmRsParams : GemmSumParams {
  sched::GemmRsPlan plan;
  sched::RsOrder order;
  uint32_t firstRow;   // of A, that C's first one is
  uint32_t shardRows;  // of a full shard, which spanning tiles' order does not know
};

// a: this rank's shard.  c: the whole shards, in three dimensions (column, row of the shard, rank), so that what a tile has
// beyond its shard is not stored over the next one; where tiles span shards, the whole C.
struct AgGemmParams : GemmParams {
  CUtensorMap shortC;  // likewise, of the shard that is not a whole one
  RowMaps banks[2];    // gathered rows in this rank's heap, by parity of the epoch; of turned tiles `whole` is like b
  RowMaps all;         // where they are in a window; likewise
  // In boxes of `boxRows` x 64: this rank's shard, and its place at each local peer, by parity of the epoch; where tiles span
  // shards, at this rank too.
  CUtensorMap shard, atPeer[kMaxLocals][2];
  uint32_t boxRows, boxesPerPiece;  // of 8 KiB; 0: whole rows are copied, or slices too low for boxes
  char* gathered[kMaxLocals];
  uint64_t gatheredStride;
  sched::AgGemmPlan plan;
  sched::AgOrder order;
  sched::AgMoves moves;
  sched::KSplit split;
  uint32_t wholeShards;
};
// NOLINTEND(cppcoreguidelines-pro-type-member-init)

}  // namespace mk::kernels
