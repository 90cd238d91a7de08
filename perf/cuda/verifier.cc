// The check of a product on GPUs; see verifier.h.  The bound is that of common/check.cc, which explains it.
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

int64_t largestPart(const ProductData& data) {
  int64_t k = 0;
  for (const ProductTerm& term : data.terms) k = std::max(k, term.k);
  return k;
}

int64_t wholeK(const ProductData& data) {
  int64_t k = 0;
  for (const ProductTerm& term : data.terms) k += term.k;
  return k;
}

}  // namespace

int64_t Verifier::sampleRows(const ProductData& data, int64_t rows, int64_t n) {
  const double cost = static_cast<double>(n) * static_cast<double>(std::max<int64_t>(wholeK(data), 1));
  const int64_t affordable = std::max(kFewestRows, static_cast<int64_t>(kProducts / cost));
  return std::min({rows, affordable, std::max<int64_t>(kElements / n, 1)});
}

int64_t Verifier::bytes(const Options& options, const ProductData& data, int64_t rows, int64_t n) {
  const int64_t k = largestPart(data), sample = sampleRows(data, rows, n);
  const int64_t input = static_cast<int64_t>(info(options.in).bytes);
  return (sample * k + n * k) * input + 2 * sample * n * 8 + (sample + n) * 8 + (1 << 20);
}

Verifier::Verifier(World& world, const Options& options, const RunInfo& run, const ProductData& data, int64_t rows,
                   int64_t n, mkStream_t stream)
    : world_(world), options_(options), run_(run), n_(n), stream_(stream) {
  sample_.m = rows;
  sample_.count = sampleRows(data, rows, n);
  sample_.first = data.firstRow;
  const int64_t k = largestPart(data), input = static_cast<int64_t>(info(options.in).bytes);
  a_ = allocateDevice(world, sample_.count * k * input);
  b_ = allocateDevice(world, n * k * input);
  sums_ = allocateDevice(world, sample_.count * n * 8);
  magnitudes_ = allocateDevice(world, sample_.count * n * 8);
  rowNorms_ = allocateDevice(world, sample_.count * 8);
  columnNorms_ = allocateDevice(world, n * 8);
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

void Verifier::check(const void* c, const ProductData& data, Route route, CheckResult* result) {
  const Options& o = options_;
  const int64_t n = n_, rows = sample_.count;
  sample_.seed = data.terms[0].a;  // other rows each time
  double* const sums = static_cast<double*>(sums_.get());
  double* const magnitudes = static_cast<double*>(magnitudes_.get());
  double* const rowNorms = static_cast<double*>(rowNorms_.get());
  double* const columnNorms = static_cast<double*>(columnNorms_.get());
  clear(sums, rows * n * 8);
  clear(magnitudes, rows * n * 8);
  clear(rowNorms, rows * 8);
  clear(columnNorms, n * 8);
  clear(verdict_.get(), sizeof(Verdict));
  for (const ProductTerm& term : data.terms) {
    const int64_t k = term.k;
    if (k == 0 || rows == 0) continue;
    fillRows(o.in, a_.get(), sample_, k, term.a, stream_);
    fillNormal(o.in, b_.get(), n * k, term.b, stream_);
    addNorms(o.in, a_.get(), rows, k, k, 1, rowNorms, stream_);
    addNorms(o.in, b_.get(), n, k, o.transB ? k : 1, o.transB ? 1 : n, columnNorms, stream_);
    addProduct(o.in, a_.get(), b_.get(), o.transB, rows, n, k, sums, magnitudes, stream_);
  }

  constexpr double kFp32Roundoff = 0x1p-24;
  const bool fused = route == Route::fused;
  const TypeInfo& wire = info(fused ? o.wire : o.out);
  const TypeInfo& out = info(o.out);
  const int ranks = run_.ranks;
  const double hops = !data.summed ? 0 : fused ? (run_.nodes > 1 ? 1 : 0) + (run_.ranksPerNode > 1 ? 1 : 0) : ranks;
  Bound bound;
  bound.alpha = static_cast<double>(o.alpha);
  bound.beta = static_cast<double>(o.beta);
  bound.accumulation = (8 + std::sqrt(static_cast<double>(wholeK(data)))) * kFp32Roundoff;
  bound.wire = hops * wire.roundoff;
  bound.fixed = hops > 0 ? (ranks + run_.nodes) * std::max(1.0, std::fabs(bound.alpha)) * wire.underflow : 0;
  bound.output = out.roundoff;
  bound.outputUnderflow = out.underflow;
  Verdict* const verdict = static_cast<Verdict*>(verdict_.get());
  judge(o.out, c, sample_, n, sums, magnitudes, rowNorms, columnNorms, bound, data.oldC, fused && o.bias, data.bias,
        &verdict->judged, stream_);
  scan(o.out, c, sample_.m * n * static_cast<int64_t>(out.bytes), &verdict->scanned, stream_);
  const Verdict found = fetch();

  if (data.everywhere && world_.min(uint64_t{found.scanned.hash}) != world_.max(uint64_t{found.scanned.hash})) {
    result->identical = false;
  }
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

int64_t Verifier::different(const void* a, const void* b, int64_t bytes, int64_t element) {
  clear(verdict_.get(), sizeof(Verdict));
  countDifferent(a, b, bytes, element, &static_cast<Verdict*>(verdict_.get())->changed, stream_);
  return static_cast<int64_t>(fetch().changed);
}

uint64_t Verifier::hash(const void* data, int64_t bytes) {
  clear(verdict_.get(), sizeof(Verdict));
  scan(options_.in, data, bytes, &static_cast<Verdict*>(verdict_.get())->scanned, stream_);
  return fetch().scanned.hash;
}

}  // namespace mk::perf
