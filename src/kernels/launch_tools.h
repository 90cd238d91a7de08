// What the files that launch share: tensor maps, the choice of an instance, and the launch itself.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/kernel_table.h"

namespace mk::kernels {

// Makes tensor maps: boxes of 128 bytes across, swizzled.  An empty matrix stands as one of the 16 bytes at `spare`: nothing is
// stored to it, and what is loaded lies past its end.  After a failure the rest does nothing, and why() says what failed.
class MapMaker {
 public:
  explicit MapMaker(void* spare);
  const std::string& why() const { return why_; }

  struct Matrix {
    const char* name;
    Type type;
    const void* base;
    uint64_t rows, cols, stride;  // elements
  };
  // Read by many blocks: the cache takes 256 bytes at once.
  void reads(CUtensorMap* map, const Matrix& m, uint32_t boxRows) { encode(map, m, boxRows, 0, true); }
  void reads(RowMaps* maps, const Matrix& m, uint32_t boxRows, uint32_t lastRows) {
    reads(&maps->whole, m, boxRows);
    reads(&maps->last, m, lastRows);
  }
  void writes(CUtensorMap* map, const Matrix& m, uint32_t boxRows) { encode(map, m, boxRows, 0, false); }
  // `planes` times m.rows rows, in three dimensions: a box does not go beyond its plane.
  void writesPlanes(CUtensorMap* map, const Matrix& m, uint32_t boxRows, uint64_t planes) {
    encode(map, planes == 0 ? Matrix{m.name, m.type, nullptr, 0, 0, 0} : m, boxRows, planes == 0 ? 1 : planes, false);
  }
  // In planes of `cols` columns, which divide it: column of the plane, plane, row.
  void writesBands(CUtensorMap* map, const Matrix& m, uint32_t boxRows, uint32_t cols) {
    encode(map, m, boxRows, 0, false, cols);
  }

 private:
  // planes and bandCols 0: two dimensions.
  void encode(CUtensorMap* map, const Matrix& m, uint32_t boxRows, uint64_t planes, bool readOften,
              uint32_t bandCols = 0);

  void* const spare_;
  std::string why_;
};

// Rows of a tile that is not turned, that each block has.
constexpr uint32_t kBlockRows = sched::kClusterRows / sched::kClusterBlocks;

// Of turned tiles: rows of A in a box, no more than there are, in whole groups of the eight that the swizzle goes over.
inline uint32_t turnedBoxRows(uint64_t rows) {
  return static_cast<uint32_t>(sched::smaller(sched::kTurnedCols, sched::alignUp(sched::larger(1, rows), 8)));
}

// What all operations' parameters have.  `rows`: of A; `tiledRows`: of what has tiles of its own, a shard or all of it.
template <class Params>
void fillParams(Params* p, MapMaker* maps, const RankMemory& memory, const sched::KernelChoice& choice, uint32_t hash,
                const GemmOperands& op, uint64_t rows, uint64_t tiledRows, uint64_t n) {
  p->memory = memory;
  p->choice = choice;
  p->operands = op;
  p->hash = hash;
  p->kSteps = static_cast<uint32_t>(sched::larger(1, sched::ceilDiv(op.k, sched::stepK(choice.turned))));
  p->kFirst = op.k == 0 ? 1 : 0;
  if (choice.turned) {
    p->turnedBlockRows = choice.turnedRows / sched::kClusterBlocks;
    maps->reads(&p->a.whole, {"B", op.in, op.b, n, op.k, op.bStride}, p->turnedBlockRows);
    const uint32_t boxRows = turnedBoxRows(tiledRows);
    p->turnedBoxBytes = boxRows * 128;
    p->turnedStages =
        static_cast<uint32_t>(sched::smaller(kMostTurnedStages, turnedStageRoom(std::is_same_v<Params, AgGemmParams>) /
                                                                    (kTurnedWeightBytes + 2 * p->turnedBoxBytes)));
    maps->reads(&p->b, {"A", op.in, op.a, rows, op.k, op.aStride}, boxRows);
    return;
  }
  p->lastRows =
      tiledRows == 0 ? kBlockRows : static_cast<uint32_t>(sched::alignUp((tiledRows - 1) % kBlockRows + 1, 8));
  maps->reads(&p->a, {"A", op.in, op.a, rows, op.k, op.aStride}, kBlockRows, p->lastRows);
  if (op.bTransposed) {
    maps->reads(&p->b, {"B", op.in, op.b, n, op.k, op.bStride}, choice.tileN / 2);
  } else {
    maps->reads(&p->b, {"B", op.in, op.b, op.k, n, op.bStride}, 64);
  }
}

// `name`: of the operation.  "" or what failed.
std::string launchKernel(const char* name, const void* kernel, uint32_t sharedBytes, void* params,
                         const sched::KernelChoice& choice, cudaStream_t stream);

template <class Params>
std::string launchKernel(const char* name, Params* params, bool general, cudaStream_t stream) {
  const GemmOperands& op = params->operands;
  const uint32_t which = entryOf<Params>(params->choice, op.bTransposed);
  const KernelEntry<Params>& entry = kernelTable<Params>(op.in, general).entries[which];
  return launchKernel(name, reinterpret_cast<const void*>(entry.kernel), entry.sharedBytes, params, params->choice,
                      stream);
}

}  // namespace mk::kernels
