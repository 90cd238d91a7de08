// The CPU platform: agents are fibres, the heap is shared memory, a launch runs on the thread of its stream.
#pragma once

#include <cstdlib>

#include "emu/ag_gemm.h"
#include "emu/gemm_ar.h"
#include "emu/gemm_rs.h"
#include "emu/rank_memory.h"
#include "host/platform.h"

namespace mk {

class CpuPlatform final : public Platform {
 public:
  explicit CpuPlatform(const Settings& settings) : agentCount_(settings.agents), maxSMs_(settings.maxSMs) {}

  int device() const override { return -1; }
  uint32_t smCount() const override { return agentCount_; }

  uint64_t heapPage() const override { return sched::kHeapPage; }
  uint64_t workspaceUnit() const override { return sched::kWorkspaceUnit; }
  bool sharesMappings() const override { return true; }
  uint32_t memoryKind() const override;
  std::shared_ptr<HeapMemory> createHeap(uint64_t addressBytes) override;
  std::shared_ptr<HeapMemory> attachHeap(uint64_t addressBytes, const std::shared_ptr<HeapMemory>& owner) override;
  WindowExport exportWindow(void* ptr, size_t bytes) override;
  WindowMapping importWindow(const std::vector<uint8_t>& claim, std::vector<UniqueFd> fds, bool sameProcess) override;

  void setUp(int rank, const sched::Place& place, const sched::RankMap& ranks, const Heap& heap,
             const Settings& settings) override;
  ProxyShared proxyShared() override;
  uint64_t word(uint64_t index) const override { return memory_.ownWord(index).load(std::memory_order_acquire); }
  uint64_t completions() const override { return word(protocol::OwnLayout::completions); }
  void setCards(const std::vector<protocol::Mlx5Queue>& queues) override;
  uint64_t* cardRetired(uint32_t node) override { return own_.get() + memory_.cardQueues[node].retiredWord; }
  void raiseFlag(uint64_t offset, uint64_t value) override;
  std::unique_ptr<HeapCopies> makeCopies(uint32_t marks) override;
  void revoke() override { memory_.ownWord(protocol::OwnLayout::revoked).store(1, std::memory_order_release); }

  bool asynchronous() const override { return false; }
  void planGemmAr(const sched::GemmArShape& shape, const sched::GemmChoice& choice, GemmArCall* call) const override;
  protocol::FailRecord runGemmAr(const GemmArCall& call, mkStream_t stream) override;
  void planGemmRs(const sched::GemmRsShape& shape, const sched::GemmChoice& choice, GemmRsCall* call) const override;
  protocol::FailRecord runGemmRs(const GemmRsCall& call, mkStream_t stream) override;
  void planAgGemm(const sched::AgGemmShape& shape, const sched::GemmChoice& choice, AgGemmCall* call) const override;
  protocol::FailRecord runAgGemm(const AgGemmCall& call, mkStream_t stream) override;
  LaunchView view() const override;

  // For tests that set words by hand.
  const emu::RankMemory& memory() const { return memory_; }

 private:
  // Takes the plan, if there are agents for its roles.
  template <class Call, class Plan>
  void accept(Call* call, const Plan& plan) const;

  const uint32_t agentCount_, maxSMs_;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<uint64_t, Free> own_;  // OwnLayout's words, then the operations' counters; pages come when touched
  std::vector<mkCommand_t> ring_;
  emu::RankMemory memory_;
  std::unique_ptr<emu::Agents> agents_;
};

}  // namespace mk
