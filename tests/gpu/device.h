// What the GPU tests have of CUDA: memory for operands, streams, graphs' inputs, a kernel that keeps SMs busy.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "mkernel.h"

namespace test {

// Throws std::string.
void cuda(cudaError_t e, const char* what);

// Two GPUs are needed for a world of several ranks.
int deviceCount();

// Occupies `blocks` whole SMs of the current device until *stop, in pinned memory, is not 0, or for 20 s.
void occupy(int blocks, const volatile int* stop, cudaStream_t stream);
int smCount();
// Counts bytes that differ into *count, in device memory.
void countDifferent(const void* a, const void* b, size_t bytes, unsigned long long* count, cudaStream_t stream);

}  // namespace test

#define MK_NEED_GPUS(n)                                                                                   \
  do {                                                                                                    \
    if (test::deviceCount() < (n)) MK_SKIP_TEST("needs %d GPU(s), there are %d", n, test::deviceCount()); \
  } while (0)
