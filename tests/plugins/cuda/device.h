// The CUDA driver as the tests of GPU memory use it: the real one, or the fake of this folder where that was loaded before.
// Everything throws CheckFailed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "link.h"
#include "loopback/cuda_abi.h"

namespace test {

namespace cuda = mk::plugin::loopback::cuda;

class CudaDevice {
 public:
  // Opens libcuda.so.1 and looks; 0 where there is no driver or GPU, with the reason in *why.
  static int count(const char** why);
  // Makes GPU `index` this thread's, and the source of its SharedMemory.  For as long as the process lives.
  static CudaDevice& enter(int index);
  static CudaDevice& current();

  int index() const { return index_; }
  mkTransportMemory_t allocate(size_t bytes);
  void release(const mkTransportMemory_t& memory);

  // On a stream of this thread's own, done when it returns.  What is no memory of a GPU must be pinned.
  void copy(void* to, const void* from, size_t bytes);
  void* pinned(size_t bytes);
  void releasePinned(void* memory);

  // Function pointers of the driver; null: it has no such function.
  static void* symbol(const char* name);

 private:
  explicit CudaDevice(int index);

  const int index_;
  cuda::Context context_ = nullptr;
};

}  // namespace test
