// Data and checks on the GPU: random inputs that any rank can make again from a seed and an index, a reference product in
// double made from the seeds alone, and the judgement of a result.  Nothing here comes from the library.  Everything is
// enqueued on the stream; errors of a launch are the caller's to ask for (cudaGetLastError).  Called by the files of this
// folder.
#pragma once

#include <cstdint>

#include "common/data.h"
#include "mkernel.h"

namespace mk::perf {

// Elements of the stream of `seed`, from number `first` on: about normal, sigma 1/8, rounded to the type.
void fillNormal(Type type, void* data, int64_t count, uint64_t seed, mkStream_t stream, int64_t first = 0);
// NaN, which a product of fillNormal's numbers is never.
void poison(Type type, void* data, int64_t count, mkStream_t stream);

// Which rows are checked: `count` of m, one in each of so many equal parts; all if count is m.  `first`: of the m, in A.
struct RowSample {
  int64_t m = 0, count = 0;
  uint64_t seed = 0;
  int64_t first = 0;
};
int64_t rowOf(const RowSample& sample, int64_t index);
// Those rows of the matrix of k columns that fillNormal makes of the seed.
void fillRows(Type type, void* data, const RowSample& sample, int64_t k, uint64_t seed, mkStream_t stream);

// sums[v] += the squared norm of vector v, whose elements lie at data[v * vectorStride + i * elementStride].
void addNorms(Type type, const void* data, int64_t vectors, int64_t length, int64_t vectorStride, int64_t elementStride,
              double* sums, mkStream_t stream);
// sums += a * b and magnitudes += |a * b|, (rows, n) each; a is (rows, k), b (n, k) if transposed, else (k, n).
void addProduct(Type type, const void* a, const void* b, bool bTransposed, int64_t rows, int64_t n, int64_t k,
                double* sums, double* magnitudes, mkStream_t stream);

// What an element may be off; perf/README.md has the formula.
struct Bound {
  double alpha = 1, beta = 0;
  double accumulation = 0;  // of the norms' product
  double wire = 0;          // of the magnitudes
  double fixed = 0;         // whatever the element
  double output = 0, outputUnderflow = 0;
};
struct Judged {
  unsigned long long wrong = 0;
  double worst = 0;                 // largest error over its bound; infinity for NaN
  double error = 0, reference = 0;  // sums of squares
};
// Compares the sample's rows of c (m, n).  The old C and the bias are what fillNormal makes of their seeds.  *judged lies on
// the GPU and must be zero before.
void judge(Type out, const void* c, const RowSample& sample, int64_t n, const double* sums, const double* magnitudes,
           const double* rowNorms, const double* columnNorms, const Bound& bound, uint64_t oldSeed, bool bias,
           uint64_t biasSeed, Judged* judged, mkStream_t stream);

struct Scanned {
  unsigned long long hash = 0;  // of all bits, each with its place
  unsigned long long nan = 0;   // elements
};
// Of the whole of c; `bytes` in multiples of 16.  *scanned lies on the GPU and must be zero before.
void scan(Type type, const void* c, int64_t bytes, Scanned* scanned, mkStream_t stream);
// *changed += bytes that differ from the value.  On the GPU.
void countChanged(const void* data, int64_t bytes, int value, unsigned long long* changed, mkStream_t stream);
// *different += elements of so many bytes (2 or 4) that differ.  On the GPU.
void countDifferent(const void* a, const void* b, int64_t bytes, int64_t element, unsigned long long* different,
                    mkStream_t stream);

}  // namespace mk::perf
