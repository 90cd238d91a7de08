// The check of a GEMM+AllReduce on GPUs; see verifier.h.  The bound is that of common/check.cc, which explains it.
#include "cuda/verifier.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mk::perf {
namespace {

// Multiply-adds in double that one check may cost, some tenths of a second; elements whose sums are kept; rows at least.
constexpr double kProducts = 0x1p39;
constexpr int64_t kElements = int64_t{1} << 26;
constexpr int64_t kFewestRows = 128;

int64_t largestPart(const Shape& shape, int ranks) { return partOfK(shape.k, 0, ranks); }

}  // namespace

int64_t Verifier::sampleRows(const Shape& s) {
  const double cost = static_cast<double>(s.n) * static_cast<double>(std::max<int64_t>(s.k, 1));
  const int64_t affordable = std::max(kFewestRows, static_cast<int64_t>(kProducts / cost));
  return std::min({s.m, affordable, std::max<int64_t>(kElements / s.n, 1)});
}

int64_t Verifier::bytes(const Options& options, const Shape& s, int ranks) {
  const int64_t k = largestPart(s, ranks), rows = sampleRows(s);
  const int64_t input = static_cast<int64_t>(info(options.in).bytes);
  return (rows * k + s.n * k) * input + 2 * rows * s.n * 8 + (rows + s.n) * 8 + (1 << 20);
}

Verifier::Verifier(World& world, const Options& options, const RunInfo& run, const Shape& shape, mkStream_t stream)
    : world_(world), options_(options), run_(run), shape_(shape), stream_(stream) {
  sample_.m = shape.m;
  sample_.count = sampleRows(shape);
  const int64_t k = largestPart(shape, world.size()), input = static_cast<int64_t>(info(options.in).bytes);
  a_ = allocateDevice(world, sample_.count * k * input);
  b_ = allocateDevice(world, shape.n * k * input);
  sums_ = allocateDevice(world, sample_.count * shape.n * 8);
  magnitudes_ = allocateDevice(world, sample_.count * shape.n * 8);
  rowNorms_ = allocateDevice(world, sample_.count * 8);
  columnNorms_ = allocateDevice(world, shape.n * 8);
  verdict_ = allocateDevice(world, sizeof(Verdict));
}

void Verifier::clear(void* memory, int64_t count) {
  requireCuda(world_, cudaMemsetAsync(memory, 0, static_cast<size_t>(count), stream_), "cudaMemsetAsync");
}

Verifier::Verdict Verifier::fetch() {
  Verdict verdict;
  requireCuda(world_, cudaGetLastError(), "kernels of the check");
  requireCuda(world_, cudaMemcpyAsync(&verdict, verdict_.get(), sizeof(verdict), cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync");
  requireCuda(world_, cudaStreamSynchronize(stream_), "kernels of the check");
  return verdict;
}

void Verifier::check(const void* c, const LaunchSeeds& seeds, Route route, CheckResult* result) {
  const Options& o = options_;
  const int64_t n = shape_.n, rows = sample_.count;
  const int ranks = world_.size();
  sample_.seed = seeds.a[0];  // other rows each time
  double* const sums = static_cast<double*>(sums_.get());
  double* const magnitudes = static_cast<double*>(magnitudes_.get());
  double* const rowNorms = static_cast<double*>(rowNorms_.get());
  double* const columnNorms = static_cast<double*>(columnNorms_.get());
  clear(sums, rows * n * 8);
  clear(magnitudes, rows * n * 8);
  clear(rowNorms, rows * 8);
  clear(columnNorms, n * 8);
  clear(verdict_.get(), sizeof(Verdict));
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t k = partOfK(shape_.k, rank, ranks);
    if (k == 0) continue;
    fillRows(o.in, a_.get(), sample_, k, seeds.a[static_cast<size_t>(rank)], stream_);
    fillNormal(o.in, b_.get(), n * k, seeds.b[static_cast<size_t>(rank)], stream_);
    addNorms(o.in, a_.get(), rows, k, k, 1, rowNorms, stream_);
    addNorms(o.in, b_.get(), n, k, o.transB ? k : 1, o.transB ? 1 : n, columnNorms, stream_);
    addProduct(o.in, a_.get(), b_.get(), o.transB, rows, n, k, sums, magnitudes, stream_);
  }

  constexpr double kFp32Roundoff = 0x1p-24;
  const bool fused = route == Route::fused;
  const TypeInfo& wire = info(fused ? o.wire : o.out);
  const TypeInfo& out = info(o.out);
  const double hops = fused ? (run_.nodes > 1 ? 1 : 0) + (run_.ranksPerNode > 1 ? 1 : 0) : ranks;
  Bound bound;
  bound.alpha = static_cast<double>(o.alpha);
  bound.beta = static_cast<double>(o.beta);
  bound.accumulation = (8 + std::sqrt(static_cast<double>(shape_.k))) * kFp32Roundoff;
  bound.wire = hops * wire.roundoff;
  bound.fixed = hops > 0 ? (ranks + run_.nodes) * std::max(1.0, std::fabs(bound.alpha)) * wire.underflow : 0;
  bound.output = out.roundoff;
  bound.outputUnderflow = out.underflow;
  Verdict* const verdict = static_cast<Verdict*>(verdict_.get());
  judge(o.out, c, sample_, n, sums, magnitudes, rowNorms, columnNorms, bound, seeds.oldC, fused && o.bias, seeds.bias,
        &verdict->judged, stream_);
  scan(o.out, c, shape_.m * n * static_cast<int64_t>(out.bytes), &verdict->scanned, stream_);
  const Verdict found = fetch();

  if (world_.min(uint64_t{found.scanned.hash}) != world_.max(uint64_t{found.scanned.hash})) result->identical = false;
  const Judged& judged = found.judged;
  double relative = judged.reference > 0 ? std::sqrt(judged.error / judged.reference) : std::sqrt(judged.error);
  if (std::isnan(relative)) relative = std::numeric_limits<double>::infinity();
  result->relativeError = std::max(result->relativeError, world_.max(relative));
  result->worst = std::max(result->worst, world_.max(judged.worst));
  // Elements that nobody wrote are NaN still, in rows outside the sample too.
  result->wrong += world_.sum(static_cast<int64_t>(std::max(judged.wrong, found.scanned.nan)));
}

int64_t Verifier::changed(const void* data, int64_t count, int value) {
  clear(verdict_.get(), sizeof(Verdict));
  countChanged(data, count, value, &static_cast<Verdict*>(verdict_.get())->changed, stream_);
  return static_cast<int64_t>(fetch().changed);
}

}  // namespace mk::perf
