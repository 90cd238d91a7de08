#include "host/platform.h"

#include "host/cpu_platform.h"
#include "host/cuda.h"
#include "host/error.h"
#include "host/memory.h"

namespace mk {

std::unique_ptr<Platform> Platform::make(const Settings& settings) {
  if (settings.platform == "cuda") return cuda::makePlatform(settings);
  return std::make_unique<CpuPlatform>(settings);
}

void* allocate(size_t bytes) {
  if (bytes == 0) fail(mkErrorInvalidArgument, "bytes is 0; legal: 1 or more");
  if (bytes > (size_t{1} << 46)) fail(mkErrorInvalidArgument, "bytes is %zu; legal: up to 2^46", bytes);
  return choosePlatform("") == "cuda" ? cuda::allocate(bytes) : allocateShared(bytes);
}

void release(void* ptr) {
  if (ptr != nullptr && !releaseShared(ptr) && !cuda::release(ptr))
    fail(mkErrorInvalidArgument, "ptr %p is not the start of memory from mkMemAlloc", ptr);
}

}  // namespace mk
