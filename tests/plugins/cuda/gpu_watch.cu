// See gpu_watch.h.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cuda/gpu_watch.h"

namespace test {
namespace {

constexpr unsigned long long kLimitNs = 10'000'000'000ull;
// With this much shared memory a block has its SM alone.
constexpr int kThreads = 1024, kSharedBytes = 200 << 10;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
#define CHECK_CUDA(call) check((call), #call)

struct Counts {
  unsigned long long missing, wrong;
};

__device__ unsigned long long nowNs() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void watchKernel(const uint64_t* flags, const uint64_t* payload, uint64_t chunks, uint64_t words,
                            Counts* counts) {
  extern __shared__ char unused[];
  static_cast<void>(unused);
  __shared__ bool seen;
  const unsigned long long start = nowNs();
  for (uint64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    if (threadIdx.x == 0) {
      uint64_t value = 0;
      do asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flags + chunk) : "memory");
      while (value != watchedFlag(chunk) && nowNs() - start < kLimitNs);
      seen = value == watchedFlag(chunk);
      if (!seen) atomicAdd(&counts->missing, 1);
    }
    __syncthreads();
    unsigned long long wrong = 0;
    for (uint64_t word = threadIdx.x; seen && word < words; word += blockDim.x)
      wrong += payload[chunk * words + word] != watchedWord(chunk, word);
    if (wrong != 0) atomicAdd(&counts->wrong, wrong);
    __syncthreads();
  }
}

}  // namespace

struct Watch::State {
  const uint64_t *flags, *payload;
  uint64_t chunks, words;
  cudaStream_t stream = nullptr;
  Counts* counts = nullptr;  // on the GPU
  Counts result = {1, 1};
  int blocks = 0;
};

Watch::Watch(const std::byte* flags, const std::byte* payload, uint64_t chunks, uint64_t words)
    : state_(new State{reinterpret_cast<const uint64_t*>(flags), reinterpret_cast<const uint64_t*>(payload), chunks,
                       words}) {
  int device = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&state_->blocks, cudaDevAttrMultiProcessorCount, device));
  CHECK_CUDA(cudaFuncSetAttribute(watchKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  CHECK_CUDA(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaMalloc(&state_->counts, sizeof(Counts)));
  CHECK_CUDA(cudaMemset(state_->counts, 0, sizeof(Counts)));
  CHECK_CUDA(cudaDeviceSynchronize());
}

Watch::~Watch() {
  cudaFree(state_->counts);  // waits for the kernel, which has a limit
  cudaStreamDestroy(state_->stream);
  delete state_;
}

void Watch::start() {
  watchKernel<<<static_cast<unsigned>(state_->blocks), kThreads, kSharedBytes, state_->stream>>>(
      state_->flags, state_->payload, state_->chunks, state_->words, state_->counts);
  CHECK_CUDA(cudaGetLastError());
}

bool Watch::done() {
  const cudaError_t error = cudaStreamQuery(state_->stream);
  if (error == cudaErrorNotReady) return false;
  CHECK_CUDA(error);
  CHECK_CUDA(cudaMemcpy(&state_->result, state_->counts, sizeof(Counts), cudaMemcpyDeviceToHost));
  return true;
}

uint64_t Watch::missing() const { return state_->result.missing; }
uint64_t Watch::wrong() const { return state_->result.wrong; }
bool Watch::available() { return true; }

}  // namespace test
