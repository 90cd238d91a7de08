// mkMemAlloc's memory on the CPU platform, and the register of shared segments of this process, by which ranks that are threads
// of one process find each other's memory without mapping it a second time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "host/shared_memory.h"

namespace mk {

// A number for a segment, unique in this process for its lifetime; registers it weakly.
uint64_t registerSegment(const std::shared_ptr<void>& memory);
// The segment of that number in this process, or null.
std::shared_ptr<void> findSegment(uint64_t id);

void* allocateShared(size_t bytes);
// False: ptr is not the start of such an allocation.  Throws mkErrorInvalidUsage if a window covers it.
bool releaseShared(void* ptr);

// An allocation that a window covers; it cannot be released before this is destroyed.
class Pinned {
 public:
  // Throws mkErrorNotRegistered, saying why [ptr, ptr + bytes) cannot be a window.
  Pinned(void* ptr, size_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }
  uint64_t segment() const { return segment_; }
  uint64_t offset() const { return offset_; }  // of ptr in it

 private:
  std::shared_ptr<SharedMemory> memory_;
  uint64_t segment_ = 0, offset_ = 0;
};

}  // namespace mk
