#include "host/cuda_memory.h"

#include <map>
#include <mutex>
#include <utility>

#include "host/cuda.h"
#include "host/socket.h"
#include "kernels/launch.h"
#include "sched/common.h"

namespace mk::cuda {

namespace {

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int rdma = 0;
  driver().deviceAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
  p.allocFlags.gpuDirectRDMACapable = rdma != 0 ? 1 : 0;
  return p;
}

}  // namespace

int buildVersion() { return CUDART_VERSION; }
const char* buildArchs() { return "90a"; }

std::string unusable() {
  int count = 0, device = 0;
  cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaSuccess && count == 0) e = cudaErrorNoDevice;
  if (e == cudaSuccess) e = cudaGetDevice(&device);
  if (e == cudaSuccess) return kernels::unsupported(device);
  static_cast<void>(cudaGetLastError());
  return format("%s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
}

// ---- Physical memory and addresses -----------------------------------------------------------------------------------

Physical::Physical(int device, uint64_t bytes) : bytes_(bytes) {
  const CUmemAllocationProp p = properties(device);
  const CUresult e = driver().memCreate(&handle_, bytes, &p, 0);
  if (e != CUDA_SUCCESS)
    fail(e == CUDA_ERROR_OUT_OF_MEMORY ? mkErrorSystem : mkErrorUnhandledCuda,
         "no %llu bytes of memory on device %d: %s", static_cast<unsigned long long>(bytes), device,
         describe(e).c_str());
}

Physical::Physical(UniqueFd descriptor, uint64_t bytes) : bytes_(bytes) {
  void* const os = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get()));
  check(driver().importHandle(&handle_, os, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "importing a peer's memory");
}

Physical::~Physical() { driver().memRelease(handle_); }

UniqueFd Physical::exported() const {
  int fd = -1;
  check(driver().exportHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "exporting memory");
  return UniqueFd(fd);
}

Addresses::Addresses(int device, uint64_t bytes) : device_(device), bytes_(bytes) {
  const CUresult e = driver().addressReserve(&base_, bytes, kPage, 0, 0);
  if (e != CUDA_SUCCESS)
    fail(mkErrorSystem, "cannot reserve %llu bytes of device addresses (lower MKERNEL_HEAP_MAX_BYTES?): %s",
         static_cast<unsigned long long>(bytes), describe(e).c_str());
}

Addresses::~Addresses() {
  for (const auto& [offset, bytes] : mapped_) driver().memUnmap(base_ + offset, bytes);
  driver().addressFree(base_, bytes_);
}

void Addresses::map(uint64_t offset, const Physical& memory) {
  check(driver().memMap(base_ + offset, memory.bytes(), 0, memory.handle(), 0), "mapping memory");
  mapped_.emplace_back(offset, memory.bytes());
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult e = driver().setAccess(base_ + offset, memory.bytes(), &access, 1);
  if (e != CUDA_SUCCESS)
    fail(mkErrorNotSupported,
         "device %d cannot reach the memory of a rank of its node (no NVLink or PCIe peer access between them?): %s",
         device_, describe(e).c_str());
}

void Addresses::unmap(uint64_t offset, uint64_t bytes) {
  check(driver().memUnmap(base_ + offset, bytes), "unmapping memory");
  std::erase(mapped_, std::pair(offset, bytes));
}

// ---- The heap ----------------------------------------------------------------------------------------------------------

namespace {

// A part that grows gets new memory at the same address.  That is legal while no operation is in flight: data is not kept
// between operations, and a flag word of zeros is one that has never been raised.
class CudaHeap final : public HeapMemory {
 public:
  CudaHeap(int device, uint64_t bytes, bool own, cudaStream_t stream)
      : device_(device), own_(own), stream_(stream), addresses_(device, bytes) {}
  ~CudaHeap() override = default;

  char* base() const override { return addresses_.base(); }

