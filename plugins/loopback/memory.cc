// See memory.h.
#include "memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/failure.h"

namespace mk::plugin::loopback {

void checkFile(int fd, uint64_t offset, uint64_t bytes) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) failErrno(errno, format("descriptor %d of the memory: fstat", fd));
  const uint64_t size = status.st_size > 0 ? static_cast<uint64_t>(status.st_size) : 0;
  if (offset > size || bytes > size - offset)
    fail(mkErrorInvalidArgument, "memory of %llu bytes at offset %llu ends beyond its descriptor, which has %llu bytes",
         static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offset),
         static_cast<unsigned long long>(size));
}

Mapping::Mapping(int fd, uint64_t offset, uint64_t bytes) {
  checkFile(fd, offset, bytes);
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t lead = offset % page;
  length_ = lead + bytes;
  address_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - lead));
  if (address_ == MAP_FAILED) failErrno(errno, format("mapping %zu bytes of a peer's memory", length_));
  base_ = static_cast<std::byte*>(address_) + lead;
}

Mapping::~Mapping() { munmap(address_, length_); }

RemoteRegion::RemoteRegion(int peer, std::shared_ptr<LocalRegion> local)
    : peer_(peer), local_(std::move(local)), base_(local_->base()), bytes_(local_->bytes()) {}

RemoteRegion::RemoteRegion(int peer, std::shared_ptr<Announcement> announcement, std::shared_ptr<Mapping> mapping)
    : peer_(peer),
      announcement_(std::move(announcement)),
      mapping_(std::move(mapping)),
      base_(mapping_->base()),
      bytes_(announcement_->bytes) {}

RemoteRegion::RemoteRegion(int peer, std::shared_ptr<Announcement> announcement, std::shared_ptr<cuda::Mapping> mapping)
    : peer_(peer),
      announcement_(std::move(announcement)),
      gpuMapping_(std::move(mapping)),
      base_(reinterpret_cast<std::byte*>(gpuMapping_->base())),
      bytes_(announcement_->bytes) {}

template <typename Action>
bool RemoteRegion::use(Action&& action) {
  if (local_ != nullptr) return local_->use(action);
  if (announcement_->withdrawn) return false;
  action(base_);
  return true;
}

bool RemoteRegion::copy(uint64_t offset, const void* source, uint64_t bytes, bool again) {
  return use([&](std::byte* base) {
    if (bytes == 0 || (again && std::memcmp(base + offset, source, bytes) == 0)) return;
    std::memcpy(base + offset, source, bytes);
  });
}

bool RemoteRegion::storeFlag(uint64_t offset, uint64_t value) {
  return use([&](std::byte* base) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base + offset)).store(value, std::memory_order_release);
  });
}

}  // namespace mk::plugin::loopback
