#include "gpu/device.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

#include "ops/world.h"
#include "process/crew.h"

namespace test {

void cuda(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw std::string(what) + ": " + cudaGetErrorString(e);
}

int deviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

OneGpu oneGpu() {
  static const OneGpu how = [] {
    const char* const value = std::getenv("MKERNEL_TEST_ONE_GPU");
    if (value == nullptr || std::string(value) == "0") return OneGpu::no;
    return std::string(value) == "processes" ? OneGpu::processes : OneGpu::threads;
  }();
  return how;
}

// The running and the next launch of all ranks, and SMs to spare: a copy on the same GPU is a kernel.
uint32_t smsOfRank(int communicators) {
  if (oneGpu() == OneGpu::no) return 0;
  const auto count = [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? 1 : std::atoi(value);
  };
  const int ranks = std::max(2, count("MK_TEST_NODES") * count("MK_TEST_LOCALS"));
  return static_cast<uint32_t>(smCount() / (2 * ranks) / communicators / 2 * 2);
}

cudaStream_t plainStream() { return oneGpu() == OneGpu::threads ? cudaStreamPerThread : nullptr; }

cudaStreamCaptureMode captureMode() {
  return oneGpu() == OneGpu::threads ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeGlobal;
}

int smCount() {
  int device = 0, count = 0;
  cuda(cudaGetDevice(&device), "device");
  cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "SMs");
  return count;
}

namespace {

constexpr int kSharedBytes = 200 << 10;  // so much that a block has its SM for itself

__global__ void occupyKernel(const volatile int* stop) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*stop == 0 && now - begin < 20'000'000'000ull);
}

__global__ void differentKernel(const char* a, const char* b, size_t bytes, unsigned long long* count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < bytes; i += size_t{gridDim.x} * blockDim.x)
    if (a[i] != b[i]) atomicAdd(count, 1ull);
}

cudaStream_t copies() {
  static thread_local cudaStream_t stream = nullptr;
  if (stream == nullptr) cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}

// Where ranks are threads: cudaFree would wait for the other ranks' kernels, which may wait for what this process has to do.
class Arena {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr) cuda(cudaMalloc(reinterpret_cast<void**>(&base_), kBytes), "cudaMalloc");
    const size_t size = (bytes + kAlign) / kAlign * kAlign;
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
      if (hole->second < size) continue;
      const auto [at, room] = *hole;
      free_.erase(hole);
      if (room > size) free_[at + size] = room - size;
      taken_[at] = size;
      return base_ + at;
    }
    throw "the GPU tests' arena has no " + std::to_string(bytes) + " bytes";
  }
  void give(void* p) {
    const std::lock_guard lock(mutex_);
    const auto block = taken_.find(static_cast<size_t>(static_cast<char*>(p) - base_));
    size_t at = block->first, size = block->second;
    taken_.erase(block);
    const auto after = free_.find(at + size);
    if (after != free_.end()) {
      size += after->second;
      free_.erase(after);
    }
    const auto next = free_.lower_bound(at);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += size;
        return;
      }
    }
    free_[at] = size;
  }

 private:
  static constexpr size_t kBytes = size_t{4} << 30, kAlign = 512;
  std::mutex mutex_;
  char* base_ = nullptr;
  std::map<size_t, size_t> free_ = {{0, kBytes}}, taken_;  // sizes by place
};
Arena& arena() {
  static auto* all = new Arena;
  return *all;
}

// Deadlines: a kernel that hangs must not hang the test.
void await(cudaStream_t stream) {
  const uint64_t begin = clockNs();
  for (;;) {
    const cudaError_t e = cudaStreamQuery(stream);
    if (e == cudaSuccess) return;
    if (e != cudaErrorNotReady) cuda(e, "stream");
    if (clockNs() - begin > 60'000'000'000u) throw std::string("a stream has not ended for 60 s");
  }
}

const DeviceMemory kMemory = {
    [](size_t bytes) {
      if (oneGpu() == OneGpu::threads) return arena().take(bytes);
      void* p = nullptr;
      cuda(cudaMalloc(&p, bytes), "cudaMalloc");
      return p;
    },
    [](void* p) {
      if (oneGpu() == OneGpu::threads) return arena().give(p);
      cudaFree(p);
    },
    [](void* to, const void* from, size_t bytes) {
      cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, copies()), "upload");
      await(copies());
    },
    [](void* to, const void* from, size_t bytes) {
      cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, copies()), "download");
      await(copies());
    },
    [](mkStream_t stream) { await(stream); },
};

const bool installed = [] {
  deviceMemory = &kMemory;
  beforeRole = [](int rank) { cuda(cudaSetDevice(rank % deviceCount()), "cudaSetDevice"); };
  if (oneGpu() == OneGpu::no) return true;
  ranksAreThreads = oneGpu() == OneGpu::threads;
  configureAll = [](mkConfig_t& config) { config.maxSMs = smsOfRank(); };
  setenv("MKERNEL_SHARE_GPU", "1", 1);
  // Streams of different ranks must not share a queue of the device, where one's kernel would wait behind the other's.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // to load a kernel waits for those that run
  return true;
}();

}  // namespace

void occupy(int blocks, const volatile int* stop, cudaStream_t stream) {
  cuda(cudaFuncSetAttribute(occupyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "shared memory");
  occupyKernel<<<static_cast<unsigned>(blocks), 32, kSharedBytes, stream>>>(stop);
  cuda(cudaGetLastError(), "occupying SMs");
}

void countDifferent(const void* a, const void* b, size_t bytes, unsigned long long* count, cudaStream_t stream) {
  differentKernel<<<64, 256, 0, stream>>>(static_cast<const char*>(a), static_cast<const char*>(b), bytes, count);
  cuda(cudaGetLastError(), "comparing");
}

}  // namespace test
