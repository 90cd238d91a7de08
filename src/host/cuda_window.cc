// Windows over the caller's device memory: which memory other ranks can map, and how.
#include <cstring>
#include <utility>

#include "host/cuda_memory.h"
#include "host/fd_exchange.h"

namespace mk::cuda {

namespace {

// What a rank tells of its window; sizes of the physical allocations, 8 bytes each, follow.
struct Claim {
  enum Kind : uint32_t { physical, runtime };
  uint32_t kind = physical;
  uint32_t pieces = 0;
  uint64_t address = 0;  // in the owner's process
  uint64_t offset = 0;   // of it in the first piece, or in the allocation
  int32_t device = 0, reserved = 0;
  cudaIpcMemHandle_t handle = {};
};

// What keeps the owner's side of a window.
struct Hold {
  std::vector<UniqueFd> fds;
  const void* pinned = nullptr;  // memory of mkMemAlloc
  ~Hold() {
    if (pinned != nullptr) unpinAllocation(pinned);
  }
};

// A peer's memory that the runtime has opened.
struct Opened {
  int device;
  void* base;
  ~Opened() {
    try {
      const OnDevice on(device);
      static_cast<void>(cudaIpcCloseMemHandle(base));
    } catch (const Error&) {
      // The device is gone, and the mapping with it.
    }
  }
};

// A peer's physical allocations, mapped one after the other.
struct Mapped {
  std::vector<std::unique_ptr<Physical>> pieces;
  std::unique_ptr<Addresses> addresses;
};

// Throws mkErrorNotRegistered unless it is ordinary memory of this device.
void requireDeviceMemory(int device, const void* ptr) {
  CUmemorytype type = {};
  unsigned managed = 0;
  int owner = -1;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&type, &managed, &owner, &pool};
  const CUresult e =
      driver().pointerAttributes(4, names, values, static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(ptr)));
  if (e != CUDA_SUCCESS || type == CUmemorytype{})
    fail(mkErrorNotRegistered, "memory at %p is not known to CUDA; legal: device memory, of mkMemAlloc or cudaMalloc",
         ptr);
  if (managed != 0)
    fail(mkErrorNotRegistered, "memory at %p is managed memory, which peers cannot map; legal: device memory", ptr);
  if (type != CU_MEMORYTYPE_DEVICE)
    fail(mkErrorNotRegistered, "memory at %p is host memory; legal: device memory, of mkMemAlloc or cudaMalloc", ptr);
  if (owner != device)
    fail(mkErrorNotRegistered, "memory at %p is of device %d; legal: memory of the communicator's device, %d", ptr,
         owner, device);
  if (pool != nullptr)
    fail(mkErrorNotRegistered,
         "memory at %p comes from a stream-ordered pool (cudaMallocAsync), which peers cannot map; legal: memory of "
         "mkMemAlloc or cudaMalloc (with PyTorch: not PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync)",
         ptr);
}

void rangeOf(CUdeviceptr at, CUdeviceptr* base, size_t* bytes) {
  check(driver().addressRange(base, bytes, at), "asking for the extent of an allocation");
}

void requireInside(const void* ptr, size_t bytes, uint64_t left) {
  if (bytes > left)
    fail(mkErrorNotRegistered,
         "the window's %zu bytes at %p reach past the end of their allocation, which has %llu bytes from there", bytes,
         ptr, static_cast<unsigned long long>(left));
}

// The physical allocations under [ptr, ptr + bytes), one after the other.  False: it is not made of such.
bool exportPhysical(void* ptr, size_t bytes, Claim* claim, std::vector<uint64_t>* sizes, Hold* hold) {
  CUmemGenericAllocationHandle handle = 0;
  if (driver().retainHandle(&handle, ptr) != CUDA_SUCCESS) return false;
  driver().memRelease(handle);
  const auto start = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(ptr));
  CUdeviceptr at = start;
  while (at < start + bytes) {
    if (driver().retainHandle(&handle, reinterpret_cast<void*>(at)) != CUDA_SUCCESS)
      requireInside(ptr, bytes, at - start);
    CUmemAllocationProp p = {};
    const CUresult known = driver().handleProperties(&p, handle);
    CUdeviceptr base = 0;
    size_t size = 0;
    int fd = -1;
    const CUresult ranged = driver().addressRange(&base, &size, at);
    const CUresult given = driver().exportHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    driver().memRelease(handle);
    UniqueFd held(fd);
    check(known, "asking for an allocation's properties");
    check(ranged, "asking for the extent of an allocation");
    if (given != CUDA_SUCCESS)
      fail(mkErrorNotRegistered,
           "memory at %p cannot be exported by descriptor (%s): whoever made it with cuMemCreate has not asked for "
           "that; "
           "legal: memory of mkMemAlloc or cudaMalloc (with PyTorch: expandable_segments:False)",
           ptr, describe(given).c_str());
    if (hold->fds.size() == kMaxFds)
      fail(mkErrorNotRegistered, "the window's %zu bytes at %p lie in more than %zu allocations; legal: up to that",
           bytes, ptr, kMaxFds);
    if (hold->fds.empty()) claim->offset = start - base;
    hold->fds.push_back(std::move(held));
    sizes->push_back(size);
    at = base + size;
  }
  claim->kind = Claim::physical;
  claim->pieces = static_cast<uint32_t>(sizes->size());
  return true;
}

}  // namespace

