// Batches of operations, timed; see stopwatch.h.
#include "cuda/stopwatch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/cuda_support.h"

namespace mk::perf {
namespace {

// Calls ahead of those that are timed.
int leadIn(const TimedOperation& operation) { return operation.perCall > 1 ? 1 : 2; }
constexpr double kBatchUs = 12000;
constexpr int kFewest = 2, kMost = 60;

}  // namespace

Stopwatch::Stopwatch(World& world, mkStream_t stream) : world_(world), stream_(stream) {
  requireCuda(world, cudaEventCreate(&begin_), "cudaEventCreate");
  requireCuda(world, cudaEventCreate(&end_), "cudaEventCreate");
}

Stopwatch::~Stopwatch() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

double Stopwatch::batch(const TimedOperation& operation, int calls,
                        const std::function<void(const std::string&)>& afterBatch) {
  world_.phase("timing " + operation.name);
  requireCuda(world_, cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  world_.closeBarrier();
  const int ahead = leadIn(operation);
  for (int i = 0; i < ahead; ++i) operation.call(i);
  requireCuda(world_, cudaEventRecord(begin_, stream_), "cudaEventRecord");
  for (int i = 0; i < calls; ++i) operation.call(ahead + i);
  requireCuda(world_, cudaEventRecord(end_, stream_), "cudaEventRecord");
  afterBatch(operation.name);
  float ms = 0;
  requireCuda(world_, cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e3 / calls / operation.perCall;
}

void Stopwatch::time(std::vector<TimedOperation>& operations, int rounds, int launches,
                     const std::function<void()>& beforeRound,
                     const std::function<void(const std::string&)>& afterBatch) {
  std::vector<int> calls;
  beforeRound();
  for (TimedOperation& operation : operations) {
    const int few = (kFewest + operation.perCall - 1) / operation.perCall;
    batch(operation, few, afterBatch);  // warms up
    const double us = world_.max(batch(operation, few, afterBatch));
    const int wanted = launches ? launches : std::clamp(static_cast<int>(kBatchUs / us), kFewest, kMost);
    calls.push_back((wanted + operation.perCall - 1) / operation.perCall);
    operation.launches = calls.back() * operation.perCall;
  }

  const size_t count = operations.size(), batches = static_cast<size_t>(rounds);
  std::vector<double> times(count * batches);  // by operation, then round
  uint64_t random = 12345;                     // the same order on all ranks
  for (size_t round = 0; round < batches; ++round) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = count; i > 1; --i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[(random >> 33) % i]);
    }
    beforeRound();
    for (const size_t i : order) times[i * batches + round] = batch(operations[i], calls[i], afterBatch);
  }
  world_.max(times.data(), static_cast<int64_t>(times.size()));
  for (size_t i = 0; i < count; ++i) {
    double* const first = times.data() + i * batches;
    std::sort(first, first + batches);
    operations[i].us = batches % 2 ? first[batches / 2] : (first[batches / 2 - 1] + first[batches / 2]) / 2;
    operations[i].fastestUs = first[0];
    operations[i].slowestUs = first[batches - 1];
  }
}

}  // namespace mk::perf
