// The symmetric heap of a rank: a fixed map of addresses, the same on all ranks, that grows in place.
//
//   control | flags of bank 0 | flags of bank 1 | data of bank 0 | data of bank 1
//
// Each part has its own range of addresses, large enough for the largest workspace, of which the first part is backed by
// memory.  So a flag word never holds anything but flags, whatever shapes came before, and bases never move.
#pragma once

#include "sched/common.h"

namespace mk::sched {

constexpr uint64_t kHeapPage = 4096;
constexpr uint64_t kWorkspaceUnit = 1u << 20;

// Workspace W is split into two banks; of each bank 1/16 is flags.
struct HeapLayout {
  uint64_t controlBytes = 0;
  uint64_t maxWorkspace = 0;  // multiple of kWorkspaceUnit

  MK_HD static constexpr uint64_t bankFlagBytes(uint64_t workspace) { return workspace / 32; }
  MK_HD static constexpr uint64_t bankDataBytes(uint64_t workspace) { return workspace / 32 * 15; }
  // Smallest workspace with that much room in each bank.
  MK_HD static constexpr uint64_t workspaceFor(uint64_t flagBytes, uint64_t dataBytes) {
    return alignUp(larger(flagBytes * 32, ceilDiv(dataBytes, 15) * 32), kWorkspaceUnit);
  }

  MK_HD constexpr uint64_t flags(uint32_t bank) const { return controlBytes + bank * bankFlagBytes(maxWorkspace); }
  MK_HD constexpr uint64_t data(uint32_t bank) const { return flags(2) + bank * bankDataBytes(maxWorkspace); }
  MK_HD constexpr uint64_t totalBytes() const { return data(2); }

  // The parts in the order of their addresses, each with memory of its own behind it.
  static constexpr uint32_t kParts = 5;
  MK_HD constexpr uint64_t partOffset(uint32_t part) const {
    return part == 0 ? 0 : part < 3 ? flags(part - 1) : data(part - 3);
  }
  MK_HD constexpr uint32_t partOf(uint64_t offset) const {
    return offset >= data(0) ? (offset >= data(1) ? 4 : 3) : offset >= flags(1) ? 2 : offset >= flags(0) ? 1 : 0;
  }
};

// Slots by which an arriving network write is known; chunks follow the control slots.
constexpr uint32_t kSlotEntered0 = 0;  // + parity of the epoch
constexpr uint32_t kSlotDone = 2;
constexpr uint32_t kControlSlots = 3;
constexpr uint64_t kMaxSlots = 1u << 20;

// The control part, in 8-byte words.  `locals` and `nodes` are those of the communicator.
struct ControlLayout {
  uint32_t nodes = 1, locals = 1;

  // {epoch's low 32 bits, plan hash} that local rank `from` entered with, by parity.
  MK_HD constexpr uint64_t enteredLocal(uint32_t parity, uint32_t from) const { return word(parity * locals + from); }
  // Newest epoch for which local rank `from` has seen its whole rail enter.
  MK_HD constexpr uint64_t railEntered(uint32_t from) const { return word(2ull * locals + from); }
  MK_HD constexpr uint64_t doneLocal(uint32_t from) const { return word(3ull * locals + from); }
  MK_HD constexpr uint64_t consumedLocal(uint32_t from) const { return word(4ull * locals + from); }
  // The same of the rail: the word itself, and the flags that announce it.
  MK_HD constexpr uint64_t enteredRail(uint32_t parity, uint32_t from) const {
    return word(5ull * locals + parity * nodes + from);
  }
  MK_HD constexpr uint64_t arrival(uint32_t slot, uint32_t from) const {
    return word(5ull * locals + (2ull + slot) * nodes + from);
  }
  // Where this rank keeps the word it sends along its rail.
  MK_HD constexpr uint64_t enteredSource(uint32_t parity) const {
    return word(5ull * locals + (2ull + kControlSlots) * nodes + parity);
  }
  // When this rank last got on, by its platform's clock.  Peers look at it before they call it stalled.
  MK_HD constexpr uint64_t heartbeat() const { return enteredSource(2); }
  MK_HD constexpr uint64_t bytes() const { return alignUp(heartbeat() + 8, kHeapPage); }

 private:
  MK_HD static constexpr uint64_t word(uint64_t index) { return index * 8; }
};

// Offset in the heap of the flag that an arriving write raises.  Chunk flags lie at the start of their bank's flags, by slot
// and then by sending node; this is the one formula that proxies and agents share.
MK_HD constexpr uint64_t arrivalFlag(const HeapLayout& heap, const ControlLayout& control, uint64_t slot, uint32_t from,
                                     uint64_t epoch) {
  if (slot < kControlSlots) return control.arrival(static_cast<uint32_t>(slot), from);
  return heap.flags(static_cast<uint32_t>(epoch & 1)) + ((slot - kControlSlots) * control.nodes + from) * 8;
}

}  // namespace mk::sched
