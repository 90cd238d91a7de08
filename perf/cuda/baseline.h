// What the fused operation is compared with: cuBLAS and NCCL, found at run time, since neither the library nor this program
// needs them.  Called by gpu_run.cc and the
// works.
#pragma once

#include <cstdint>
#include <string>

#include "common/options.h"
#include "common/world.h"
#include "mkernel.h"

namespace mk::perf {

class Cublas {
 public:
  // On the current device.  text() says what was found, or why there is none.
  explicit Cublas(mkStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  bool usable() const { return handle_ != nullptr; }
  const std::string& text() const { return text_; }
  // Row-major C (m, n) = alpha * A (m, k) * B + beta * C with sums in fp32.  Returns cuBLAS's status, 0 if good.
  int multiply(const Options& options, const void* a, const void* b, void* c, int64_t m, int64_t n, int64_t k,
               float beta) const;

 private:
  using GemmEx = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                         const void*, void*, int, int, int, int);
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  int (*destroy_)(void*) = nullptr;
  GemmEx gemm_ = nullptr;
  std::string text_;
};

class Nccl {
 public:
  // Collective over the world: usable on all ranks or on none.
  explicit Nccl(World& world);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  bool usable() const { return comm_ != nullptr; }
  const std::string& text() const { return text_; }
  // Each returns NCCL's result, 0 if good.  In place; `count` elements of the whole sum for each rank; `count` of each rank.
  int allReduce(Type type, void* data, int64_t count, mkStream_t stream) const;
  int reduceScatter(Type type, const void* data, void* part, int64_t count, mkStream_t stream) const;
  int allGather(Type type, const void* part, void* data, int64_t count, mkStream_t stream) const;

 private:
  void* comm_ = nullptr;
  int (*destroy_)(void*) = nullptr;
  int (*allReduce_)(const void*, void*, size_t, int, int, void*, mkStream_t) = nullptr;
  int (*reduceScatter_)(const void*, void*, size_t, int, int, void*, mkStream_t) = nullptr;
  int (*allGather_)(const void*, void*, size_t, int, void*, mkStream_t) = nullptr;
  std::string text_;
};

}  // namespace mk::perf
