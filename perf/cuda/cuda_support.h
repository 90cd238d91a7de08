// CUDA's results and memory for the perf programs: a call that fails ends all ranks with its text.  Called by the files of this
// folder.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "common/world.h"

namespace mk::perf {

inline void requireCuda(World& world, cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  world.die(exitSystem, std::string(call) + ": " + cudaGetErrorName(result) + " (" + std::to_string(result) +
                            "): " + cudaGetErrorString(result));
}

struct CudaFreeDeleter {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, CudaFreeDeleter>;
inline DeviceMemory allocateDevice(World& world, int64_t bytes) {
  void* memory = nullptr;
  requireCuda(world, cudaMalloc(&memory, static_cast<size_t>(bytes < 256 ? 256 : bytes)), "cudaMalloc");
  return DeviceMemory(memory);
}

}  // namespace mk::perf
