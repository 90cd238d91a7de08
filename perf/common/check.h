// The check of a matrix product: a reference in double from the same rounded inputs, an error bound for every element, and,
// where it is a sum over the ranks, the comparison of all ranks' bits.  Collective over the ranks of a World.  Called by the
// programs.
#pragma once

#include <cstdint>

#include "data.h"
#include "world.h"

namespace mk::perf {

// One launch as this rank saw it.  C = alpha * A*B + beta * old C + bias, where A*B is summed over the ranks, or each rank's
// own.
struct GemmCase {
  int64_t m = 0, n = 0, k = 0;  // k: this rank's part
  int64_t kTotal = 0;
  Type in = Type::bf16, out = Type::bf16, wire = Type::bf16;
  const void* a = nullptr;
  const void* b = nullptr;
  bool bTransposed = false;    // b is (n, k) instead of (k, n)
  const void* c = nullptr;     // the result: `rows` rows of it, from `firstRow` on
  const void* oldC = nullptr;  // nullptr with beta 0
  const void* bias = nullptr;  // of C's type, or nullptr
  double alpha = 1, beta = 0;
  bool summed = true;
  bool everywhere = true;           // a sum: all ranks hold all of it; else each its own rows
  int64_t firstRow = 0, rows = -1;  // -1: all m
  int nodes = 1, ranksPerNode = 1;  // that sums travel between
};

struct CheckResult {
  double relativeError = 0;  // Frobenius norm of the difference over that of the reference; largest of all ranks
  double worst = 0;          // largest error of an element, as a share of its bound; over all ranks
  int64_t wrong = 0;         // elements beyond their bound, NaN included; summed over ranks
  bool identical = true;     // all ranks hold the same bits
};

// Adds what it finds to *result, so that one result can stand for several launches.
void checkGemm(World& world, const GemmCase& problem, CheckResult* result);

}  // namespace mk::perf
