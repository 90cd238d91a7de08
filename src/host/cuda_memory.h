// Device memory that other ranks can map: physical allocations (cuMemCreate) exported by descriptor, and ranges of addresses
// they are mapped at.
#pragma once

#include <memory>
#include <vector>

#include "host/cuda_api.h"
#include "host/platform.h"

namespace mk::cuda {

constexpr uint64_t kPage = 2u << 20;  // granularity of physical memory

// One physical allocation.
class Physical {
 public:
  // New memory of `device`, a multiple of kPage, that can be exported.
  Physical(int device, uint64_t bytes);
  // A peer's.
  Physical(UniqueFd descriptor, uint64_t bytes);
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  CUmemGenericAllocationHandle handle() const { return handle_; }
  uint64_t bytes() const { return bytes_; }
  UniqueFd exported() const;

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  uint64_t bytes_ = 0;
};

// A range of addresses, parts of which are mapped for `device`.
class Addresses {
 public:
  Addresses(int device, uint64_t bytes);
  ~Addresses();
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  char* base() const { return reinterpret_cast<char*>(base_); }
  void map(uint64_t offset, const Physical& memory);
  void unmap(uint64_t offset, uint64_t bytes);

 private:
  const int device_;
  const uint64_t bytes_;
  CUdeviceptr base_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> mapped_;  // offset, bytes
};

// stream: for the first contents of new memory.
std::shared_ptr<HeapMemory> makeHeap(int device, uint64_t bytes, bool own, cudaStream_t stream);

// mkMemAlloc's memory.  While a window covers it, it cannot be released.
bool pinAllocation(const void* ptr);
void unpinAllocation(const void* ptr);

WindowExport exportWindow(int device, void* ptr, size_t bytes);
WindowMapping importWindow(int device, const std::vector<uint8_t>& claim, std::vector<UniqueFd> fds, bool sameProcess);

}  // namespace mk::cuda
