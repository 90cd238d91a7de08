// Registered memory, here and at peers.  A peer's memory is reached through a mapping of its descriptor.  Host memory of a
// peer that lives in this process is used directly: it is then mapped once, which ThreadSanitizer needs to see races.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "cuda_memory.h"
#include "socket.h"

namespace mk::plugin::loopback {

// Memory registered by an endpoint of this process.  Writers of the same process hold it while they copy, so that it can be
// unmapped as soon as its deregistration has returned.  Writers exclude only that, never each other.
class LocalRegion {
 public:
  LocalRegion(std::byte* base, uint64_t bytes, uint64_t sequence, bool onGpu)
      : base_(base), bytes_(bytes), sequence_(sequence), onGpu_(onGpu) {}

  bool onGpu() const { return onGpu_; }
  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t sequence() const { return sequence_; }

  // Runs action(base) unless the registration has ended.
  template <typename Action>
  bool use(Action&& action) {
    const std::shared_lock lock(mutex_);
    if (!alive_) return false;
    action(base_);
    return true;
  }
  void end() {
    const std::unique_lock lock(mutex_);
    alive_ = false;
  }

 private:
  std::byte* const base_;
  const uint64_t bytes_, sequence_;
  const bool onGpu_;
  std::shared_mutex mutex_;
  bool alive_ = true;
};

// Part of a file in this process's address space.
class Mapping {
 public:
  // Throws Failure if the file is shorter or cannot be mapped.
  Mapping(int fd, uint64_t offset, uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* base() const { return base_; }  // the byte at `offset`

 private:
  void* address_ = nullptr;
  size_t length_ = 0;
  std::byte* base_ = nullptr;
};

// Throws Failure if [offset, offset + bytes) does not lie inside the descriptor's file.
void checkFile(int fd, uint64_t offset, uint64_t bytes);

// What a peer has told of one of its registrations: all of them to other processes, those of GPU memory to everybody, since
// each GPU needs a mapping of its own.
struct Announcement {
  UniqueFd fd;
  uint64_t bytes = 0, fdOffset = 0;
  bool onGpu = false;
  bool withdrawn = false;
  std::weak_ptr<Mapping> mapping;  // shared by the imports that are left
  std::weak_ptr<cuda::Mapping> gpuMapping;
};

// A peer's registration as a destination.
class RemoteRegion {
 public:
  RemoteRegion(int peer, std::shared_ptr<LocalRegion> local);
  RemoteRegion(int peer, std::shared_ptr<Announcement> announcement, std::shared_ptr<Mapping> mapping);
  RemoteRegion(int peer, std::shared_ptr<Announcement> announcement, std::shared_ptr<cuda::Mapping> mapping);

  int peer() const { return peer_; }
  bool onGpu() const { return gpuMapping_ != nullptr; }
  uint64_t bytes() const { return bytes_; }
  // The peer has ended the registration.  Only of GPU memory; of host memory copy and storeFlag tell.
  bool withdrawn() const { return announcement_->withdrawn; }
  // Of the byte at `offset`, in this process.
  uintptr_t address(uint64_t offset) const { return reinterpret_cast<uintptr_t>(base_) + offset; }

  // Host memory.  Both are false when the peer has ended the registration.  `again`: the bytes were delivered before; then only those that
  // differ are stored, which nobody can tell from storing all, and a reader that reads them meanwhile has no race.
  bool copy(uint64_t offset, const void* source, uint64_t bytes, bool again);
  // Whoever reads the value with acquire sees everything stored before.
  bool storeFlag(uint64_t offset, uint64_t value);

 private:
  template <typename Action>
  bool use(Action&& action);

  const int peer_;
  std::shared_ptr<LocalRegion> local_;
  std::shared_ptr<Announcement> announcement_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<cuda::Mapping> gpuMapping_;
  std::byte* base_;
  uint64_t bytes_;
};

}  // namespace mk::plugin::loopback
