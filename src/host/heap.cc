#include "host/heap.h"

#include <atomic>
#include <cstring>

#include "host/error.h"
#include "host/fd_exchange.h"
#include "host/memory.h"
#include "sched/hash.h"

namespace mk {

namespace {

Heap::Part partOf(const sched::HeapLayout& layout, uint64_t workspace, uint32_t index) {
  switch (index) {
    case 0:
      return {0, layout.controlBytes};
    case 1:
    case 2:
      return {layout.flags(index - 1), sched::HeapLayout::bankFlagBytes(workspace)};
    default:
      return {layout.data(index - 3), sched::HeapLayout::bankDataBytes(workspace)};
  }
}

// What a rank tells the others of its heap.
struct Announcement {
  uint64_t segment = 0;
};

}  // namespace

Heap::Heap(Bootstrap& bootstrap, int rank, const sched::Place& place, uint64_t maxWorkspace, uint64_t epochStart,
           const std::vector<uint64_t>& processes, int timeoutMs)
    : local_(place.local) {
  control_.nodes = place.nodes;
  control_.locals = place.locals;
  layout_.controlBytes = control_.bytes();
  layout_.maxWorkspace = sched::alignUp(maxWorkspace, sched::kWorkspaceUnit);
  memories_.resize(place.locals);

  Announcement mine;
  mkResult_t result = mkSuccess;
  std::string text;
  try {
    memories_[local_] = SharedMemory::create("mkernel-heap", layout_.totalBytes());
    memories_[local_]->back(0, layout_.controlBytes);
    mine.segment = registerSegment(memories_[local_]);
    // As if the operation before the first had ended everywhere.
    const auto set = [&](uint64_t offset, uint64_t value) {
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memories_[local_]->base() + offset)).store(value);
    };
    for (uint32_t l = 0; l < place.locals; ++l) {
      set(control_.doneLocal(l), epochStart);
      set(control_.consumedLocal(l), epochStart);
      set(control_.railEntered(l), epochStart);
      // Compared by the epoch's low half: a word of zeros would be that of epoch 2^32.
      for (const uint64_t e : {epochStart, epochStart - 1})
        set(control_.enteredLocal(static_cast<uint32_t>(e & 1), l), sched::enteredWord(e, 0));
    }
    for (uint32_t n = 0; n < place.nodes; ++n) {
      for (uint32_t slot = 0; slot < sched::kControlSlots; ++slot) set(control_.arrival(slot, n), epochStart);
    }
  } catch (const Error& e) {
    result = e.code();
    text = e.what();
  }
  bootstrap.agree(result, text, "heap: memory");

  const std::vector<std::vector<uint8_t>> all =
      bootstrap.allgather(std::span(reinterpret_cast<const uint8_t*>(&mine), sizeof(mine)), "heap: segments");
  std::vector<UniqueFd> fds = exchangeFds(bootstrap, rank, processes, memories_[local_]->fd(), timeoutMs, "heap");
  try {
    for (const PeerInfo& p : bootstrap.peers()) {
      if (p.node != static_cast<int>(place.node) || p.rank == rank) continue;
      std::shared_ptr<SharedMemory>& memory = memories_[static_cast<size_t>(p.localRank)];
      if (UniqueFd& fd = fds[static_cast<size_t>(p.localRank)]; fd) {
        memory = SharedMemory::attach(std::move(fd), layout_.totalBytes(), "mkernel-heap of a peer");
        memory->open(0, layout_.controlBytes);
      } else {
        Announcement theirs;
        if (all[static_cast<size_t>(p.rank)].size() != sizeof(theirs))
          fail(mkErrorInternal, "heap announcement of rank %d", p.rank);
        std::memcpy(&theirs, all[static_cast<size_t>(p.rank)].data(), sizeof(theirs));
        memory = findSegment(theirs.segment);
        if (memory == nullptr) fail(mkErrorInternal, "the heap of rank %d, a thread of this process, is gone", p.rank);
      }
    }
  } catch (const Error& e) {
    result = e.code();
    text = e.what();
  }
  bootstrap.agree(result, text, "heap: mapping peers");
}

void Heap::back(uint64_t workspace) {
  if (workspace > layout_.maxWorkspace)
    fail(mkErrorInvalidArgument,
         "a workspace of %llu bytes does not fit the address space kept for it, %llu bytes (MKERNEL_HEAP_MAX_BYTES)",
         static_cast<unsigned long long>(workspace), static_cast<unsigned long long>(layout_.maxWorkspace));
  const uint64_t target = sched::alignUp(workspace, sched::kWorkspaceUnit);
  if (target <= workspace_) return;
  for (uint32_t i = 1; i < kParts; ++i) {
    const Part before = partOf(layout_, workspace_, i);
    const Part after = partOf(layout_, target, i);
    memories_[local_]->back(before.offset + before.bytes, after.bytes - before.bytes);
  }
  workspace_ = target;
}

void Heap::openPeers(uint64_t workspace) {
  const uint64_t target = sched::alignUp(workspace, sched::kWorkspaceUnit);
  for (uint32_t l = 0; l < memories_.size(); ++l) {
    // A peer in this process has opened the shared mapping itself.
    if (l == local_ || memories_[l]->created()) continue;
    for (uint32_t i = 1; i < kParts; ++i) {
      const Part p = partOf(layout_, target, i);
      memories_[l]->open(p.offset, p.bytes);
    }
  }
}

Heap::Part Heap::part(uint32_t index) const { return partOf(layout_, workspace_, index); }

}  // namespace mk
