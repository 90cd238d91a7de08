// A peer's GPU memory in this process: the allocation behind its descriptor, mapped for one GPU of ours, whose copy engines
// then write it.  Made by cuda_carrier; RemoteRegion (memory.h) holds it.
#pragma once

#include <cstdint>

#include "cuda_driver.h"
#include "mkernel/transport.h"

namespace mk::plugin::loopback::cuda {

// Throws Failure, naming the argument, unless this is device memory with the descriptor of its own allocation.
void checkMemory(const Driver& driver, const mkTransportMemory_t& memory);

class Mapping {
 public:
  // The allocation of exactly `bytes` behind the descriptor, which stays the caller's.  Throws Failure.
  Mapping(const Driver& driver, int fd, uint64_t bytes, Device device);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  DevicePtr base() const { return base_; }
  // Copies into it do not come to an end: stays mapped.
  void abandon() { abandoned_ = true; }

 private:
  void undo();

  const Driver& driver_;
  const uint64_t bytes_;
  Allocation allocation_ = 0;
  DevicePtr base_ = 0;
  bool imported_ = false, mapped_ = false, abandoned_ = false;
};

}  // namespace mk::plugin::loopback::cuda
