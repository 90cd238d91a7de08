// What the GPU tests have of CUDA: memory for operands, streams, graphs' inputs, a kernel that keeps SMs busy; and how several
// ranks do with one GPU, where MKERNEL_TEST_ONE_GPU asks for that (README.md of the tests).
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "mkernel.h"

namespace test {

// Throws std::string.
void cuda(cudaError_t e, const char* what);

int deviceCount();

enum class OneGpu { no, threads, processes };
OneGpu oneGpu();
// The SMs for each of so many communicators of one rank, where ranks share a GPU; 0, all, where they do not.
uint32_t smsOfRank(int communicators = 1);
// The stream for which nobody has made one: the legacy one, which threads would share.
cudaStream_t plainStream();
// What a capture forbids while it lasts: everything in the process, or in the thread if others are ranks.
cudaStreamCaptureMode captureMode();

// Occupies `blocks` whole SMs of the current device until *stop, in pinned memory, is not 0, or for 20 s.
void occupy(int blocks, const volatile int* stop, cudaStream_t stream);
int smCount();
// Counts bytes that differ into *count, in device memory.
void countDifferent(const void* a, const void* b, size_t bytes, unsigned long long* count, cudaStream_t stream);

}  // namespace test

#define MK_NEED_GPUS(n)                                                                                \
  do {                                                                                                 \
    const int needed_ = test::oneGpu() != test::OneGpu::no ? 1 : (n);                                  \
    if (test::deviceCount() < needed_)                                                                 \
      MK_SKIP_TEST("needs %d GPU(s), there are %d (MKERNEL_TEST_ONE_GPU=1: tests/README.md)", needed_, \
                   test::deviceCount());                                                               \
  } while (0)
