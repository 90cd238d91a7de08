// The CUDA platform as the rest of the library sees it, whether or not this build has it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "host/platform.h"

namespace mk::cuda {

// Toolkit version as CUDART_VERSION, 0 without CUDA; architectures of the kernels, comma-separated.
int buildVersion();
const char* buildArchs();

// Why the calling thread's current device cannot be used, or "".
std::string unusable();

std::unique_ptr<Platform> makePlatform(const Settings& settings);

// mkMemAlloc on the current device.
void* allocate(size_t bytes);
// False: ptr is not the start of such an allocation.  Throws mkErrorInvalidUsage if a window covers it.
bool release(void* ptr);

}  // namespace mk::cuda