WindowExport exportWindow(int device, void* ptr, size_t bytes) {
  if (bytes == 0) fail(mkErrorInvalidArgument, "bytes is 0; legal: 1 or more");
  if (ptr == nullptr) fail(mkErrorInvalidArgument, "ptr is NULL; legal: device memory");
  if (reinterpret_cast<uintptr_t>(ptr) % 16 != 0)
    fail(mkErrorInvalidArgument, "ptr %p is not a multiple of 16 bytes", ptr);
  requireDeviceMemory(device, ptr);
  const auto hold = std::make_shared<Hold>();
  Claim claim;
  std::vector<uint64_t> sizes;
  claim.address = reinterpret_cast<uintptr_t>(ptr);
  claim.device = device;
  if (!exportPhysical(ptr, bytes, &claim, &sizes, hold.get())) {
    CUdeviceptr base = 0;
    size_t size = 0;
    rangeOf(claim.address, &base, &size);
    claim.kind = Claim::runtime;
    claim.offset = claim.address - base;
    requireInside(ptr, bytes, size - claim.offset);
    const cudaError_t e = cudaIpcGetMemHandle(&claim.handle, reinterpret_cast<void*>(base));
    if (e != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      fail(mkErrorNotRegistered,
           "memory at %p cannot be given to other processes: %s (%s); legal: memory of mkMemAlloc", ptr,
           cudaGetErrorString(e), cudaGetErrorName(e));
    }
  }
  if (pinAllocation(ptr)) hold->pinned = ptr;
  WindowExport window;
  window.claim.resize(sizeof(claim) + sizes.size() * sizeof(uint64_t));
  std::memcpy(window.claim.data(), &claim, sizeof(claim));
  if (!sizes.empty()) std::memcpy(window.claim.data() + sizeof(claim), sizes.data(), sizes.size() * sizeof(uint64_t));
  for (const UniqueFd& fd : hold->fds) window.fds.push_back(fd.get());
  window.hold = hold;
  return window;
}

WindowMapping importWindow(int device, const std::vector<uint8_t>& claim, std::vector<UniqueFd> fds, bool sameProcess) {
  Claim theirs;
  if (claim.size() < sizeof(theirs)) fail(mkErrorInternal, "a window's claim of %zu bytes", claim.size());
  std::memcpy(&theirs, claim.data(), sizeof(theirs));
  if (claim.size() != sizeof(theirs) + theirs.pieces * sizeof(uint64_t) || fds.size() != theirs.pieces)
    fail(mkErrorInternal, "a window's claim of %zu bytes and %zu descriptors for %u pieces", claim.size(), fds.size(),
         theirs.pieces);
  const OnDevice on(device);
  if (theirs.kind == Claim::runtime) {
    if (sameProcess) {
      // At its own address, perhaps of another device.
      if (theirs.device != device) {
        const cudaError_t e = cudaDeviceEnablePeerAccess(theirs.device, 0);
        if (e != cudaErrorPeerAccessAlreadyEnabled) check(e, "reaching the device of a thread of this process");
        static_cast<void>(cudaGetLastError());
      }
      return {reinterpret_cast<char*>(theirs.address), nullptr};
    }
    void* base = nullptr;
    check(cudaIpcOpenMemHandle(&base, theirs.handle, cudaIpcMemLazyEnablePeerAccess), "mapping a peer's window");
    auto opened = std::make_shared<Opened>();
    opened->device = device;
    opened->base = base;
    return {static_cast<char*>(base) + theirs.offset, opened};
  }
  std::vector<uint64_t> sizes(theirs.pieces);
  std::memcpy(sizes.data(), claim.data() + sizeof(theirs), sizes.size() * sizeof(uint64_t));
  uint64_t total = 0;
  for (const uint64_t size : sizes) total += size;
  auto mapped = std::make_shared<Mapped>();
  mapped->addresses = std::make_unique<Addresses>(device, total);
  uint64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    mapped->pieces.push_back(std::make_unique<Physical>(std::move(fds[i]), sizes[i]));
    mapped->addresses->map(at, *mapped->pieces.back());
    at += sizes[i];
  }
  return {mapped->addresses->base() + theirs.offset, mapped};
}

}  // namespace mk::cuda
