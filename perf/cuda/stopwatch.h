// Times operations on a stream, in batches, in random order, on all ranks together.  Called by gpu_run.cc.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/world.h"
#include "mkernel.h"

namespace mk::perf {

struct TimedOperation {
  std::string name;
  int perCall = 1;                    // operations that one call enqueues
  std::function<void(int64_t)> call;  // enqueues; the number of the call says which inputs
  // Found: microseconds of one operation on the slowest rank.
  double us = 0, fastestUs = 0, slowestUs = 0;
  int launches = 0;  // operations in a batch
};

class Stopwatch {
 public:
  Stopwatch(World& world, mkStream_t stream);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Collective.  The median of `rounds` batches; each has `launches` operations, or as many as fill some milliseconds (0).
  // Before a batch is timed a call or two go ahead of it in the stream, so that it meets the ranks in step and the links busy.
  // beforeRound enqueues new data; afterBatch waits and looks for errors.
  void time(std::vector<TimedOperation>& operations, int rounds, int launches, const std::function<void()>& beforeRound,
            const std::function<void(const std::string&)>& afterBatch);

 private:
  double batch(const TimedOperation& operation, int calls, const std::function<void(const std::string&)>& afterBatch);

  World& world_;
  const mkStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace mk::perf
