// What a launch on the GPU sees of its rank's memory: the device's twin of emu/rank_memory.h.  Plain data, passed by value.
// Made by the communicator, kept while it lives.
#pragma once

#include <cstdint>

#include "mkernel/queue.h"
#include "protocol/mlx5_queue.h"
#include "protocol/types.h"
#include "sched/heap_layout.h"

namespace mk::kernels {

constexpr uint32_t kMaxLocals = 8;  // ranks of a node

// Words in pinned host memory that the proxy and the agents share, in place of those of protocol::OwnLayout; by index, each in
// a cache line of its own.
struct HostWords {
  enum Word : uint64_t { completions = 0, credits = 16, enteredNewest = 32, countWords = 48 };
  // Behind them, of the card's queue to each node, how far the card has come.
  static constexpr uint64_t retired(uint64_t node) { return countWords + node * 16; }
  // Added to an index: among the private words it names this word.
  static constexpr uint64_t kHere = uint64_t{1} << 40;
};

struct RankMemory {
  sched::Place place;
  sched::HeapLayout heapLayout;
  sched::ControlLayout controlLayout;
  char* heaps[kMaxLocals] = {};  // by local rank: base of that rank's heap, as mapped on this device
  uint64_t* own = nullptr;       // device memory: OwnLayout's words and the operations' counters
  uint64_t* host = nullptr;      // pinned host memory: HostWords; only needed with several nodes
  mkCommand_t* ring = nullptr;   // pinned host memory
  uint64_t ringSlots = 0;
  const protocol::Mlx5Queue* cardQueues = nullptr;  // device memory, by node; null: agents post to the ring
  const uint32_t* rankTable =
      nullptr;  // device memory: global rank by node * locals + local; null: that number is the rank
  // Device memory, on one node: where clusters have parts of a tile's K each, sums of each part, and how many have come
  // (SplitMemory in sched/split_k.h).
  char* splitSums = nullptr;
  uint64_t* splitCounts = nullptr;
  uint32_t splitSlots = 0;                 // parts of tiles that there is room for
  uint64_t timeoutNs = 0;                  // without progress, once all ranks have entered
  protocol::FailRecord* record = nullptr;  // pinned host memory; kind is written last
};

}  // namespace mk::kernels
