// The producer's side of the command ring (include/mkernel/queue.h).  An agent takes a credit, which can fail, then a slot,
// which cannot: an atomic add.  So no agent ever holds a slot it cannot fill, and nobody waits for another agent.
#pragma once

#include "mkernel/queue.h"
#include "protocol/types.h"

namespace mk::protocol {

struct Write {
  uint32_t node = 0;               // rail peer
  uint64_t sourceOffset = 0;       // in my heap
  uint64_t destinationOffset = 0;  // in the peer's heap
  uint64_t bytes = 0;
  uint64_t slot = 0;
  uint64_t epoch = 0;
};

// False: the ring is full.  Everything this agent has stored or acquired before is visible to whoever reads the command.
template <class P>
MK_HD bool tryPost(P& p, const Write& w) {
  const uint64_t slots = p.ringSlots();
  // A failed taker gives its credit back; others may meanwhile see the ring fuller than it is, never emptier.
  const uint64_t taken = p.ownAdd(OwnLayout::ringTaken, 1);
  if (static_cast<int64_t>(taken - p.ownLoad(OwnLayout::credits)) >= static_cast<int64_t>(slots)) {
    p.ownAdd(OwnLayout::ringTaken, ~uint64_t{0});
    return false;
  }
  const uint64_t index = p.ownAdd(OwnLayout::ringTail, 1);
  mkCommand_t c;
  c.header = mkCommandHeader(mkCommandLap(index, slots), MK_COMMAND_OP_WRITE, static_cast<uint32_t>(w.slot), w.node);
  c.source = mkPlace(MK_MEMORY_HEAP, w.sourceOffset);
  c.destination = mkPlace(MK_MEMORY_HEAP, w.destinationOffset);
  c.bytes = w.bytes;
  c.slot = w.slot;
  c.epoch = w.epoch;
  p.storeCommand(index % slots, c);
  return true;
}

// Waits for room.  False: unwind.
template <class P>
MK_HD bool post(P& p, const Write& w) {
  while (!tryPost(p, w)) {
    // Producer: the proxy, which counts up the credits word as it reads slots.
    const uint64_t seen = p.ownLoad(OwnLayout::credits);
    if (static_cast<int64_t>(p.ownLoad(OwnLayout::ringTaken) - seen) < static_cast<int64_t>(p.ringSlots())) continue;
    if (!p.wait(own(OwnLayout::credits), seen + 1, Match::atLeast,
                Why{Stage::queue, -1, static_cast<int32_t>(w.node), w.slot}))
      return false;
  }
  return true;
}

}  // namespace mk::protocol
