// The fake driver's memory: which ranges there are, which GPU may touch them, and whether a copy is using them just now.
// Used by fake_cuda.cc and fake_stream.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "loopback/cuda_abi.h"

namespace fake {

using namespace mk::plugin::loopback::cuda;

constexpr int kDevices = 2;
constexpr size_t kGranularity = 4096;
constexpr Result kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kIllegalAddress = 700,
                 kNotSupported = 801;

// The caller has broken a rule that the real driver would punish at some other time, or not at all.
[[noreturn, gnu::format(printf, 1, 2)]] void breach(const char* fmt, ...);

class Memory {
 public:
  Result create(Allocation* allocation, size_t bytes);
  Result exportFd(int* fd, Allocation allocation);
  Result import(Allocation* allocation, int fd);
  Result release(Allocation allocation);

  Result reserve(DevicePtr* address, size_t bytes);
  Result unreserve(DevicePtr address, size_t bytes);
  Result map(DevicePtr address, size_t bytes, Allocation allocation);
  Result unmap(DevicePtr address, size_t bytes);
  Result setAccess(DevicePtr address, size_t bytes, const AccessDescription* access, size_t count);

  Result hostAlloc(void** address, size_t bytes);
  Result hostFree(void* address);

  bool isDevice(DevicePtr address);
  // Marks [address, +bytes) as used by a copy of this device; false: it may not touch that.
  bool begin(DevicePtr address, size_t bytes, int device);
  void end(DevicePtr address);

 private:
  struct Range {
    size_t bytes = 0;
    bool host = false, mapped = false;
    bool accessible[kDevices] = {};
    int users = 0;
  };
  struct Object {
    int fd = -1;
    size_t bytes = 0;
  };
  Range* find(DevicePtr address, size_t bytes);

  std::mutex mutex_;
  std::map<DevicePtr, Range> ranges_;
  std::map<Allocation, Object> objects_;
  Allocation newest_ = 0;
};

Memory& memory();

}  // namespace fake
