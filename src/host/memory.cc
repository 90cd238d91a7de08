#include "host/memory.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

#include "host/error.h"
#include "host/socket.h"
#include "sched/common.h"
#include "sched/heap_layout.h"

namespace mk {

namespace {

struct Allocation {
  std::shared_ptr<SharedMemory> memory;
  uint64_t segment = 0;
  size_t bytes = 0;
  uint32_t windows = 0;
};

// Guarded by forkMutex, so that a forked child finds it whole.
struct Register {
  std::map<uint64_t, std::weak_ptr<void>> segments;
  uint64_t nextSegment = 1;
  std::map<char*, Allocation> allocations;
  pid_t owner = getpid();
  std::vector<std::map<char*, Allocation>> inherited;
};
// With forkMutex held.
Register& state() {
  static auto* r = new Register;  // outlives static destruction, when other threads may still run
  if (r->owner != getpid()) {
    // Nothing of the parent's is mapped in a forked child: its addresses may be given out again, and must not be unmapped.
    r->inherited.push_back(std::move(r->allocations));
    r->allocations.clear();
    r->segments.clear();
    r->owner = getpid();
  }
  return *r;
}

// The allocation that [ptr, ptr + 1) lies in, or the end.
std::map<char*, Allocation>::iterator find(Register& r, char* ptr) {
  auto it = r.allocations.upper_bound(ptr);
  if (it == r.allocations.begin()) return r.allocations.end();
  --it;
  return ptr < it->first + it->second.bytes ? it : r.allocations.end();
}

}  // namespace

uint64_t registerSegment(const std::shared_ptr<void>& memory) {
  const std::lock_guard lock(forkMutex());
  Register& r = state();
  std::erase_if(r.segments, [](const auto& entry) { return entry.second.expired(); });
  const uint64_t id = r.nextSegment++;
  r.segments.emplace(id, memory);
  return id;
}

std::shared_ptr<void> findSegment(uint64_t id) {
  const std::lock_guard lock(forkMutex());
  Register& r = state();
  const auto it = r.segments.find(id);
  return it == r.segments.end() ? nullptr : it->second.lock();
}

void* allocateShared(size_t bytes) {
  const uint64_t whole = sched::alignUp(bytes, sched::kHeapPage);
  std::shared_ptr<SharedMemory> memory = SharedMemory::create("mkernel-memory", whole);
  memory->back(0, whole);
  const uint64_t segment = registerSegment(memory);
  char* base = memory->base();
  const std::lock_guard lock(forkMutex());
  Register& r = state();
  r.allocations.emplace(base, Allocation{std::move(memory), segment, bytes, 0});
  return base;
}

bool releaseShared(void* ptr) {
  std::shared_ptr<SharedMemory> memory;  // unmapped after the lock
  const std::lock_guard lock(forkMutex());
  Register& r = state();
  const auto it = r.allocations.find(static_cast<char*>(ptr));
  if (it == r.allocations.end()) return false;
  if (it->second.windows != 0)
    fail(mkErrorInvalidUsage, "memory %p is covered by %u window(s): deregister them first", ptr, it->second.windows);
  memory = std::move(it->second.memory);
  r.allocations.erase(it);
  return true;
}

Pinned::Pinned(void* ptr, size_t bytes) {
  if (bytes == 0) fail(mkErrorInvalidArgument, "bytes is 0; legal: 1 or more");
  if (reinterpret_cast<uintptr_t>(ptr) % 16 != 0)
    fail(mkErrorInvalidArgument, "ptr %p is not a multiple of 16 bytes", ptr);
  const std::lock_guard lock(forkMutex());
  Register& r = state();
  const auto it = find(r, static_cast<char*>(ptr));
  if (it == r.allocations.end())
    fail(mkErrorNotRegistered,
         "memory at %p is not from mkMemAlloc: on the CPU platform other processes can only map memory from there",
         ptr);
  const uint64_t offset = static_cast<uint64_t>(static_cast<char*>(ptr) - it->first);
  if (bytes > it->second.bytes - offset)
    fail(mkErrorNotRegistered,
         "the window's %zu bytes at %p reach past the end of their allocation, which has %zu bytes from there", bytes,
         ptr, static_cast<size_t>(it->second.bytes - offset));
  ++it->second.windows;
  memory_ = it->second.memory;
  segment_ = it->second.segment;
  offset_ = offset;
}

Pinned::~Pinned() {
  const std::lock_guard lock(forkMutex());
  Register& r = state();
  const auto it = r.allocations.find(memory_->base());
  if (it != r.allocations.end()) --it->second.windows;
}

}  // namespace mk
