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

// A matrix of a rank's, with guards around it and between its rows.  With deviceMemory it is a copy in host memory of what lies
// there, which upload() and download() bring up to date.
class GuardedMatrix {
 public:
  // Where `comm` is not null: in a window, which all ranks register.
  GuardedMatrix(mkDataType_t type, int64_t rows, int64_t cols, int64_t padding, mkComm_t comm = nullptr);
  ~GuardedMatrix();
  GuardedMatrix(const GuardedMatrix&) = delete;
  GuardedMatrix& operator=(const GuardedMatrix&) = delete;

  char* at(int64_t row, int64_t col) const;
  float value(int64_t row, int64_t col) const { return get(type_, at(row, col)); }
  void fill(const std::function<float(int64_t, int64_t)>& element) const;
  void upload() const;
  void download() const;
  // Throws std::string, beginning with `name`, if something beside the elements has been written.
  void checkGuards(const char* name) const;
  // By window if it lies in one.
  mkTensor_t tensor() const;
  // Where an operation finds the row.
  char* address(int64_t row) const;
  // Where an operation has the elements.
  std::pair<void*, size_t> memory() const { return {address(0), bytes_}; }

 private:
  static constexpr size_t kGuard = 256;
  const mkDataType_t type_;
  const int64_t rows_, cols_, stride_;
  const size_t bytes_;
  mkComm_t comm_;
  mkWindow_t window_ = nullptr;
  void* windowMemory_ = nullptr;
  std::vector<char> memory_;
  char* base_ = nullptr;
  char* device_ = nullptr;  // its first guard
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
