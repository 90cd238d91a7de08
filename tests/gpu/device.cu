#include "gpu/device.h"

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
  static cudaStream_t stream = nullptr;
  if (stream == nullptr) cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
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
      void* p = nullptr;
      cuda(cudaMalloc(&p, bytes), "cudaMalloc");
      return p;
    },
    [](void* p) { cudaFree(p); },
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
