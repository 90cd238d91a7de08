// What a launch on the CPU platform sees of its rank's memory.  Made by the communicator, kept while it lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "mkernel/queue.h"
#include "protocol/mlx5_queue.h"
#include "protocol/types.h"
#include "sched/heap_layout.h"

namespace mk::emu {

struct RankMemory {
  int rank = 0;
  sched::Place place;
  sched::HeapLayout heapLayout;
  sched::ControlLayout controlLayout;
  std::vector<char*> heaps;  // by local rank: base of that rank's heap, mapped here
  uint64_t* own = nullptr;   // OwnLayout's words and the operations' counters
  mkCommand_t* ring = nullptr;
  uint64_t ringSlots = 0;
  std::vector<protocol::Mlx5Queue> cardQueues;  // by node; empty: agents post to the ring
  uint64_t timeoutNs = 0;

  std::atomic_ref<uint64_t> ownWord(uint64_t word) const { return std::atomic_ref<uint64_t>(own[word]); }
  char* at(const protocol::Ref& r) const {
    return r.space == protocol::Space::own ? reinterpret_cast<char*>(own) + r.offset : heaps[r.local] + r.offset;
  }
  std::atomic_ref<uint64_t> flag(const protocol::Ref& r) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at(r)));
  }
};

}  // namespace mk::emu
