// The parts of gpu_test: what two ranks do with GPU memory that no host can look at.  Each throws CheckFailed.
#pragma once

#include "cuda/device.h"
#include "link.h"

namespace test {

// Writes of many sizes to the peer, checked byte for byte at their notifications, after their completions, and around them.
void gpuTraffic(Rank& rank);

// Chunks of 256 KiB, each with a flag, both ways at once.  A line of figures on standard output.
struct SpeedRun {
  const char* name;
  size_t chunks;       // in all
  bool contiguous;     // else no chunk is behind the one before
  double least, most;  // legal GB/s; most 0: any
};
void gpuSpeed(Rank& rank, const SpeedRun& run);

// The same while a kernel that fills the GPU waits for each flag and looks at its chunk at once.
void gpuWatched(Rank& rank, size_t chunks);

}  // namespace test
