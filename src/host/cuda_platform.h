// The CUDA platform: one rank on one GPU.  Private words lie in device memory; what proxy and agents share lies in pinned host
// memory; the host looks at the words by small copies on a stream of its own, which never waits for a kernel.
#pragma once

#include <mutex>
#include <vector>

#include "host/cuda_cards.h"
#include "host/cuda_memory.h"
#include "host/platform.h"
#include "kernels/rank_memory.h"
#include "sched/kernel_choice.h"

namespace mk::cuda {

class CudaPlatform final : public Platform {
 public:
  // On the current device.
  explicit CudaPlatform(const Settings& settings);
  ~CudaPlatform() override;
  CudaPlatform(const CudaPlatform&) = delete;
  CudaPlatform& operator=(const CudaPlatform&) = delete;

  int device() const override { return device_; }
  uint32_t smCount() const override { return smCount_; }
  std::array<uint8_t, 16> deviceId() const override { return uuid_; }
  std::string pciBusId() const override;
  uint32_t capacity() const override { return clusters_; }
  void setCapacity(uint32_t clusters) override { clusters_ = clusters; }
  int bind() const override;
  void restore(int before) const override;

  uint64_t heapPage() const override { return kPage; }
  uint64_t workspaceUnit() const override { return 32 * kPage; }  // the flags of a bank are a 32nd
  bool sharesMappings() const override { return false; }
  uint32_t memoryKind() const override;
  std::shared_ptr<HeapMemory> createHeap(uint64_t addressBytes) override {
    return makeHeap(device_, addressBytes, true, side_);
  }
  std::shared_ptr<HeapMemory> attachHeap(uint64_t addressBytes, const std::shared_ptr<HeapMemory>&) override {
    return makeHeap(device_, addressBytes, false, side_);
  }
  WindowExport exportWindow(void* ptr, size_t bytes) override { return cuda::exportWindow(device_, ptr, bytes); }
  WindowMapping importWindow(const std::vector<uint8_t>& claim, std::vector<UniqueFd> fds, bool sameProcess) override {
    return cuda::importWindow(device_, claim, std::move(fds), sameProcess);
  }

  void requireOperand(const void* ptr, const char* name) const override;

  void setUp(int rank, const sched::Place& place, const sched::RankMap& ranks, const Heap& heap,
             const Settings& settings) override;
  ProxyShared proxyShared() override;
  uint64_t word(uint64_t index) const override;
  void refresh(bool wait) override;
  uint64_t completions() const override;
  void setCards(const std::vector<protocol::Mlx5Queue>& queues) override;
  void dropCards() override;
  uint64_t* cardRetired(uint32_t node) override { return memory_.host + kernels::HostWords::retired(node); }
  void raiseFlag(uint64_t offset, uint64_t value) override;
  std::unique_ptr<HeapCopies> makeCopies(uint32_t marks) override;
  void revoke() override;

  // What launches are given of this rank; for tests that launch kernels of their own.
  const kernels::RankMemory& launchMemory() const { return memory_; }

  bool asynchronous() const override { return true; }
  void planGemmAr(const sched::GemmArShape& shape, const sched::GemmChoice& choice, GemmArCall* call) const override;
  protocol::FailRecord runGemmAr(const GemmArCall& call, mkStream_t stream) override;
  void planGemmRs(const sched::GemmRsShape& shape, const sched::GemmChoice& choice, GemmRsCall* call) const override;
  protocol::FailRecord runGemmRs(const GemmRsCall& call, mkStream_t stream) override;
  void planAgGemm(const sched::AgGemmShape& shape, const sched::GemmChoice& choice, AgGemmCall* call) const override;
  protocol::FailRecord runAgGemm(const AgGemmCall& call, mkStream_t stream) override;
  LaunchView view() const override;
  bool follow(mkStream_t stream) override;
  void requireNoCapture(const char* what) const override;
  bool busy(bool strict) override;
  bool running() const override;
  bool hasRecord() const override;
  protocol::FailRecord record() const override { return *memory_.record; }

 private:
  void requestView();
  void takeView();
  bool awaitView(bool wait);
  uint64_t hostWord(uint64_t index) const;
  bool lastStream(cudaStream_t* stream) const;
  // lost: there is no such stream any more.  unknown: busy, or it cannot be asked.
  enum class StreamState { empty, capturing, lost, unknown };
  StreamState stateOf(cudaStream_t stream) const;
  uint32_t agents() const { return clusters_ * sched::kClusterBlocks; }
  sched::KernelChoice chooseKernel(sched::KernelShape s, const sched::Place& place,
                                   const sched::GemmChoice& choice) const;
  // Takes the plan that goes with the kernel.
  template <class Call, class Plan>
  void accept(Call* call, const sched::KernelChoice& kernel, const Plan& plan) const;
  // The end of every launch: what failed, or "".
  protocol::FailRecord launched(const std::string& why, const sched::KernelChoice& kernel, cudaStream_t stream);

  int device_ = 0;
  uint32_t smCount_ = 0, clusters_ = 0;
  uint64_t cacheBytes_ = 0;  // of the L2
  std::array<uint8_t, 16> uuid_ = {};
  cudaStream_t side_ = nullptr;   // looks at words, revokes
  cudaStream_t flags_ = nullptr;  // the proxy's
  kernels::RankMemory memory_;
  char* pinned_ = nullptr;      // one allocation: host words, record, copied words, sources of copies, ring
  uint64_t* raised_ = nullptr;  // sources of raiseFlag(), used in turn
  uint64_t raisedCount_ = 0;

  std::unique_ptr<CardMap> cards_;
  protocol::Mlx5Queue* cardQueues_ = nullptr;  // device memory, by node

  mutable std::mutex viewMutex_;
  uint64_t* copied_ = nullptr;  // where the newest copy of the private words lands
  uint64_t viewWords_ = 0;
  cudaEvent_t copiedEvent_ = nullptr;
  bool copying_ = false;
  std::vector<uint64_t> view_;  // the newest complete copy
  uint64_t viewAt_ = 0, progressAt_ = 0;

  uint64_t begun_ = 0;  // blocks of all launches, if there were no graphs
  bool launched_ = false;
  cudaStream_t last_ = nullptr;  // of the newest launch that was not captured

  // The caller's thread.
  cudaEvent_t order_ = nullptr;
  // Behind the newest launch on cudaStreamPerThread, which is another stream on another thread.
  cudaEvent_t perThread_ = nullptr;
  cudaStream_t captured_ = nullptr;
  unsigned long long captureId_ = 0;
};

}  // namespace mk::cuda
