#include "host/heap.h"

#include <cstring>

#include "host/error.h"
#include "host/fd_exchange.h"
#include "host/memory.h"
#include "sched/hash.h"

namespace mk {

namespace {

Heap::Part partOf(const sched::HeapLayout& layout, uint64_t workspace, uint32_t index) {
  const uint64_t offset = layout.partOffset(index);
  if (index == 0) return {offset, layout.controlBytes};
  return {offset,
          index < 3 ? sched::HeapLayout::bankFlagBytes(workspace) : sched::HeapLayout::bankDataBytes(workspace)};
}

// What a rank tells the others of its heap.
struct Announcement {
  uint64_t segment = 0;
};

// The control part's words before the first operation: as if the one before had ended everywhere.
std::vector<uint64_t> firstWords(const sched::ControlLayout& control, uint64_t epochStart) {
  std::vector<uint64_t> words(control.bytes() / sizeof(uint64_t));
  const auto set = [&](uint64_t offset, uint64_t value) { words[offset / sizeof(uint64_t)] = value; };
  for (uint32_t l = 0; l < control.locals; ++l) {
    set(control.doneLocal(l), epochStart);
    set(control.consumedLocal(l), epochStart);
    set(control.railEntered(l), epochStart);
    // Compared by the epoch's low half: a word of zeros would be that of epoch 2^32.
    for (const uint64_t e : {epochStart, epochStart - 1})
      set(control.enteredLocal(static_cast<uint32_t>(e & 1), l), sched::enteredWord(e, 0));
  }
  for (uint32_t n = 0; n < control.nodes; ++n) {
    for (uint32_t slot = 0; slot < sched::kControlSlots; ++slot) set(control.arrival(slot, n), epochStart);
  }
  return words;
}

// Runs a step that can fail on one rank alone, and throws on every rank if it has.
template <class Step>
void agreed(Bootstrap& bootstrap, const char* what, Step&& step) {
  mkResult_t result = mkSuccess;
  std::string text;
  try {
    step();
  } catch (const Error& e) {
    result = e.code();
    text = e.what();
  } catch (const std::bad_alloc&) {
    result = mkErrorSystem;
    text = "out of memory";
  }
  bootstrap.agree(result, text, what);
}

}  // namespace

Heap::Heap(Bootstrap& bootstrap, Platform& platform, int rank, const sched::Place& place, uint64_t maxWorkspace,
           uint64_t epochStart, const std::vector<uint64_t>& processes)
    : platform_(platform), rank_(rank), processes_(processes), local_(place.local) {
  control_.nodes = place.nodes;
  control_.locals = place.locals;
  layout_.controlBytes = sched::alignUp(control_.bytes(), platform.heapPage());
  layout_.maxWorkspace = sched::alignUp(maxWorkspace, platform.workspaceUnit());
  memories_.resize(place.locals);

  Announcement mine;
  agreed(bootstrap, "heap: memory", [&] {
    memories_[local_] = platform.createHeap(layout_.totalBytes());
    memories_[local_]->prepare(0, 0, layout_.controlBytes);
    mine.segment = registerSegment(memories_[local_]);
  });
  const std::vector<std::vector<uint8_t>> all =
      bootstrap.allgather(std::span(reinterpret_cast<const uint8_t*>(&mine), sizeof(mine)), "heap: segments");
  agreed(bootstrap, "heap: addresses", [&] {
    for (const PeerInfo& p : bootstrap.peers()) {
      if (p.node != static_cast<int>(place.node) || p.rank == rank) continue;
      std::shared_ptr<HeapMemory> owner;
      if (platform.sharesMappings() && processes[static_cast<size_t>(p.rank)] == processToken()) {
        Announcement theirs;
        if (all[static_cast<size_t>(p.rank)].size() != sizeof(theirs))
          fail(mkErrorInternal, "heap announcement of rank %d", p.rank);
        std::memcpy(&theirs, all[static_cast<size_t>(p.rank)].data(), sizeof(theirs));
        owner = std::static_pointer_cast<HeapMemory>(findSegment(theirs.segment));
        if (owner == nullptr) fail(mkErrorInternal, "the heap of rank %d, a thread of this process, is gone", p.rank);
      }
      memories_[static_cast<size_t>(p.localRank)] = platform.attachHeap(layout_.totalBytes(), owner);
    }
  });
  exchange(bootstrap, 0, 0);
  agreed(bootstrap, "heap: first words", [&] {
    const std::vector<uint64_t> words = firstWords(control_, epochStart);
    memories_[local_]->write(0, words.data(), words.size() * sizeof(uint64_t));
  });
}

// Passes on what has been prepared here, prepares the peers' parts, and commits: part 0 only, or from part 1.
void Heap::exchange(Bootstrap& bootstrap, uint32_t firstPart, uint64_t workspace) {
  const std::vector<int> mine = memories_[local_]->descriptors();
  std::vector<std::vector<UniqueFd>> theirs(memories_.size());
  if (!mine.empty())  // as on every other rank
    theirs = exchangeFds(bootstrap, rank_, processes_, mine, !platform_.sharesMappings(), "heap");
  agreed(bootstrap, "heap: mapping peers", [&] {
    for (uint32_t l = 0; l < memories_.size(); ++l) {
      if (l == local_) continue;
      memories_[l]->accept(std::move(theirs[l]));
      for (uint32_t i = firstPart; i < (firstPart == 0 ? 1 : kParts); ++i) {
        const Part p = partOf(layout_, workspace, i);
        memories_[l]->prepare(i, p.offset, p.bytes);
      }
    }
  });
  committing_ = true;
  agreed(bootstrap, "heap: mapping", [&] {
    for (const auto& memory : memories_) memory->commit();
  });
  committing_ = false;
}

void Heap::grow(Bootstrap& bootstrap, uint64_t workspace) {
  if (workspace <= workspace_) return;
  const uint64_t target = workspace <= layout_.maxWorkspace ? sched::alignUp(workspace, platform_.workspaceUnit()) : 0;
  try {
    agreed(bootstrap, "reserving the heap", [&] {
      if (target == 0)
        fail(
            mkErrorInvalidArgument,
            "a workspace of %llu bytes does not fit the address space kept for it, %llu bytes (MKERNEL_HEAP_MAX_BYTES)",
            static_cast<unsigned long long>(workspace), static_cast<unsigned long long>(layout_.maxWorkspace));
      for (uint32_t i = 1; i < kParts; ++i) {
        const Part p = partOf(layout_, target, i);
        memories_[local_]->prepare(i, p.offset, p.bytes);
      }
    });
    exchange(bootstrap, 1, target);
  } catch (...) {
    for (const auto& memory : memories_) memory->discard();
    throw;
  }
  workspace_ = target;
}

Heap::Part Heap::part(uint32_t index) const { return partOf(layout_, workspace_, index); }

}  // namespace mk
