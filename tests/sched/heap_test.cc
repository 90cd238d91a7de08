// Properties of the heap's layout and of its control words.
#include <map>

#include "mkernel/queue.h"
#include "must.h"

namespace mk::sched::test {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

TEST_CASE("parts of the heap follow each other without overlap, on pages") {
  for (uint64_t control : {uint64_t{0}, kHeapPage, 5 * kHeapPage}) {
    for (uint64_t most : {kWorkspaceUnit, 3 * kWorkspaceUnit, 97 * kWorkspaceUnit, 4 * kGiB, 512 * kGiB}) {
      const HeapLayout heap{control, most};
      CHECK(heap.flags(0) == control);
      CHECK(heap.flags(1) == heap.flags(0) + HeapLayout::bankFlagBytes(most));
      CHECK(heap.data(0) == heap.flags(1) + HeapLayout::bankFlagBytes(most));
      CHECK(heap.data(1) == heap.data(0) + HeapLayout::bankDataBytes(most));
      CHECK(heap.totalBytes() == heap.data(1) + HeapLayout::bankDataBytes(most));
      CHECK(heap.totalBytes() == control + most);  // the workspace is used to the last byte
      for (uint32_t bank : {0u, 1u}) {
        CHECK(heap.flags(bank) % kHeapPage == 0);
        CHECK(heap.data(bank) % kHeapPage == 0);
      }
    }
  }
}

TEST_CASE("growth moves nothing: every workspace backs a prefix of each part, in whole pages") {
  const HeapLayout heap{kHeapPage, 256 * kWorkspaceUnit};
  uint64_t flags = 0, data = 0;
  for (uint64_t workspace = kWorkspaceUnit; workspace <= heap.maxWorkspace; workspace += kWorkspaceUnit) {
    CHECK(HeapLayout::bankFlagBytes(workspace) % kHeapPage == 0);
    CHECK(HeapLayout::bankDataBytes(workspace) % kHeapPage == 0);
    CHECK(HeapLayout::bankFlagBytes(workspace) > flags);
    CHECK(HeapLayout::bankDataBytes(workspace) > data);
    flags = HeapLayout::bankFlagBytes(workspace);
    data = HeapLayout::bankDataBytes(workspace);
    CHECK(2 * (flags + data) == workspace);
    // The backed prefix of each part ends before the next part begins.  Its base is no function of the workspace.
    CHECK(heap.flags(0) + flags <= heap.flags(1));
    CHECK(heap.flags(1) + flags <= heap.data(0));
    CHECK(heap.data(0) + data <= heap.data(1));
    CHECK(heap.data(1) + data <= heap.totalBytes());
  }
}

TEST_CASE("workspaceFor is the smallest workspace with that much room in each bank") {
  const uint64_t sizes[] = {0,
                            1,
                            8,
                            15,
                            16,
                            32767,
                            32768,
                            32769,
                            491519,
                            491520,
                            491521,
                            1 << 20,
                            (1 << 20) + 1,
                            7 * kGiB,
                            7 * kGiB + 1,
                            100 * kGiB + 12345};
  for (const uint64_t flags : sizes) {
    for (const uint64_t data : sizes) {
      const uint64_t w = HeapLayout::workspaceFor(flags, data);
      CHECK(w % kWorkspaceUnit == 0);
      CHECK(HeapLayout::bankFlagBytes(w) >= flags);
      CHECK(HeapLayout::bankDataBytes(w) >= data);
      if (w == 0) continue;
      const uint64_t less = w - kWorkspaceUnit;
      CHECK((HeapLayout::bankFlagBytes(less) < flags || HeapLayout::bankDataBytes(less) < data));
    }
  }
}

TEST_CASE("control words are distinct, 8 bytes apart, and fill the control part") {
  for (uint32_t nodes = 1; nodes <= 17; ++nodes) {
    for (uint32_t locals = 1; locals <= 9; ++locals) {
      const ControlLayout c{nodes, locals};
      std::map<uint64_t, const char*> taken;
      const auto take = [&](uint64_t offset, const char* what) {
        MUST(offset % 8 == 0 && offset + 8 <= c.bytes(), nodes << " x " << locals << ": " << what << " at " << offset);
        MUST(taken.emplace(offset, what).second,
             nodes << " x " << locals << ": " << what << " and " << taken[offset] << " at " << offset);
      };
      for (uint32_t from = 0; from < locals; ++from) {
        take(c.enteredLocal(0, from), "entered, even");
        take(c.enteredLocal(1, from), "entered, odd");
        take(c.railEntered(from), "rail entered");
        take(c.doneLocal(from), "done");
        take(c.consumedLocal(from), "consumed");
      }
      for (uint32_t from = 0; from < nodes; ++from) {
        take(c.enteredRail(0, from), "entered along the rail, even");
        take(c.enteredRail(1, from), "entered along the rail, odd");
        for (uint32_t slot = 0; slot < kControlSlots; ++slot) take(c.arrival(slot, from), "arrival");
      }
      take(c.enteredSource(0), "source of entered, even");
      take(c.enteredSource(1), "source of entered, odd");
      take(c.heartbeat(), "heartbeat");
      CHECK(c.bytes() % kHeapPage == 0);
      CHECK(c.bytes() < taken.size() * 8 + kHeapPage);
    }
  }
}

TEST_CASE("arrival flags of control slots lie in the control part, those of chunks in the bank, none twice") {
  const ControlLayout control{5, 3};
  const HeapLayout heap{control.bytes(), 4 * kWorkspaceUnit};
  CHECK(kSlotEntered0 + 1 < kSlotDone);
  CHECK(kSlotDone < kControlSlots);
  for (uint64_t epoch : {6ull, 7ull}) {
    std::map<uint64_t, uint64_t> taken;
    for (uint64_t slot = 0; slot < 700; ++slot) {
      for (uint32_t from = 0; from < control.nodes; ++from) {
        const uint64_t flag = arrivalFlag(heap, control, slot, from, epoch);
        CHECK(taken.emplace(flag, slot).second);
        if (slot < kControlSlots) {
          CHECK(flag == control.arrival(static_cast<uint32_t>(slot), from));
          CHECK(flag < control.bytes());
        } else {
          CHECK(flag >= heap.flags(static_cast<uint32_t>(epoch & 1)));
          CHECK(flag < heap.flags(static_cast<uint32_t>(epoch & 1)) + HeapLayout::bankFlagBytes(kWorkspaceUnit));
        }
      }
    }
  }
}

TEST_CASE("a slot fits the notification") { CHECK(kMaxSlots == uint64_t{1} << MK_SLOT_BITS); }

}  // namespace
}  // namespace mk::sched::test
