// The fake driver's streams: each is a thread that carries out what it is given, in order, each step after a random delay
// and each copy in pieces of any order, so that whoever takes "posted" for "done" is found out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "fake_memory.h"

// The driver's opaque types.
struct CUctx_st {
  int device;
};
struct CUstream_st {
  explicit CUstream_st(int device);
  ~CUstream_st();  // when all is done
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  mk::plugin::loopback::cuda::Result copy(mk::plugin::loopback::cuda::DevicePtr to,
                                          mk::plugin::loopback::cuda::DevicePtr from, size_t bytes);
  mk::plugin::loopback::cuda::Result store(mk::plugin::loopback::cuda::DevicePtr to, uint64_t value);
  mk::plugin::loopback::cuda::Result query();

 private:
  void push(std::function<void()> step);
  void loop();
  void carry(std::byte* to, const std::byte* from, size_t bytes);

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> steps_;
  bool busy_ = false, ending_ = false;
  std::mt19937 random_;  // of the thread alone
  std::thread thread_;
};

namespace fake {

// A fault of the GPU: from the copy after this many on nothing is copied, and every question is answered with an error.
void failAfter(int64_t copies);
mk::plugin::loopback::cuda::Result fault();

}  // namespace fake
