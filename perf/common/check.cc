// The check of a matrix product; see check.h.
//
// The bound of an element.  Its inputs are exact, products of two 16-bit numbers are exact in fp32, and the errors are those
// of fp32 summation and of rounding to the wire type and to C's type:
//   summation  (8 + sqrt(K)) * 2^-24 * sum |a||b|.  The sum of magnitudes is bounded by the norms of A's row and B's column
//              (Cauchy-Schwarz).  The worst case has K in place of sqrt(K), but its errors would all have to be of one sign;
//              the bound would then be too wide to see one lost product.
//   wire       each rank's partial sum is rounded once inside the node, each node's sum once between nodes; the magnitudes of
//              the nodes' sums are bounded by those of the partial sums, whose true values are known here.
//   output     rounded once.
#include "check.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace mk::perf {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kFp32Roundoff = 0x1p-24;
constexpr int64_t kBlockElements = 1 << 19;  // of the reference, at a time: keeps memory small whatever the shape

// Squared norms of A's rows and of B's columns, over all ranks' parts.
struct Norms {
  std::vector<double> rows, columns;
};

Norms inputNorms(World& world, const GemmCase& p, const Matrix& b) {
  Norms norms{std::vector<double>(static_cast<size_t>(p.m), 0.0), std::vector<double>(static_cast<size_t>(p.n), 0.0)};
  if (p.k > 0) {
    std::vector<double> row(static_cast<size_t>(p.k));
    for (int64_t i = 0; i < p.m; ++i) {
      toDouble(p.in, static_cast<const char*>(p.a) + static_cast<size_t>(i * p.k) * info(p.in).bytes, p.k, row.data());
      double& sum = norms.rows[static_cast<size_t>(i)];
      for (double x : row) sum += x * x;
    }
    for (int64_t i = 0; i < b.rows(); ++i) {
      for (int64_t j = 0; j < b.cols(); ++j) {
        norms.columns[static_cast<size_t>(p.bTransposed ? i : j)] += b(i, j) * b(i, j);
      }
    }
  }
  if (p.summed) {
    world.sum(norms.rows.data(), p.m);
    world.sum(norms.columns.data(), p.n);
  }
  return norms;
}

struct Sums {
  double error = 0, reference = 0, worst = 0;  // the first two are sums of squares
  int64_t wrong = 0;
};

// Compares rows [first, first + rows), of which the result has all.  sums: the ranks' partial products added up; magnitudes: their magnitudes added up.
void compareRows(const GemmCase& p, const Norms& norms, int64_t first, int64_t rows, const double* sums,
                 const double* magnitudes, const double* bias, Sums* totals) {
  const size_t at = static_cast<size_t>((first - p.firstRow) * p.n);
  const int64_t count = rows * p.n;
  std::vector<double> result(static_cast<size_t>(count)), oldC;
  toDouble(p.out, static_cast<const char*>(p.c) + at * info(p.out).bytes, count, result.data());
  if (p.oldC) {
    oldC.resize(static_cast<size_t>(count));
    toDouble(p.out, static_cast<const char*>(p.oldC) + at * info(p.out).bytes, count, oldC.data());
  }
  const double accumulation = (8 + std::sqrt(static_cast<double>(p.kTotal))) * kFp32Roundoff;
  const double hops = (p.nodes > 1 ? 1 : 0) + (p.ranksPerNode > 1 ? 1 : 0);
  const double travelling = p.nodes * p.ranksPerNode + p.nodes;  // rounded numbers behind one element, at most
  const TypeInfo& wire = info(p.wire);
  const TypeInfo& out = info(p.out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const size_t e = static_cast<size_t>(i * p.n + j);
      const double product = p.alpha * sums[e];
      const double old = p.oldC ? p.beta * oldC[e] : 0;
      const double added = bias ? bias[j] : 0;
      const double reference = product + old + added;
      const double magnitude =
          std::sqrt(norms.rows[static_cast<size_t>(first + i)] * norms.columns[static_cast<size_t>(j)]);
      const double scale = std::fabs(p.alpha);
      const double error = scale * (accumulation * magnitude + hops * wire.roundoff * magnitudes[e]) +
                           4 * kFp32Roundoff * (std::fabs(product) + std::fabs(old) + std::fabs(added)) +
                           (hops > 0 ? travelling * std::max(1.0, scale) * wire.underflow : 0);
      const double bound = 1.01 * error + out.roundoff * (std::fabs(reference) + error) + out.underflow;
      const double difference = std::fabs(result[e] - reference);
      if (!(difference <= bound)) ++totals->wrong;  // written so that NaN is wrong
      totals->worst = std::max(totals->worst,
                               std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference / bound);
      totals->error += difference * difference;
      totals->reference += reference * reference;
    }
  }
}

}  // namespace

void checkGemm(World& world, const GemmCase& p, CheckResult* result) {
  const uint64_t bits = p.summed && p.everywhere ? hash(p.c, static_cast<size_t>(p.m * p.n) * info(p.out).bytes) : 0;
  if (world.min(bits) != world.max(bits)) result->identical = false;
  if (p.m == 0 || p.n == 0) return;

  Matrix b(p.bTransposed ? p.n : p.k, p.bTransposed ? p.k : p.n);
  toDouble(p.in, p.b, p.k * p.n, b.data());
  const Norms norms = inputNorms(world, p, b);
  std::vector<double> bias;
  if (p.bias) {
    bias.resize(static_cast<size_t>(p.n));
    toDouble(p.out, p.bias, p.n, bias.data());
  }

  const int64_t step = std::clamp<int64_t>(kBlockElements / p.n, 1, p.m);
  std::vector<double> block(static_cast<size_t>(2 * step * p.n));
  Matrix a;
  Sums totals;
  for (int64_t first = 0; first < p.m; first += step) {
    const int64_t rows = std::min(step, p.m - first), count = rows * p.n;
    double* sums = block.data();
    double* magnitudes = sums + count;
    Eigen::Map<Matrix> partial(sums, rows, p.n);
    if (p.k > 0) {
      a.resize(rows, p.k);
      toDouble(p.in, static_cast<const char*>(p.a) + static_cast<size_t>(first * p.k) * info(p.in).bytes, rows * p.k,
               a.data());
      if (p.bTransposed) {
        partial.noalias() = a * b.transpose();
      } else {
        partial.noalias() = a * b;
      }
    } else {
      partial.setZero();
    }
    for (int64_t i = 0; i < count; ++i) magnitudes[i] = std::fabs(sums[i]);
    if (p.summed) world.sum(sums, 2 * count);
    // What of them this rank's result has.
    const int64_t begin = std::max(first, p.firstRow);
    const int64_t end = std::min(first + rows, p.rows < 0 ? p.m : p.firstRow + p.rows);
    if (begin >= end) continue;
    const int64_t skipped = (begin - first) * p.n;
    compareRows(p, norms, begin, end - begin, sums + skipped, magnitudes + skipped,
                bias.empty() ? nullptr : bias.data(), &totals);
  }

  double relative = totals.reference > 0 ? std::sqrt(totals.error / totals.reference) : std::sqrt(totals.error);
  if (std::isnan(relative)) relative = std::numeric_limits<double>::infinity();
  result->relativeError = std::max(result->relativeError, world.max(relative));
  result->worst = std::max(result->worst, world.max(totals.worst));
  result->wrong += world.sum(totals.wrong);
}

}  // namespace mk::perf
