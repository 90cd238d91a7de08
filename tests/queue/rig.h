// One of two ranks, each a process and a node of its own, put together of the library's parts without a communicator: CUDA
// platform, heap, proxy.  Agents post into its command ring; its proxy drives a transport plugin, or `instant`, a transport
// that carries nothing and completes every write at the next poll, so that what is left is the queue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/cuda_platform.h"
#include "host/heap.h"
#include "host/proxy.h"

namespace gpu {

[[noreturn]] void die(const std::string& text);
inline void require(cudaError_t e, const char* what) {
  if (e != cudaSuccess) die(std::string(what) + ": " + cudaGetErrorString(e));
}
#define CUDA(call) gpu::require((call), #call)

class Rig {
 public:
  static constexpr uint32_t kNodes = 2;

  // Collective, with the CUDA device current.  transport: a plugin's name, or "instant".
  Rig(int rank, const mkUniqueId_t& id, const std::string& transport, uint64_t workspace);
  ~Rig();  // collective
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  bool first() const { return rank_ == 0; }
  uint32_t peer() const { return 1 - static_cast<uint32_t>(rank_); }
  const mk::kernels::RankMemory& memory() const { return platform_->launchMemory(); }
  const mk::ProxyCounters& counters() const { return proxy_->counters(); }
  std::string pciBusId() const { return platform_->pciBusId(); }
  cudaStream_t stream() const { return stream_; }

  // Collective: the sum of what both say.
  uint64_t sum(uint64_t mine);
  void meet() { sum(0); }

  // Until what is on the stream has ended; dies, saying why, if it does not, or if an agent has waited in vain.
  void finish(const char* what);
  // Until so many more commands have completed than had when all was quiet last, and never one more.
  void settle(uint64_t commands, const char* what);

 private:
  void requireHealth(const char* what);

  const int rank_;
  mk::Settings settings_;
  std::unique_ptr<mk::cuda::CudaPlatform> platform_;
  std::unique_ptr<mk::Bootstrap> bootstrap_;
  std::unique_ptr<mk::Heap> heap_;
  std::unique_ptr<mk::Proxy> proxy_;
  cudaStream_t stream_ = nullptr;
  uint64_t completed_ = 0;
};

}  // namespace gpu
