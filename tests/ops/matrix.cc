#include "ops/matrix.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ops/values.h"
#include "ops/world.h"

namespace test {

namespace {

constexpr char kGuardByte = 0x5a;

}  // namespace

GuardedMatrix::GuardedMatrix(mkDataType_t type, int64_t rows, int64_t cols, int64_t padding, mkComm_t comm,
                             int64_t windowRows)
    : type_(type),
      rows_(rows),
      cols_(cols),
      stride_(cols + padding),
      bytes_(static_cast<size_t>(rows * stride_) * sizeOf(type)),
      comm_(comm) {
  const size_t all = bytes_ + 2 * kGuard;
  if (comm != nullptr) {
    const size_t window = static_cast<size_t>(std::max(rows, windowRows) * stride_) * sizeOf(type) + 2 * kGuard;
    if (windowAllocate) {
      windowMemory_ = windowAllocate(window);
    } else {
      expect(mkMemAlloc(&windowMemory_, window), "mkMemAlloc");
    }
    expect(mkCommWindowRegister(comm, windowMemory_, window, &window_), "register", comm);
    base_ = static_cast<char*>(windowMemory_);
  }
  if (deviceMemory != nullptr) device_ = comm != nullptr ? base_ : static_cast<char*>(deviceMemory->allocate(all));
  if (comm == nullptr || device_ != nullptr) {
    memory_.resize(all + 16);
    base_ = memory_.data() + (16 - reinterpret_cast<uintptr_t>(memory_.data()) % 16) % 16;
  }
  std::memset(base_, kGuardByte, all);
  base_ += kGuard;
}

GuardedMatrix::~GuardedMatrix() {
  if (device_ != nullptr && windowMemory_ == nullptr) deviceMemory->release(device_);
  if (window_ != nullptr) mkCommWindowDeregister(comm_, window_);
  if (windowMemory_ != nullptr)
    windowRelease ? windowRelease(windowMemory_) : static_cast<void>(mkMemFree(windowMemory_));
}

char* GuardedMatrix::at(int64_t row, int64_t col) const {
  return base_ + static_cast<size_t>(row * stride_ + col) * sizeOf(type_);
}

float GuardedMatrix::value(int64_t row, int64_t col) const { return get(type_, at(row, col)); }

void GuardedMatrix::fill(const std::function<float(int64_t, int64_t)>& element) const {
  for (int64_t i = 0; i < rows_; ++i)
    for (int64_t j = 0; j < cols_; ++j) put(type_, at(i, j), element(i, j));
}

void GuardedMatrix::upload() const {
  if (device_ != nullptr) deviceMemory->upload(device_, base_ - kGuard, bytes_ + 2 * kGuard);
}

void GuardedMatrix::download() const {
  if (device_ != nullptr) deviceMemory->download(base_ - kGuard, device_, bytes_ + 2 * kGuard);
}

char* GuardedMatrix::address(int64_t row) const {
  return device_ == nullptr ? at(row, 0) : device_ + kGuard + (at(row, 0) - base_);
}

void GuardedMatrix::checkGuards(const char* name) const {
  const auto untouched = [](const char* from, const char* to) {
    return std::all_of(from, to, [](char c) { return c == kGuardByte; });
  };
  if (!untouched(base_ - kGuard, base_)) throw std::string(name) + ": written before it";
  if (!untouched(base_ + bytes_, base_ + bytes_ + kGuard)) throw std::string(name) + ": written behind it";
  for (int64_t i = 0; i < rows_; ++i)
    if (!untouched(at(i, cols_), at(i, stride_))) throw std::string(name) + ": written into its padding";
}

mkTensor_t GuardedMatrix::tensor() const {
  mkTensor_t x = matrix(address(0), type_, rows_, cols_, stride_);
  if (window_ == nullptr) return x;
  x.data = nullptr;
  x.window = window_;
  x.offset = kGuard;
  return x;
}

mkTensor_t GuardedMatrix::vector() const {
  mkTensor_t x = {};
  x.data = address(0);
  x.dtype = static_cast<uint32_t>(type_);
  x.ndim = 1;
  x.dims[0] = cols_;
  return x;
}

}  // namespace test
