// See fake_memory.h.
#include "fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fake {
namespace {

constexpr const char* kName = "fake-cuda-allocation";

bool isAllocation(int fd) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  char target[200] = {};
  return readlink(link.c_str(), target, sizeof(target) - 1) > 0 && std::strstr(target, kName) != nullptr;
}

void* toPointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

}  // namespace

void breach(const char* fmt, ...) {
  va_list list;
  va_start(list, fmt);
  std::fprintf(stderr, "fake CUDA driver: ");
  std::vfprintf(stderr, fmt, list);
  std::fprintf(stderr, "\n");
  va_end(list);
  std::abort();
}

Memory& memory() {
  static Memory& only = *new Memory;  // streams may end after the program's static objects
  return only;
}

Result Memory::create(Allocation* allocation, size_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  const int fd = memfd_create(kName, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kInvalidValue;
  const std::lock_guard lock(mutex_);
  objects_[*allocation = ++newest_] = {fd, bytes};
  return kSuccess;
}

Result Memory::exportFd(int* fd, Allocation allocation) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(allocation);
  if (found == objects_.end()) return kInvalidValue;
  *fd = fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0);
  return *fd >= 0 ? kSuccess : kInvalidValue;
}

Result Memory::import(Allocation* allocation, int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !isAllocation(fd)) return kInvalidValue;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return kInvalidValue;
  const std::lock_guard lock(mutex_);
  objects_[*allocation = ++newest_] = {own, static_cast<size_t>(status.st_size)};
  return kSuccess;
}

Result Memory::release(Allocation allocation) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(allocation);
  if (found == objects_.end()) return kInvalidValue;
  close(found->second.fd);  // mappings keep the memory
  objects_.erase(found);
  return kSuccess;
}

Result Memory::reserve(DevicePtr* address, size_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  void* const place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return kInvalidValue;
  *address = reinterpret_cast<DevicePtr>(place);
  const std::lock_guard lock(mutex_);
  ranges_[*address].bytes = bytes;
  return kSuccess;
}

Result Memory::unreserve(DevicePtr address, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Range* range = find(address, bytes);
  if (range == nullptr || range->mapped) breach("cuMemAddressFree of what is no reservation, or mapped");
  munmap(toPointer(address), bytes);
  ranges_.erase(address);
  return kSuccess;
}

Result Memory::map(DevicePtr address, size_t bytes, Allocation allocation) {
  const std::lock_guard lock(mutex_);
  const auto object = objects_.find(allocation);
  Range* range = find(address, bytes);
  if (object == objects_.end() || range == nullptr || range->mapped || object->second.bytes != bytes)
    return kInvalidValue;
  // Readable at once: the test looks at the memory as no host may.
  if (mmap(toPointer(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, object->second.fd, 0) ==
      MAP_FAILED)
    return kInvalidValue;
  range->mapped = true;
  return kSuccess;
}

Result Memory::unmap(DevicePtr address, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Range* range = find(address, bytes);
  if (range == nullptr || !range->mapped) breach("cuMemUnmap of what is not mapped");
  if (range->users != 0) breach("cuMemUnmap while %d copies use the memory", range->users);
  mmap(toPointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  *range = Range{bytes};
  return kSuccess;
}

Result Memory::setAccess(DevicePtr address, size_t bytes, const AccessDescription* access, size_t count) {
  const std::lock_guard lock(mutex_);
  Range* range = find(address, bytes);
  if (range == nullptr || !range->mapped) return kInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    const Location& place = access[i].location;
    if (place.type != kLocationDevice || place.id < 0 || place.id >= kDevices) return kInvalidValue;
    range->accessible[place.id] = access[i].flags == kAccessReadWrite;
  }
  return kSuccess;
}

Result Memory::hostAlloc(void** address, size_t bytes) {
  *address = std::aligned_alloc(kGranularity, (bytes + kGranularity - 1) / kGranularity * kGranularity);
  if (*address == nullptr) return kInvalidValue;
  const std::lock_guard lock(mutex_);
  Range& range = ranges_[reinterpret_cast<DevicePtr>(*address)];
  range.bytes = bytes;
  range.host = true;
  return kSuccess;
}

Result Memory::hostFree(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<DevicePtr>(address));
  if (found == ranges_.end() || !found->second.host) breach("cuMemFreeHost of what is no pinned memory");
  if (found->second.users != 0) breach("cuMemFreeHost while copies use the memory");
  ranges_.erase(found);
  std::free(address);
  return kSuccess;
}

Memory::Range* Memory::find(DevicePtr address, size_t bytes) {
  auto found = ranges_.upper_bound(address);
  if (found == ranges_.begin()) return nullptr;
  --found;
  const uint64_t at = address - found->first;
  return at < found->second.bytes && bytes <= found->second.bytes - at ? &found->second : nullptr;
}

bool Memory::isDevice(DevicePtr address) {
  const std::lock_guard lock(mutex_);
  const Range* range = find(address, 1);
  return range != nullptr && range->mapped;
}

bool Memory::begin(DevicePtr address, size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  Range* range = find(address, bytes);
  if (range == nullptr || (!range->host && (!range->mapped || !range->accessible[device]))) return false;
  ++range->users;
  return true;
}

void Memory::end(DevicePtr address) {
  const std::lock_guard lock(mutex_);
  --find(address, 1)->users;
}

}  // namespace fake
