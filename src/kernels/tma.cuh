// The copy unit: boxes of matrices and plain runs of bytes between global and shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace mk::kernels {

__device__ __forceinline__ void prefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void loadBox(uint32_t to, const CUtensorMap* map, uint32_t x, uint32_t y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// Into the same place of every block in `blocks`, counted by the barrier at the same place there.
__device__ __forceinline__ void loadBoxToAll(uint32_t to, const CUtensorMap* map, uint32_t x, uint32_t y,
                                             uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
      : "memory");
}
// For how long the L2 cache keeps what is loaded with it.
using CachePolicy = uint64_t;
// goesFirst: no longer than all else, since nobody will read it again.
__device__ __forceinline__ CachePolicy cachePolicy(bool goesFirst) {
  CachePolicy policy;
  if (goesFirst) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
__device__ __forceinline__ void loadBox(uint32_t to, const CUtensorMap* map, uint32_t x, uint32_t y, uint32_t barrier,
                                        CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void loadBoxToAll(uint32_t to, const CUtensorMap* map, uint32_t x, uint32_t y,
                                             uint32_t barrier, uint16_t blocks, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks), "l"(policy)
      : "memory");
}
// Into the L2 cache alone.
__device__ __forceinline__ void prefetchBox(const CUtensorMap* map, uint32_t x, uint32_t y, CachePolicy policy) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint [%0, {%1, %2}], %3;" ::"l"(map), "r"(x),
               "r"(y), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void loadBytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void storeBox(const CUtensorMap* map, uint32_t from, uint32_t x, uint32_t y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"(from)
               : "memory");
}
// Of three dimensions.
__device__ __forceinline__ void storePlane(const CUtensorMap* map, uint32_t from, uint32_t x, uint32_t y, uint32_t z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(from)
               : "memory");
}
__device__ __forceinline__ void storeBytes(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void prefetchBytes(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void storesCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the newest kPending groups have read their source, or are complete.
template <int kPending>
__device__ __forceinline__ void storesRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// All but the newest kPending groups are complete.
template <int kPending>
__device__ __forceinline__ void storesWait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void storesComplete() { storesWait<0>(); }
// Ordinary stores to shared memory that the copy unit or the matrix unit reads next: by every thread that stored.
__device__ __forceinline__ void fenceAsyncShared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace mk::kernels
