#include "ibgda/gpu_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "loopback/cuda_abi.h"

namespace test {

namespace cuda = mk::plugin::loopback::cuda;

namespace {

constexpr size_t kBounceBytes = 1 << 20;

// What has been copied must be there: a card has no way to say otherwise.
void must(cuda::Result result, const char* what) {
  if (result == cuda::kSuccess) return;
  std::fprintf(stderr, "software network card: %s: CUDA error %d\n", what, result);
  std::abort();
}

// False: there is no driver, or one that is too old.
bool load(cuda::Calls& calls) {
  void* const object = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  bool all = object != nullptr;
  const auto find = [&](const char* symbol, auto& entry) {
    if (object != nullptr) entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(object, symbol));
    all &= entry != nullptr;
  };
#define TEST_CUDA_FIND(name, symbol, parameters) find(symbol, calls.name);
  MK_LOOPBACK_CUDA_CALLS(TEST_CUDA_FIND)
#undef TEST_CUDA_FIND
  return all;
}

class GpuMemory final : public SoftNic::FarMemory {
 public:
  GpuMemory(const cuda::Calls& calls, cuda::Context context) : calls_(calls), context_(context) {
    must(calls_.streamCreate(&stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
    must(calls_.memHostAlloc(&bounce_, kBounceBytes, cuda::kHostAllocPortable), "cuMemHostAlloc");
  }

  void read(char* to, uint64_t from, uint64_t bytes) override {
    const Turn turn(*this);
    for (uint64_t at = 0; at < bytes; at += kBounceBytes) {
      const size_t piece = std::min<uint64_t>(kBounceBytes, bytes - at);
      must(calls_.memcpyAsync(reinterpret_cast<cuda::DevicePtr>(bounce_), from + at, piece, stream_), "reading a GPU");
      await();
      std::memcpy(to + at, bounce_, piece);
    }
  }
  void write(uint64_t to, const char* from, uint64_t bytes) override {
    const Turn turn(*this);
    for (uint64_t at = 0; at < bytes; at += kBounceBytes) {
      const size_t piece = std::min<uint64_t>(kBounceBytes, bytes - at);
      std::memcpy(bounce_, from + at, piece);
      must(calls_.memcpyAsync(to + at, reinterpret_cast<cuda::DevicePtr>(bounce_), piece, stream_), "writing to a GPU");
      await();
    }
  }
  // At once, and after everything before it.
  void store(uint64_t to, uint64_t word) override {
    const Turn turn(*this);
    cuda::MemOp op = {};
    op.operation = cuda::kWriteValue64;
    op.address = to;
    op.value = word;
    must(calls_.streamBatchMemOp(stream_, 1, &op, 0), "storing a flag on a GPU");
    await();
  }

 private:
  // Of one thread, with the context.
  class Turn {
   public:
    explicit Turn(GpuMemory& memory) : memory_(memory), lock_(memory.mutex_) {
      must(memory_.calls_.ctxPushCurrent(memory_.context_), "cuCtxPushCurrent");
    }
    ~Turn() {
      cuda::Context popped = nullptr;
      must(memory_.calls_.ctxPopCurrent(&popped), "cuCtxPopCurrent");
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    GpuMemory& memory_;
    const std::lock_guard<std::mutex> lock_;
  };

  void await() {
    for (;;) {
      const cuda::Result result = calls_.streamQuery(stream_);
      if (result == cuda::kSuccess) return;
      if (result != cuda::kNotReady) must(result, "cuStreamQuery");
      std::this_thread::yield();
    }
  }

  const cuda::Calls calls_;
  const cuda::Context context_;
  cuda::Stream stream_ = nullptr;
  void* bounce_ = nullptr;
  std::mutex mutex_;
};

}  // namespace

SoftNic::FarMemory* gpuMemoryAt(const void* address) {
  // One for each GPU, for as long as the process lives: a driver is not made to be left.  A child has none of its parent's.
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<pid_t, cuda::Context>, GpuMemory*>;
  cuda::Calls calls;
  unsigned type = 0;
  cuda::Context context = nullptr;
  if (!load(calls) ||
      calls.pointerGetAttribute(&type, cuda::kAttributeMemoryType, reinterpret_cast<cuda::DevicePtr>(address)) !=
          cuda::kSuccess ||
      type != cuda::kMemoryTypeDevice)
    return nullptr;
  must(calls.ctxGetCurrent(&context), "cuCtxGetCurrent");
  const std::lock_guard lock(mutex);
  GpuMemory*& memory = known[{getpid(), context}];
  if (memory == nullptr) memory = new GpuMemory(calls, context);
  return memory;
}

}  // namespace test
