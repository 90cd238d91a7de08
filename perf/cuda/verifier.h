// The check of a GEMM+AllReduce on GPUs.  Each rank makes all ranks' inputs again from their seeds, multiplies them in double
// and judges its own result, every element where that is affordable, else a sample of rows; the bits of the whole results
// are compared between the ranks.  Called by gemm_ar_cuda.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "common/check.h"
#include "common/options.h"
#include "common/report.h"
#include "common/world.h"
#include "cuda/cuda_support.h"
#include "cuda/device.h"

namespace mk::perf {

// Seeds of one launch's data.
struct LaunchSeeds {
  std::vector<uint64_t> a, b;  // by rank
  uint64_t oldC = 0, bias = 0;
};

class Verifier {
 public:
  // fused: what travels is rounded once in the node and once between nodes; the bias is added.  unfused: products are rounded
  // to C's type, and so is every sum on a way over all ranks; no bias.
  enum class Route { fused, unfused };

  // Allocates what the check needs.
  Verifier(World& world, const Options& options, const RunInfo& run, const Shape& shape, mkStream_t stream);
  // Bytes that the constructor will ask for.
  static int64_t bytes(const Options& options, const Shape& shape, int ranks);

  int64_t rows() const { return sample_.count; }
  // Collective, and waits.  Adds what it finds to *result.
  void check(const void* c, const LaunchSeeds& seeds, Route route, CheckResult* result);
  // Waits.  How many of these bytes are not the value.
  int64_t changed(const void* data, int64_t count, int value);

 private:
  struct Verdict {
    Judged judged;
    Scanned scanned;
    unsigned long long changed = 0;
  };
  static int64_t sampleRows(const Shape& shape);
  void clear(void* memory, int64_t count);
  Verdict fetch();

  World& world_;
  const Options& options_;
  const RunInfo& run_;
  const Shape shape_;
  const mkStream_t stream_;
  RowSample sample_;
  DeviceMemory a_, b_, sums_, magnitudes_, rowNorms_, columnNorms_, verdict_;
};

}  // namespace mk::perf