  void prepare(uint32_t part, uint64_t offset, uint64_t bytes) override {
    if (bytes == 0) return;
    Part next;
    next.offset = offset;
    if (own_) {
      next.memory = std::make_unique<Physical>(device_, bytes);
      next.fd = next.memory->exported();
    } else {
      if (accepted_.empty()) fail(mkErrorInternal, "a peer has passed too few descriptors of its heap");
      next.memory = std::make_unique<Physical>(std::move(accepted_.front()), bytes);
      accepted_.erase(accepted_.begin());
    }
    next_[part] = std::move(next);
  }
  std::vector<int> descriptors() const override {
    std::vector<int> fds;
    for (const auto& [part, p] : next_) fds.push_back(p.fd.get());
    return fds;
  }
  void accept(std::vector<UniqueFd> descriptors) override { accepted_ = std::move(descriptors); }
  void discard() override {
    next_.clear();
    accepted_.clear();
  }
  void commit() override {
    accepted_.clear();
    for (auto& [part, p] : next_) {
      Part& now = parts_[part];
      if (now.memory != nullptr) addresses_.unmap(now.offset, now.memory->bytes());
      now = std::move(p);
      addresses_.map(now.offset, *now.memory);
      if (own_) check(cudaMemsetAsync(base() + now.offset, 0, now.memory->bytes(), stream_), "clearing new memory");
    }
    next_.clear();
    if (own_) check(cudaStreamSynchronize(stream_), "clearing new memory");
  }
  void write(uint64_t offset, const void* from, uint64_t bytes) override {
    check(cudaMemcpyAsync(base() + offset, from, bytes, cudaMemcpyHostToDevice, stream_), "writing to the heap");
    check(cudaStreamSynchronize(stream_), "writing to the heap");
  }
  int descriptor(uint32_t part, uint64_t* offset) const override {
    *offset = 0;
    const auto found = parts_.find(part);
    return found == parts_.end() ? -1 : found->second.fd.get();
  }

 private:
  struct Part {
    uint64_t offset = 0;
    std::unique_ptr<Physical> memory;
    UniqueFd fd;
  };
  const int device_;
  const bool own_;
  cudaStream_t const stream_;
  std::map<uint32_t, Part> parts_, next_;  // by number
  std::vector<UniqueFd> accepted_;
  Addresses addresses_;  // unmapped before the memory goes
};

// ---- mkMemAlloc ----------------------------------------------------------------------------------------------------------

struct Allocation {
  std::unique_ptr<Physical> memory;
  std::unique_ptr<Addresses> addresses;
  uint64_t bytes = 0;
  uint32_t windows = 0;
};

// Guarded by forkMutex, so that a forked child finds it whole.
std::map<const char*, Allocation>& allocations() {
  static auto* all = new std::map<const char*, Allocation>;  // outlives static destruction
  return *all;
}
std::map<const char*, Allocation>::iterator allocationAt(const void* ptr) {
  const auto* const at = static_cast<const char*>(ptr);
  auto it = allocations().upper_bound(at);
  if (it == allocations().begin()) return allocations().end();
  --it;
  return at < it->first + it->second.bytes ? it : allocations().end();
}

}  // namespace

std::shared_ptr<HeapMemory> makeHeap(int device, uint64_t bytes, bool own, cudaStream_t stream) {
  return std::make_shared<CudaHeap>(device, bytes, own, stream);
}

void* allocate(size_t bytes) {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaFree(nullptr), "initialising the device");
  Allocation a;
  const uint64_t whole = sched::alignUp(bytes, kPage);
  a.memory = std::make_unique<Physical>(device, whole);
  a.addresses = std::make_unique<Addresses>(device, whole);
  a.addresses->map(0, *a.memory);
  a.bytes = whole;
  char* const base = a.addresses->base();
  const std::lock_guard lock(forkMutex());
  allocations().emplace(base, std::move(a));
  return base;
}

bool release(void* ptr) {
  Allocation gone;  // unmapped after the lock
  const std::lock_guard lock(forkMutex());
  const auto it = allocations().find(static_cast<const char*>(ptr));
  if (it == allocations().end()) return false;
  if (it->second.windows != 0)
    fail(mkErrorInvalidUsage, "memory %p is covered by %u window(s): deregister them first", ptr, it->second.windows);
  gone = std::move(it->second);
  allocations().erase(it);
  return true;
}

bool pinAllocation(const void* ptr) {
  const std::lock_guard lock(forkMutex());
  const auto it = allocationAt(ptr);
  if (it == allocations().end()) return false;
  ++it->second.windows;
  return true;
}

void unpinAllocation(const void* ptr) {
  const std::lock_guard lock(forkMutex());
  const auto it = allocationAt(ptr);
  if (it != allocations().end()) --it->second.windows;
}

}  // namespace mk::cuda
