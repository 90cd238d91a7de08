// The symmetric heap of a rank and its mappings of the node's other heaps: sched/heap_layout.h over shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host/bootstrap.h"
#include "host/shared_memory.h"
#include "sched/common.h"
#include "sched/heap_layout.h"

namespace mk {

class Heap {
 public:
  // Collective.  Backs the control part only; epochs start after `epochStart`.
  Heap(Bootstrap& bootstrap, int rank, const sched::Place& place, uint64_t maxWorkspace, uint64_t epochStart,
       const std::vector<uint64_t>& processes, int timeoutMs);

  // Local part of growing: takes the memory, or throws and changes nothing.  No operation may be in flight.
  void back(uint64_t workspace);
  // After all ranks have: opens the new parts of peers' heaps.
  void openPeers(uint64_t workspace);

  const sched::HeapLayout& layout() const { return layout_; }
  const sched::ControlLayout& control() const { return control_; }
  uint64_t workspace() const { return workspace_; }
  uint32_t localRank() const { return local_; }
  char* base(uint32_t local) const { return memories_[local]->base(); }
  int fd() const { return memories_[local_]->fd(); }

  // The backed parts: control, flags of either bank, data of either bank.
  struct Part {
    uint64_t offset = 0, bytes = 0;
  };
  static constexpr uint32_t kParts = 5;
  Part part(uint32_t index) const;

 private:
  sched::HeapLayout layout_;
  sched::ControlLayout control_;
  uint32_t local_ = 0;
  uint64_t workspace_ = 0;
  std::vector<std::shared_ptr<SharedMemory>> memories_;  // by local rank
};

}  // namespace mk
