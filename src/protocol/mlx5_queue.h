// The producer's side of a network card's own send queue, for cards of the mlx5 family: an agent writes work-queue entries,
// doorbell record and doorbell itself, and no host thread stands between it and the card (mkQueueDescriptor_t of
// include/mkernel/queue.h).  Called by tryPost of command_ring.h.
//
// Nobody waits for another agent here either.  An agent takes room, which can fail, then places, which cannot; fills in its
// entries; marks them written; and asks for the doorbell.  Whoever asks first is in charge until nobody asks any more: it goes
// over the marks in order, as far as they reach without a gap, and tells the card.  An agent that finds somebody in charge
// leaves; its entries are told by the one in charge, or, behind a gap, by whoever closes the gap.
#pragma once

#include "mkernel/queue.h"
#include "protocol/types.h"
#include "sched/heap_layout.h"

namespace mk::protocol {

// The queue to one peer, as agents know it.  Plain data: made by the host, copied to wherever the agents are.
struct Mlx5Queue {
  // Its words in the rank's private memory, from firstWord; the marks follow, one for each basic block.
  enum Word : uint64_t {
    taken,        // blocks agents have taken room for
    tail,         // blocks handed out
    requests,     // agents that ask for the doorbell; not 0: somebody is in charge
    posted,       // blocks the card has been told of; of whoever is in charge
    seen,         // how far the card had come when an agent last looked
    looking,      // not 0: an agent is looking (GPU)
    retired = 8,  // blocks the card is done with; written by the proxy (CPU; elsewhere see retiredWord)
    firstMark = 16
  };
  static constexpr uint32_t kBlockBytes = 64;
  static constexpr uint32_t kMaxEntries = 4096;
  MK_HD static constexpr uint64_t countWords(uint64_t entries) { return firstMark + entries; }

  // Of one part of a heap; base + offset in the heap is the address.
  struct Memory {
    uint64_t base = 0;
    uint32_t key = 0;
  };

  uint64_t* entries = nullptr;  // null: no queue
  uint32_t* record = nullptr;
  uint64_t* doorbell = nullptr;
  uint32_t entryCount = 0;
  uint32_t number = 0;
  bool immediates = false;
  uint64_t maxBytes = 0;
  uint64_t firstIndex = 0;  // of the first entry that is the agents'
  uint64_t firstWord = 0, retiredWord = 0;
  Memory local[sched::HeapLayout::kParts], remote[sched::HeapLayout::kParts];

  MK_HD constexpr uint64_t slot(uint64_t index) const { return index & (entryCount - 1); }
  MK_HD uint64_t* entry(uint64_t index) const { return entries + slot(index) * (kBlockBytes / 8); }
  MK_HD constexpr uint64_t word(Word w) const { return firstWord + w; }
  MK_HD constexpr uint64_t mark(uint64_t index) const { return firstWord + firstMark + slot(index); }
  // Blocks of a write: its payload and, unless an immediate announces it, the flag.
  MK_HD constexpr uint32_t blocksOf(uint64_t bytes) const { return immediates || bytes == 0 ? 1 : 2; }
};

// ---- Layout of an entry ------------------------------------------------------------------------------------------
//
// Segments of 16 bytes, fields from the most significant byte on: control, remote address, then data (a pointer) or inline
// data.  Held in words as this machine stores them, lowest byte first; both platforms are little-endian.

MK_HD constexpr uint32_t bigEndian(uint32_t v) { return v >> 24 | (v >> 8 & 0xff00u) | (v << 8 & 0xff0000u) | v << 24; }
MK_HD constexpr uint64_t bigEndian(uint64_t v) {
  return uint64_t{bigEndian(static_cast<uint32_t>(v))} << 32 | bigEndian(static_cast<uint32_t>(v >> 32));
}

struct Mlx5Entry {
  enum Opcode : uint32_t { write = 0x08, writeImmediate = 0x09 };
  static constexpr uint32_t kUpdateCompletions = 2u << 2;  // ask for a completion
  static constexpr uint32_t kInline = 0x80000000u;
  static constexpr uint32_t kWords = 6;  // of the block's eight; the last two belong to no segment

  uint64_t words[kWords] = {};

