// AllGather+GEMM cases with a reference in fp64, on the worlds of world.h.
#pragma once

#include <memory>

#include "ops/values.h"
#include "ops/world.h"

namespace test {

enum class Gather { none, memory, window, someRanks };  // someRanks: in memory, on even ranks

struct AgCase {
  int64_t m = 64, n = 64, nStep = 0;  // rank g has n + g * nStep columns
  int64_t k = 64;
  mkDataType_t in = mkBfloat16, out = mkBfloat16;
  bool transposed = false, bias = false;
  float alpha = 1, beta = 0;
  Gather gather = Gather::none;
  bool inPlace = false;  // a lies in `gathered`
  uint32_t activation = 0;
  mkTune_t tune = {};  // zero: automatic
  uint64_t seed = 1;
  int64_t padding = 0;  // extra elements per row of A, B, C and `gathered`
  std::string text() const;
};

// One rank's buffers of a case.  A depends on the seed and the place in the whole A, the rest on (seed, rank).
class AgOperands {
 public:
  AgOperands(const AgCase& c, const World& world, int rank, mkComm_t comm);

  mkAllGatherGemmArgs_t args() const;
  void refill(uint64_t seed);  // other inputs; outputs poisoned again
  void spoilA() const;         // as a caller does who has no more use for it
  // Compares C and `gathered` with what they should be; throws std::string.
  void check() const;
  // Where the operation has its inputs and C.
  std::pair<void*, size_t> deviceBytes(char which) const {
    return (which == 'c' ? *c_ : which == 'b' ? *b_ : *a_).memory();
  }

 private:
  float a(int64_t row, int64_t k) const { return element(case_.in, case_.seed, 1, 0, uint64_t(row), uint64_t(k)); }
  bool gathers() const;
  void checkC() const;
  void checkGathered() const;

  AgCase case_;
  const int rank_;
  const int64_t n_, firstRow_, rows_;  // of this rank's shard
  std::unique_ptr<GuardedMatrix> a_, b_, c_, gathered_, bias_;
  mkTune_t tune_ = {};
};

void reserveFor(mkComm_t comm, const mkAllGatherGemmArgs_t& args);
void launch(mkComm_t comm, const AgOperands& o, mkStream_t stream = nullptr);
// Reserves what the case needs and runs it once, checked.
void runCase(const AgCase& c, const World& world, int rank, mkComm_t comm, mkStream_t stream = nullptr);

}  // namespace test
