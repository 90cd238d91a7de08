// How an agent asks for a network transfer: by a command for the proxy (include/mkernel/queue.h) or, where the platform has
// the card's own queue to that node, by entries for the card (mlx5_queue.h).  Either way it takes room, which can fail, then
// a place, which cannot: an atomic add.  So no agent ever holds a place it cannot fill, and nobody waits for another agent.
#pragma once

#include "mkernel/queue.h"
#include "protocol/mlx5_queue.h"
#include "protocol/types.h"

namespace mk::protocol {

// Words of the rank's private memory that count room, and how much of it a write needs.
struct Room {
  uint64_t taken;
  FarWord freed;  // counted up by the proxy
  uint64_t capacity, needed;

  MK_HD bool lacking(uint64_t takenBefore, uint64_t freedSeen) const {
    return static_cast<int64_t>(takenBefore + needed - freedSeen) > static_cast<int64_t>(capacity);
  }
};

template <class P>
MK_HD Room roomFor(const P& p, const Mlx5Queue* queue, const Write& w) {
  if (queue == nullptr)
    return {OwnLayout::ringTaken,
            {OwnLayout::credits, OwnLayout::creditsSeen, OwnLayout::creditsLooking},
            p.ringSlots(),
            1};
  return {queue->word(Mlx5Queue::taken),
          {queue->retiredWord, queue->word(Mlx5Queue::seen), queue->word(Mlx5Queue::looking)},
          queue->entryCount,
          queue->blocksOf(w.bytes)};
}

// False: no room.  Everything this agent has stored or acquired before is visible to whoever reads the command.
template <class P>
MK_HD bool tryPost(P& p, const Write& w) {
  const Mlx5Queue* const queue = p.cardQueue(w.node);
  const Room room = roomFor(p, queue, w);
  // A failed taker gives back what it took; others may meanwhile see less room than there is, never more.
  const uint64_t taken = p.ownAdd(room.taken, room.needed);
  if (room.lacking(taken, p.ownLoad(room.freed.seen)) && room.lacking(taken, p.look(room.freed))) {
    p.ownAdd(room.taken, ~room.needed + 1);
    return false;
  }
  // Counts the commands of all queues.
  const uint64_t number = p.ownAdd(OwnLayout::ringTail, 1);
  if (queue != nullptr) {
    const uint64_t index = p.ownAdd(queue->word(Mlx5Queue::tail), room.needed);
    p.asOne([&](auto& one) { mlx5Write(one, *queue, index, w); });
    if (w.slot >= sched::kControlSlots) {
      p.ownAdd(OwnLayout::cardBytes, w.bytes);
      p.ownAdd(OwnLayout::cardMessages, 1);
    }
    return true;
  }
  const uint64_t slots = room.capacity;
  mkCommand_t c;
  c.header = mkCommandHeader(mkCommandLap(number, slots), MK_COMMAND_OP_WRITE, static_cast<uint32_t>(w.slot), w.node);
  c.source = mkPlace(MK_MEMORY_HEAP, w.sourceOffset);
  c.destination = mkPlace(MK_MEMORY_HEAP, w.destinationOffset);
  c.bytes = w.bytes;
  c.slot = w.slot;
  c.epoch = w.epoch;
  p.storeCommand(number % slots, c);
  return true;
}

// Waits for room.  False: unwind.
template <class P>
MK_HD bool post(P& p, const Write& w) {
  const Why why{Stage::queue, -1, static_cast<int32_t>(w.node), w.slot};
  const Mlx5Queue* const queue = p.cardQueue(w.node);
  if (queue != nullptr && w.bytes > queue->maxBytes) {
    p.asOne([&](auto& one) { one.fail(FailRecord::message, why, queue->maxBytes, w.bytes); });
    return false;
  }
  const Room room = roomFor(p, queue, w);
  while (!tryPost(p, w)) {
    // Producer: the proxy, which counts up the word as it reads slots of the ring, or as the card is done with entries.
    const uint64_t seen = p.look(room.freed);
    if (!room.lacking(p.ownLoad(room.taken), seen)) continue;
    if (!p.waitFar(room.freed, seen + 1, why)) return false;
  }
  return true;
}

}  // namespace mk::protocol
