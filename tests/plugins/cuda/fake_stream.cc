// See fake_stream.h.
#include "fake_stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace fake {
namespace {

std::atomic<int64_t> copiesLeft{INT64_MAX};

}  // namespace

void failAfter(int64_t copies) { copiesLeft = copies; }
Result fault() { return copiesLeft < 0 ? kIllegalAddress : kSuccess; }

}  // namespace fake

using fake::DevicePtr;
using fake::Result;

CUstream_st::CUstream_st(int device) : device_(device), random_(std::random_device{}()), thread_([this] { loop(); }) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result CUstream_st::copy(DevicePtr to, DevicePtr from, size_t bytes) {
  if (fake::fault() != fake::kSuccess) return fake::fault();
  if (!fake::memory().begin(to, bytes, device_)) return fake::kInvalidValue;
  if (!fake::memory().begin(from, bytes, device_)) {
    fake::memory().end(to);
    return fake::kInvalidValue;
  }
  push([=, this] {
    if (--fake::copiesLeft >= 0) carry(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte*>(from), bytes);
    fake::memory().end(to);
    fake::memory().end(from);
  });
  return fake::kSuccess;
}

Result CUstream_st::store(DevicePtr to, uint64_t value) {
  if (fake::fault() != fake::kSuccess) return fake::fault();
  if (to % 8 != 0 || !fake::memory().begin(to, sizeof(value), device_)) return fake::kInvalidValue;
  push([=] {
    if (fake::fault() == fake::kSuccess)
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to)).store(value, std::memory_order_release);
    fake::memory().end(to);
  });
  return fake::kSuccess;
}

Result CUstream_st::query() {
  const std::lock_guard lock(mutex_);
  return busy_ || !steps_.empty() ? fake::kNotReady : fake::fault();
}

void CUstream_st::push(std::function<void()> step) {
  {
    const std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
  }
  changed_.notify_all();
}

void CUstream_st::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (steps_.empty() && !ending_) changed_.wait(lock);
    if (steps_.empty()) return;
    const std::function<void()> step = std::move(steps_.front());
    steps_.pop_front();
    busy_ = true;
    lock.unlock();
    if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    step();
    lock.lock();
    busy_ = false;
  }
}

void CUstream_st::carry(std::byte* to, const std::byte* from, size_t bytes) {
  // The end before the beginning.
  const size_t middle = random_() % (bytes + 1);
  std::memcpy(to + middle, from + middle, bytes - middle);
  if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 100));
  std::memcpy(to, from, middle);
}
