// Matrices of the tests' operations: where they lie, and what shows that nothing beside them is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "mkernel.h"

namespace test {

// Where operands lie if not in host memory: a GPU test sets it.  Functions throw std::string; copies are complete on return.
struct DeviceMemory {
  void* (*allocate)(size_t bytes) = nullptr;
  void (*release)(void* ptr) = nullptr;
  void (*upload)(void* to, const void* from, size_t bytes) = nullptr;
  void (*download)(void* to, const void* from, size_t bytes) = nullptr;
  void (*synchronize)(mkStream_t stream) = nullptr;
};
inline const DeviceMemory* deviceMemory = nullptr;
// Where windows lie if not in memory of mkMemAlloc.
inline std::function<void*(size_t)> windowAllocate;
inline std::function<void(void*)> windowRelease;
// A matrix of a rank's, with guards around it and between its rows.  With deviceMemory it is a copy in host memory of what lies
// there, which upload() and download() bring up to date.
class GuardedMatrix {
 public:
  // Where `comm` is not null: in a window, which all ranks register, with room for so many rows (-1: as many as it has).
  GuardedMatrix(mkDataType_t type, int64_t rows, int64_t cols, int64_t padding, mkComm_t comm = nullptr,
                int64_t windowRows = -1);
  ~GuardedMatrix();
  GuardedMatrix(const GuardedMatrix&) = delete;
  GuardedMatrix& operator=(const GuardedMatrix&) = delete;

  char* at(int64_t row, int64_t col) const;
  float value(int64_t row, int64_t col) const;
  void fill(const std::function<float(int64_t, int64_t)>& element) const;
  void upload() const;
  void download() const;
  // Throws std::string, beginning with `name`, if something beside the elements has been written.
  void checkGuards(const char* name) const;
  // By window if it lies in one.
  mkTensor_t tensor() const;
  // Of one row, as a vector; in ordinary memory.
  mkTensor_t vector() const;
  // Where an operation finds the row.
  char* address(int64_t row) const;
  // Where an operation has the elements.
  std::pair<void*, size_t> memory() const { return {address(0), bytes_}; }

 private:
  static constexpr size_t kGuard = 256;
  const mkDataType_t type_;
  const int64_t rows_, cols_, stride_;
  const size_t bytes_;
  mkComm_t comm_;
  mkWindow_t window_ = nullptr;
  void* windowMemory_ = nullptr;
  std::vector<char> memory_;
  char* base_ = nullptr;
  char* device_ = nullptr;  // its first guard
};

}  // namespace test
