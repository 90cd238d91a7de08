// What an agent needs to know of the tile at one position of its rank's order: pure, so that warp-specialised loops of a GPU
// kernel walk the same tasks as the loops here.
#pragma once

#include "sched/gemm_ar.h"

namespace mk::protocol {

struct TileTask {
  uint64_t tile = 0;
  sched::Tile shape;
  uint64_t chunk = 0;
  uint32_t owner = 0;
  bool mine = false;
  uint64_t ownedTile = 0;   // index among the owner's tiles: place of partial results
  uint64_t ownedChunk = 0;  // index among the owner's chunks
};

MK_HD constexpr TileTask taskOfTile(const sched::GemmArPlan& plan, uint64_t tile) {
  TileTask t;
  t.tile = tile;
  t.shape = plan.grid.tile(tile);
  t.chunk = plan.chunks.chunkOfTile(tile);
  t.owner = plan.chunks.owner(t.chunk);
  t.mine = t.owner == plan.place().local;
  t.ownedTile = plan.chunks.ownedTileIndex(tile);
  t.ownedChunk = plan.chunks.ownedIndex(t.chunk);
  return t;
}

MK_HD constexpr TileTask taskAt(const sched::GemmArPlan& plan, uint64_t position) {
  return taskOfTile(plan, plan.chunks.tileAt(plan.place().local, position));
}

}  // namespace mk::protocol
