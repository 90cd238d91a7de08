// Ranks of one node made by hand: heaps and private memory in this process, no communicator, no proxy.  For tests of the
// protocol's parts on the CPU platform.
#pragma once

#include <memory>
#include <vector>

#include "emu/platform.h"

namespace test {

class RankWorld {
 public:
  explicit RankWorld(uint32_t locals, uint64_t ringSlots = 8, uint64_t timeoutMs = 20000) : ranks_(locals) {
    mk::sched::ControlLayout control;
    control.locals = locals;
    mk::sched::HeapLayout layout;
    layout.controlBytes = control.bytes();
    layout.maxWorkspace = mk::sched::kWorkspaceUnit;
    for (uint32_t l = 0; l < locals; ++l) heaps_.emplace_back(layout.totalBytes() / 8);
    for (uint32_t l = 0; l < locals; ++l) {
      Rank& r = ranks_[l];
      r.own.resize(mk::protocol::OwnLayout::firstCounter(locals, 1) + 16);
      r.ring.resize(ringSlots);
      r.memory.rank = static_cast<int>(l);
      r.memory.place = {1, locals, 0, l};
      r.memory.heapLayout = layout;
      r.memory.controlLayout = control;
      for (auto& h : heaps_) r.memory.heaps.push_back(reinterpret_cast<char*>(h.data()));
      r.memory.own = r.own.data();
      r.memory.ring = r.ring.data();
      r.memory.ringSlots = ringSlots;
      r.memory.timeoutNs = timeoutMs * 1'000'000;
    }
  }
  const mk::emu::RankMemory& memory(uint32_t local) const { return ranks_[local].memory; }

 private:
  struct Rank {
    std::vector<uint64_t> own;
    std::vector<mkCommand_t> ring;
    mk::emu::RankMemory memory;
  };
  std::vector<std::vector<uint64_t>> heaps_;
  std::vector<Rank> ranks_;
};

}  // namespace test
