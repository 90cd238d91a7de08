// Arithmetic and movement of tiles on the CPU: fp32 products by Eigen, conversions with round to nearest even.
#pragma once

#include <cstdint>
#include <memory>

#include "protocol/operands.h"
#include "sched/tiles.h"

namespace mk::emu {

using protocol::GemmOperands;
using protocol::Type;

// Largest tile the engine has room for.
constexpr uint32_t kMaxTileM = 256;
constexpr uint32_t kMaxTileN = 256;

// One agent's accumulators and finished tile.  Made once per agent and communicator, so that a launch allocates none.
class TileEngine {
 public:
  TileEngine();

  void multiply(const GemmOperands& op, const sched::Tile& t);
  void storePacked(const sched::Tile& t, Type type, char* to) const;
  void addPacked(const sched::Tile& t, Type type, const char* from, bool replace);
  // Scales, adds beta * C (of my own C) and the bias, applies the activation, and rounds into the finished tile.
  void finish(const GemmOperands& op, const sched::Tile& t);
  void storeFinished(const sched::Tile& t, Type type, char* c, uint64_t stride) const;
  void storeFinishedPacked(const sched::Tile& t, Type type, char* to) const;
  void loadFinishedPacked(const sched::Tile& t, Type type, const char* from);

 private:
  std::unique_ptr<float[]> acc_;    // rows x cols of the tile at hand, packed
  std::unique_ptr<float[]> a_, b_;  // operand panels in fp32; a_ also serves as scratch
  std::unique_ptr<char[]> done_;    // finished tile, packed
};

}  // namespace mk::emu
