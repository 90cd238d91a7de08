// What a caller may choose of an operation's plan.
#pragma once

#include <cstdint>

namespace mk::sched {

constexpr uint32_t kMaxChunkTiles = 1u << 16;
constexpr uint32_t kMaxChunkRows = 1u << 30;

// Whether a tile may have rows of several ranks: see GemmRsPlan, AgGemmPlan.
enum class Spanning : uint32_t { byShape, never, always };

// Zero: automatic.
struct GemmChoice {
  uint32_t tileM = 0, tileN = 0;
  uint32_t chunkTiles = 0;  // or, where rows of A travel:
  uint32_t chunkRows = 0;
  uint32_t sliceCols = 0, groupChunks = 0;  // with chunkRows: see AgGemmPlan
  uint32_t exchange = 0;                    // Exchange, or 0
  uint32_t computeAgents = 0, receiveAgents = 0;
  uint32_t ownUnit = 0, ownLag = 0;  // of a reduce-scatter: see GemmRsPlan
  Spanning spanning = Spanning::byShape;
  bool turned = false;  // tiles are of the product transposed: likewise
  uint32_t parts = 0;   // agents that share a tile, each announcing its own rows (a cluster's blocks)
};

}  // namespace mk::sched
