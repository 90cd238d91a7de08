// What was timed on GPUs, the figures that follow from it, and how they are shown.  Arithmetic and text alone, so that it can
// be tested without a GPU.  Called by report.cc; filled in by cuda/gpu_run.cc.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "json.h"

namespace mk::perf {

inline constexpr double kCopyEngineGBps = 390;  // NVLink, one direction: the copy engine
inline constexpr double kStoreGBps = 363;       // the same, by stores of the multiprocessors

// Times are microseconds of one operation on the slowest rank; NaN: not measured.
struct Timing {
  std::string mode;  // "eager" or "graph"
  int64_t m = 0, n = 0, k = 0;
  double kOfRank = 0;  // the mean over the ranks: of the product that one of them computes
  int ranks = 1, nodes = 1, ranksPerNode = 1;
  int rounds = 0, launches = 0;  // batches, and operations in each
  double fusedUs = NAN;
  double fastestUs = NAN, slowestUs = NAN;  // of the fused batches
  double blasUs = NAN;                      // this rank's product alone: cuBLAS, and ours in a world of one rank
  double oursUs = NAN;
  double unfusedUs = NAN;  // cuBLAS and NCCL, one after the other
  double nvlinkBytes = 0;  // that a rank sends to its node's other ranks
  double nicBytes = 0;     // that the busiest rank sends to other nodes
  double nicGBps = 50;
  uint32_t tileM = 0, tileN = 0, computeAgents = 0, receiveAgents = 0, minSMs = 0;
};

struct Figures {
  double tflops = NAN;  // of one GPU
  double nvlinkGBps = NAN, nicGBps = NAN;
  double aloneUs = NAN;  // the better product alone
  double ratio = NAN;    // cuBLAS over ours: above 1, ours is faster
  double idealUs = NAN;  // unfused, each part at the hardware's rate: cuBLAS, then the busiest link
  double speedup = NAN, idealSpeedup = NAN;
  double copyRoof = NAN, storeRoof = NAN;  // largest of product alone and bytes over rate, over the time: 1 is the best
};
Figures figures(const Timing& timing);

// Bytes that a rank sends inside its node of an m x n matrix, by bytes of an element.  Sums: its part of every tile that it does not
// own, in the wire's type, then (AllReduce) its own results to all others.  Rows of A: those of its rail, to all others.
double nvlinkBytes(int64_t m, int64_t n, int ranksPerNode, uint64_t wireBytes, uint64_t outBytes);

// `width` characters; "-" for what was not measured.
std::string cell(double value, int width, int decimals, const char* unit = "");
std::string timeCell(double us);

struct TimingVerdict {
  bool checked = false, allRows = false;  // not all rows: a sample of them, and all bits between the ranks
  double share = 0;                       // of its bound, the worst element
  int64_t wrong = 0;
  bool compared = true, identical = true;
};
std::string verdictCells(const TimingVerdict& verdict);
std::string timingHeader(const std::string& baseline, double nicGBps, int nodes);
std::string timingLine(const Timing& timing, const TimingVerdict& verdict);
JsonObject timingJson(const Timing& timing);

}  // namespace mk::perf
