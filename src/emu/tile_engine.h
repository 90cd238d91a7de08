// Arithmetic and movement of tiles on the CPU: fp32 products by Eigen, conversions with round to nearest even.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sched/tiles.h"

namespace mk::emu {

enum class Type : uint32_t { f16, bf16, f32 };
constexpr uint32_t typeBytes(Type t) { return t == Type::f32 ? 4 : 2; }

// Operands of a launch.  Strides are in elements; the last stride of every matrix is 1.
struct GemmArOperands {
  Type in = Type::bf16, out = Type::bf16, wire = Type::bf16, biasType = Type::f32;
  uint64_t k = 0;
  const void* a = nullptr;
  uint64_t aStride = 0;
  const void* b = nullptr;
  uint64_t bStride = 0;
  bool bTransposed = false;  // B is (N, K)
  char* c = nullptr;
  uint64_t cStride = 0;
  std::vector<char*> peerC;  // by local rank; used when C lies in a window
  const void* bias = nullptr;
  float alpha = 1, beta = 0;
};

// Largest tile the engine has room for.
constexpr uint32_t kMaxTileM = 256;
constexpr uint32_t kMaxTileN = 256;

// One agent's accumulators and finished tile.  Made once per agent and communicator, so that a launch allocates none.
class TileEngine {
 public:
  TileEngine();

  void multiply(const GemmArOperands& op, const sched::Tile& t);
  void storePacked(const sched::Tile& t, Type type, char* to) const;
  void addPacked(const sched::Tile& t, Type type, const char* from, bool replace);
  // Scales, adds beta * C (of my own C) and the bias, and rounds into the finished tile.
  void finish(const GemmArOperands& op, const sched::Tile& t);
  void storeFinished(const sched::Tile& t, Type type, char* c, uint64_t stride) const;
  void storeFinishedPacked(const sched::Tile& t, Type type, char* to) const;
  void loadFinishedPacked(const sched::Tile& t, Type type, const char* from);

 private:
  std::unique_ptr<float[]> acc_;    // rows x cols of the tile at hand, packed
  std::unique_ptr<float[]> a_, b_;  // operand panels in fp32; a_ also serves as scratch
  std::unique_ptr<char[]> done_;    // finished tile, packed
};

}  // namespace mk::emu
