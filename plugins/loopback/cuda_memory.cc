// See cuda_memory.h.
#include "cuda_memory.h"

#include "common/failure.h"

namespace mk::plugin::loopback::cuda {
namespace {

// The driver takes the descriptor's number in place of a pointer, and leaves the descriptor open.
Result importAllocation(const Driver& driver, int fd, Allocation* allocation) {
  return driver.memImportFromShareableHandle(allocation, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                             kHandleFileDescriptor);
}

}  // namespace

void checkMemory(const Driver& driver, const mkTransportMemory_t& memory) {
  if (memory.fd < 0)
    fail(mkErrorInvalidArgument, "CUDA memory at %p with fd %d: needs the descriptor of its cuMemCreate allocation",
         memory.address, memory.fd);
  if (memory.fdOffset != 0)
    fail(mkErrorInvalidArgument, "CUDA memory at %p with fdOffset %llu: must be 0, the whole allocation",
         memory.address, wide(memory.fdOffset));
  unsigned type = 0;
  const Result result =
      driver.pointerGetAttribute(&type, kAttributeMemoryType, reinterpret_cast<DevicePtr>(memory.address));
  if (result != kSuccess || type != kMemoryTypeDevice)
    fail(mkErrorInvalidArgument, "address %p is no CUDA device memory (%s)", memory.address,
         result != kSuccess ? driver.describe("cuPointerGetAttribute", result).c_str() : "memory type of the host");
  Allocation allocation = 0;
  if (const Result imported = importAllocation(driver, memory.fd, &allocation); imported != kSuccess)
    fail(mkErrorInvalidArgument, "fd %d is not the descriptor of a CUDA allocation (%s)", memory.fd,
         driver.describe("cuMemImportFromShareableHandle", imported).c_str());
  driver.memRelease(allocation);
}

Mapping::Mapping(const Driver& driver, int fd, uint64_t bytes, Device device) : driver_(driver), bytes_(bytes) {
  const std::string what = format("mapping %llu bytes of a peer's CUDA memory for device %d", wide(bytes), device);
  try {
    driver_.check(importAllocation(driver_, fd, &allocation_), "cuMemImportFromShareableHandle", what);
    imported_ = true;
    driver_.check(driver_.memAddressReserve(&base_, bytes_, 0, 0, 0), "cuMemAddressReserve", what);
    driver_.check(driver_.memMap(base_, bytes_, 0, allocation_, 0), "cuMemMap", what);
    mapped_ = true;
    const AccessDescription access = {{kLocationDevice, device}, kAccessReadWrite};
    driver_.check(driver_.memSetAccess(base_, bytes_, &access, 1), "cuMemSetAccess", what);
  } catch (...) {
    undo();
    throw;
  }
}

Mapping::~Mapping() {
  if (!abandoned_) undo();
}

void Mapping::undo() {
  if (mapped_) driver_.memUnmap(base_, bytes_);
  if (base_ != 0) driver_.memAddressFree(base_, bytes_);
  if (imported_) driver_.memRelease(allocation_);
}

}  // namespace mk::plugin::loopback::cuda
