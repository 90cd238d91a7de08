// The check of a product on GPUs.  Each rank makes the inputs that its result comes from again from their seeds, multiplies them in
// double and judges its own result, every element where that is affordable, else a sample of rows; where all ranks have the same
// result, the bits of the whole are compared between them.  Called by work.cc.
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

// One launch's data, as seeds: the products that are summed, and what is added.
struct ProductTerm {
  int64_t k = 0;
  uint64_t a = 0, b = 0;
};
struct ProductData {
  std::vector<ProductTerm> terms;
  int64_t firstRow = 0;     // of A, of this rank's first row of C
  bool summed = false;      // the terms are other ranks': they travel, and are rounded for that
  bool everywhere = false;  // all ranks have the same C
  uint64_t oldC = 0, bias = 0;
};

class Verifier {
 public:
  // fused: what travels is rounded once in the node and once between nodes; the bias is added.  unfused: products are rounded
  // to C's type, and so is every sum on a way over all ranks; no bias.
  enum class Route { fused, unfused };

  // Of a C of so many rows and n columns.  Allocates what the check needs for data like these.
  Verifier(World& world, const Options& options, const RunInfo& run, const ProductData& data, int64_t rows, int64_t n,
           mkStream_t stream);
  // Bytes that the constructor will ask for.
  static int64_t bytes(const Options& options, const ProductData& data, int64_t rows, int64_t n);

  int64_t rows() const { return sample_.count; }
  // Collective, and waits.  Adds what it finds to *result.
  void check(const void* c, const ProductData& data, Route route, CheckResult* result);
  // These wait.  How many of these bytes are not the value; elements that differ; a hash of all bits (bytes in multiples of 16).
  int64_t changed(const void* data, int64_t count, int value);
  int64_t different(const void* a, const void* b, int64_t bytes, int64_t element);
  uint64_t hash(const void* data, int64_t bytes);

 private:
  struct Verdict {
    Judged judged;
    Scanned scanned;
    unsigned long long changed = 0;
  };
  static int64_t sampleRows(const ProductData& data, int64_t rows, int64_t n);
  void clear(void* memory, int64_t count);
  Verdict fetch();

  World& world_;
  const Options& options_;
  const RunInfo& run_;
  const int64_t n_;
  const mkStream_t stream_;
  RowSample sample_;
  DeviceMemory a_, b_, sums_, magnitudes_, rowNorms_, columnNorms_, verdict_;
};

}  // namespace mk::perf
