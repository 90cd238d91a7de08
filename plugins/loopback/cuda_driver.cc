// See cuda_driver.h.
#include "cuda_driver.h"

#include <dlfcn.h>

#include <mutex>

#include "common/failure.h"

namespace mk::plugin::loopback::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

std::mutex loadMutex;
Driver loadedDriver;
bool isLoaded = false;

// The library is never closed: a driver is not made to be unloaded.
void load(Driver& into) {
  void* const object = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* const words = dlerror();
    fail(mkErrorNotSupported, "CUDA memory (kind %u) needs the NVIDIA driver's library, which cannot be loaded: %s",
         MK_MEMORY_KIND_CUDA, words != nullptr ? words : kLibrary);
  }
  const auto find = [&](const char* symbol, auto& entry) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(object, symbol));
    if (entry == nullptr)
      fail(mkErrorNotSupported, "CUDA memory (kind %u) needs a newer NVIDIA driver: %s lacks %s", MK_MEMORY_KIND_CUDA,
           kLibrary, symbol);
  };
#define MK_LOOPBACK_CUDA_FIND(name, symbol, parameters) find(symbol, into.name);
  MK_LOOPBACK_CUDA_CALLS(MK_LOOPBACK_CUDA_FIND)
#undef MK_LOOPBACK_CUDA_FIND
}

}  // namespace

const Driver& driver() {
  const std::lock_guard lock(loadMutex);
  if (!isLoaded) {
    load(loadedDriver);
    isLoaded = true;
  }
  return loadedDriver;
}

std::string Driver::describe(const char* call, Result result) const {
  const char* name = nullptr;
  if (getErrorName(result, &name) != kSuccess || name == nullptr) return format("%s: CUDA error %d", call, result);
  return format("%s: %s", call, name);
}

void Driver::check(Result result, const char* call, const std::string& what) const {
  if (result != kSuccess) fail(mkErrorSystem, "%s: %s", what.c_str(), describe(call, result).c_str());
}

UseContext::UseContext(const Driver& driver, Context context) : driver_(driver) {
  Context current = nullptr;
  if (driver_.ctxGetCurrent(&current) == kSuccess && current == context) return;
  pushed_ = driver_.ctxPushCurrent(context) == kSuccess;  // if it fails, so do the calls that need it
}

UseContext::~UseContext() {
  Context popped = nullptr;
  if (pushed_) driver_.ctxPopCurrent(&popped);
}

}  // namespace mk::plugin::loopback::cuda
