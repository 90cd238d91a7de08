// The symmetric heap of a rank and its mappings of the node's other heaps: sched/heap_layout.h over a platform's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host/bootstrap.h"
#include "host/platform.h"
#include "sched/common.h"
#include "sched/heap_layout.h"

namespace mk {

class Heap {
 public:
  // Collective.  Backs the control part only; epochs start after `epochStart`.
  Heap(Bootstrap& bootstrap, Platform& platform, int rank, const sched::Place& place, uint64_t maxWorkspace,
       uint64_t epochStart, const std::vector<uint64_t>& processes);

  // Collective; no operation may be in flight.  Grows to at least `workspace`, or throws on every rank and changes nothing,
  // unless torn() says on every rank that mapping has failed halfway.
  void grow(Bootstrap& bootstrap, uint64_t workspace);

  const sched::HeapLayout& layout() const { return layout_; }
  const sched::ControlLayout& control() const { return control_; }
  uint64_t workspace() const { return workspace_; }
  bool torn() const { return committing_; }
  uint32_t localRank() const { return local_; }
  char* base(uint32_t local) const { return memories_[local]->base(); }

  // The backed parts: control, flags of either bank, data of either bank.
  struct Part {
    uint64_t offset = 0, bytes = 0;
  };
  static constexpr uint32_t kParts = sched::HeapLayout::kParts;
  Part part(uint32_t index) const;
  // What a transport is told of one.
  uint32_t memoryKind() const { return platform_.memoryKind(); }
  int descriptor(uint32_t index, uint64_t* offset) const { return memories_[local_]->descriptor(index, offset); }

 private:
  void exchange(Bootstrap& bootstrap, uint32_t firstPart, uint64_t workspace);

  Platform& platform_;
  const int rank_;
  const std::vector<uint64_t> processes_;
  sched::HeapLayout layout_;
  sched::ControlLayout control_;
  uint32_t local_ = 0;
  uint64_t workspace_ = 0;
  bool committing_ = false;
  std::vector<std::shared_ptr<HeapMemory>> memories_;  // by local rank
};

}  // namespace mk
