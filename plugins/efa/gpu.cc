// See gpu.h.
#include "gpu.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::efa {
namespace {

// Closed at once: the process's own use keeps the driver loaded.
void* driver() {
  void* object = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (object != nullptr) dlclose(object);
  return object;
}

}  // namespace

bool cudaDriverLoaded() { return driver() != nullptr; }

int cudaDeviceOf(const void* address) {
  int (*attribute)(void*, int, unsigned long long) = nullptr;
  void* const object = driver();
  void* const found = object != nullptr ? dlsym(object, "cuPointerGetAttribute") : nullptr;
  if (found == nullptr) fail(mkErrorNotSupported, "memory of a GPU, and no CUDA driver is loaded");
  std::memcpy(&attribute, &found, sizeof(attribute));
  constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
  int device = 0;
  if (const int result = attribute(&device, kDeviceOrdinal, reinterpret_cast<uintptr_t>(address)); result != 0)
    fail(mkErrorInvalidArgument, "%p is no memory of a GPU (CUDA error %d)", address, result);
  return device;
}

}  // namespace mk::plugin::efa