  // Its first word; of the last entry posted it is also what the doorbell is rung with.
  MK_HD static constexpr uint64_t controlWord(uint64_t index, uint32_t opcode, uint32_t number, uint32_t segments) {
    const auto low = static_cast<uint32_t>((index & 0xffff) << 8 | opcode);
    return uint64_t{bigEndian(number << 8 | segments)} << 32 | bigEndian(low);
  }
  MK_HD constexpr void control(uint64_t index, uint32_t opcode, uint32_t number, uint32_t segments, uint32_t flags,
                               uint32_t immediate) {
    words[0] = controlWord(index, opcode, number, segments);
    words[1] = uint64_t{bigEndian(immediate)} << 32 | uint64_t{flags} << 24;
  }
  MK_HD constexpr void remote(uint64_t address, uint32_t key) {
    words[2] = bigEndian(address);
    words[3] = bigEndian(key);
  }
  MK_HD constexpr void data(uint64_t address, uint32_t key, uint32_t bytes) {
    words[4] = uint64_t{bigEndian(key)} << 32 | bigEndian(bytes);
    words[5] = bigEndian(address);
  }
  // Eight bytes that arrive as they lie in this machine's memory.
  MK_HD constexpr void inlineWord(uint64_t value) {
    words[4] = value << 32 | bigEndian(kInline | 8u);
    words[5] = value >> 32;
  }
};

// ---- Posting -----------------------------------------------------------------------------------------------------

// What a mark says: the block behind the write, and what the doorbell needs to know of its last entry.
struct Mlx5Mark {
  uint64_t end = 0;
  uint32_t opcode = 0, segments = 0;
  MK_HD static constexpr Mlx5Mark of(uint64_t word) {
    return {word >> 16, static_cast<uint32_t>(word >> 8 & 0xff), static_cast<uint32_t>(word & 0xff)};
  }
  MK_HD constexpr uint64_t word() const { return end << 16 | opcode << 8 | segments; }
};

// Tells the card of all entries written without a gap.  Order: entries, record, doorbell; storeRecord and storeDoorbell each
// come after everything before them for whoever looks from the card's side.
template <class P>
MK_HD void mlx5Ring(P& p, const Mlx5Queue& q) {
  if (p.ownAdd(q.word(Mlx5Queue::requests), 1) != 0) return;  // whoever is in charge looks again before it leaves
  uint64_t answered = 1;
  while (answered != 0) {
    const uint64_t posted = p.ownLoad(q.word(Mlx5Queue::posted));
    uint64_t next = posted;
    Mlx5Mark last;
    // A mark of an earlier lap ends at or before the block it is at.
    for (Mlx5Mark m = Mlx5Mark::of(p.ownLoad(q.mark(next))); m.end > next; m = Mlx5Mark::of(p.ownLoad(q.mark(next)))) {
      last = m;
      next = m.end;
    }
    if (next != posted) {
      p.storeRecord(q.record, bigEndian(static_cast<uint32_t>(next & 0xffff)));
      p.storeDoorbell(q.doorbell, Mlx5Entry::controlWord(next - 1, last.opcode, q.number, last.segments));
      p.write(own(q.word(Mlx5Queue::posted)), next);
    }
    // Those who asked up to here had written their entries before.
    answered = p.ownAdd(q.word(Mlx5Queue::requests), ~answered + 1) - answered;
  }
}

// Writes a command's entries at the places from `index` on, and has the card told.
template <class P>
MK_HD void mlx5Write(P& p, const Mlx5Queue& q, uint64_t index, const Write& w) {
  const sched::HeapLayout& layout = p.heapLayout();
  Mlx5Mark mark{index + q.blocksOf(w.bytes), Mlx5Entry::write, 3};
  if (q.immediates) {
    mark.opcode = Mlx5Entry::writeImmediate;
    if (w.bytes == 0) mark.segments = 2;
  }
  if (w.bytes != 0) {
    const Mlx5Queue::Memory& from = q.local[layout.partOf(w.sourceOffset)];
    const Mlx5Queue::Memory& to = q.remote[layout.partOf(w.destinationOffset)];
    Mlx5Entry e;
    e.control(index, mark.opcode, q.number, 3, q.immediates ? Mlx5Entry::kUpdateCompletions : 0,
              q.immediates ? mkImmediate(p.place().node, w.slot, w.epoch) : 0);
    e.remote(to.base + w.destinationOffset, to.key);
    e.data(from.base + w.sourceOffset, from.key, static_cast<uint32_t>(w.bytes));
    p.storeEntry(q.entry(index), e.words, Mlx5Entry::kWords);
  } else if (q.immediates) {
    Mlx5Entry e;
    e.control(index, mark.opcode, q.number, 2, Mlx5Entry::kUpdateCompletions,
              mkImmediate(p.place().node, w.slot, w.epoch));
    p.storeEntry(q.entry(index), e.words, 4);
  }
  if (!q.immediates) {
    // A reliable connection delivers in order, so the flag comes after the payload; and its completion says that both have.
    const uint64_t flag = sched::arrivalFlag(layout, p.controlLayout(), w.slot, p.place().node, w.epoch);
    const Mlx5Queue::Memory& to = q.remote[layout.partOf(flag)];
    Mlx5Entry e;
    e.control(mark.end - 1, Mlx5Entry::write, q.number, 3, Mlx5Entry::kUpdateCompletions, 0);
    e.remote(to.base + flag, to.key);
    e.inlineWord(w.epoch);
    p.storeEntry(q.entry(mark.end - 1), e.words, Mlx5Entry::kWords);
  }
  p.publish(own(q.mark(index)), mark.word(), Scope::device);
  mlx5Ring(p, q);
}

}  // namespace mk::protocol
