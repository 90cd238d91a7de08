// How node sums travel along a rail (the ranks of one local rank on all nodes), per chunk of an owner.
//
// swap: every node sends its sum to every other and all finish alike: one hop, (N-1) x chunk per NIC; best for two nodes.
// home: each chunk has a home node, rotating with the chunk; the others send it their sums, it sends the finished chunk back:
//       2(N-1)/N of the chunks' bytes per NIC, like a direct reduce-scatter and all-gather of 1/N parts, but in whole chunks, so
//       messages keep their size.  (The parts of a chunk would be 256 KiB / N and cost N times the messages.)
#pragma once

#include "sched/common.h"

namespace mk::sched {

// direct, ring: of rows that are the same everywhere (ag_gemm.h).
enum class Exchange : uint32_t { swap = 1, home = 2, direct = 3, ring = 4 };

struct Rail {
  uint32_t nodes = 1;
  Exchange exchange = Exchange::swap;

  // Home of an owner's chunk number `index`; the local rank staggers it so that a node's NICs do not all receive at once.
  MK_HD constexpr uint32_t home(uint64_t index, uint32_t local) const {
    return static_cast<uint32_t>((index + local) % nodes);
  }
  // True if `node` sums this chunk over the nodes.
  MK_HD constexpr bool finishes(uint64_t index, uint32_t local, uint32_t node) const {
    return exchange == Exchange::swap || home(index, local) == node;
  }
  // How many of the first `owned` chunks have this node as home, and the number of one of them among those.
  MK_HD constexpr uint64_t homeChunks(uint64_t owned, uint32_t local, uint32_t node) const {
    const uint64_t first = firstHome(local, node);
    return owned > first ? ceilDiv(owned - first, nodes) : 0;
  }
  MK_HD constexpr uint64_t homeIndex(uint64_t index) const { return index / nodes; }

  // Receiving tasks of one rank, in the order they are claimed.  A chunk that another node finishes is passed on (forward) one
  // group of N chunks after this node's own of that group, so that waiting for a result delays no sum that could be made.
  struct Task {
    bool exists = false;
    bool finish = false;  // sum and finish; else forward a finished chunk
    uint64_t index = 0;   // among the owner's chunks
  };
  MK_HD constexpr uint64_t tasks(uint64_t owned) const {
    if (exchange == Exchange::swap) return owned;
    return owned == 0 ? 0 : 1 + ceilDiv(owned, nodes) * nodes;
  }
  MK_HD constexpr Task task(uint64_t number, uint64_t owned, uint32_t local, uint32_t node) const {
    Task t;
    if (exchange == Exchange::swap) {
      t.exists = true;
      t.finish = true;
      t.index = number;
      return t;
    }
    const uint64_t step = number == 0 ? 0 : 1 + (number - 1) / nodes;
    const uint32_t inStep = number == 0 ? 0 : static_cast<uint32_t>((number - 1) % nodes);
    const uint32_t mine = static_cast<uint32_t>(firstHome(local, node));
    t.finish = inStep == 0;
    t.index = t.finish ? step * nodes + mine : (step - 1) * nodes + unskipSelf(inStep - 1, mine);
    t.exists = t.index < owned;
    return t;
  }
  // The other nodes in rotated order, beginning with the next: step in [0, nodes - 1).
  MK_HD constexpr uint32_t target(uint32_t node, uint32_t step) const { return (node + 1 + step) % nodes; }

 private:
  // First chunk whose home is `node`.
  MK_HD constexpr uint64_t firstHome(uint32_t local, uint32_t node) const {
    return (node + nodes - local % nodes) % nodes;
  }
};

}  // namespace mk::sched
