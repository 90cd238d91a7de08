// Arguments of the programs that run an operation, in the letters of nccl-tests.  Called by program.cc.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "data.h"

namespace mk::perf {

enum class Operation { gemmAllReduce, gemmReduceScatter, allGatherGemm };
const char* programName(Operation operation);

// Where AllGather+GEMM's whole A goes.
enum class Gathered { none, memory, window };

// What a negative control of the checks spoils; a developer's switch that the help does not list.
enum class Corrupt {
  nothing,
  element,  // one element of the result, on all ranks
  rank,     // the lowest bit of one element, on the last rank alone
  zero,     // the result, to zeros
  guard,    // a byte behind the result
  bytes     // the count of bytes sent
};

struct Shape {
  int64_t m = 0, n = 0, k = 0;  // k: the whole summed dimension
};

struct Options {
  Operation operation = Operation::gemmAllReduce;
  bool help = false;
  int64_t mMin = 256, mMax = 256, mFactor = 2, mIncrement = 0;
  int64_t n = 1024, k = 1024;
  bool suite = false;   // the shapes of the target table instead
  bool layers = false;  // or those of the layers of a model
  int warmup = 1, check = 1;
  int launches = 0;      // 0: by the platform
  int rounds = 5;        // batches that are timed
  int graph = 0;         // operations in a CUDA graph; 0: no graph
  bool baseline = true;  // compare with cuBLAS and NCCL
  int timeoutSeconds = 300;
  int limitSeconds = 0;  // of the whole run; 0: by the platform
  double nicGBps = 50;   // of one network card: for the roof, and for emulated nodes on GPUs
  Type in = Type::bf16, out = Type::bf16, wire = Type::bf16;
  bool transB = false, bias = false;
  int window = -1;  // -1: by the platform
  float alpha = 1, beta = 0;
  int nodes = 0;          // emulated; 0: as the hosts are
  std::string platform;   // empty: the library's choice
  std::string transport;  // empty: the library's choice
  uint32_t chunkTiles = 0, chunkRows = 0, tileM = 0, tileN = 0, exchange = 0;
  Gathered gathered = Gathered::none;
  std::vector<uint32_t> sweepSplits;  // SMs that communicate, each timed; empty: no sweep
  std::string json;
  Corrupt corrupt = Corrupt::nothing;

  // What the platform decides where nothing is said.
  void setDefaults(bool gpu);
  // The values of M, in order.
  std::vector<int64_t> scan() const;
  // Shapes that a list names.
  bool listed() const { return suite || layers; }
  // The shapes, in order.
  std::vector<Shape> shapes(int ranks) const;
  bool sweeps() const { return !sweepSplits.empty(); }
  // Whether the library is given choices.
  bool tuned() const { return chunkTiles || chunkRows || tileM || tileN || exchange || sweeps(); }
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A whole number from `least` to `most`, with K, M or G behind it for 2^10, 2^20, 2^30; else throws UsageError, which begins
// with the option's name.  For the other programs too.
int64_t parseCount(const std::string& name, const std::string& text, int64_t least, int64_t most);
// Throws UsageError.  `ranks` is needed to judge --nodes.
Options parseOptions(int argc, char** argv, int ranks, Operation operation);
std::string helpText(Operation operation);
// This rank's part of the summed dimension: K/W in multiples of 8, the first ranks take the remainder.
int64_t partOfK(int64_t k, int rank, int ranks);

}  // namespace mk::perf
