// Barriers in shared memory, clusters, and what else a block's warps tell each other with.
#pragma once

#include <cstdint>

#include "kernels/memory.cuh"

namespace mk::kernels {

__device__ __forceinline__ uint32_t sharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrierInit(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// After all barrierInit() of a thread, before the cluster first meets.
__device__ __forceinline__ void barrierInitDone() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ bool barrierTry(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}
// The same at once; barrierTry() may sleep a while.
__device__ __forceinline__ bool barrierTest(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}
// Waits for other warps of this block or cluster alone.  They never stop: on failure they go on with what they have, so this
// needs no way out.  A debugging build ends the kernel where that is not so.
__device__ __forceinline__ void barrierWait(uint32_t bar, uint32_t parity) {
#ifdef MK_TRAP_AFTER_NS
  if (barrierTry(bar, parity)) return;
  const uint64_t start = clockNs();
  while (!barrierTry(bar, parity)) {
    if (clockNs() - start > MK_TRAP_AFTER_NS) asm volatile("trap;");
  }
#else
  while (!barrierTry(bar, parity)) {
  }
#endif
}
__device__ __forceinline__ void barrierArrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrierExpect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// The same place in a block of this cluster.
__device__ __forceinline__ uint32_t inBlock(uint32_t address, uint32_t block) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Orders nothing: with .release.cluster it would wait for the whole GPU.  Where it announces reads, they must have come to their
// end: those of the matrix instructions by waiting for them, loads by an address that depends on them (TaskReader::release).
__device__ __forceinline__ void barrierArriveAt(uint32_t clusterAddress) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(clusterAddress) : "memory");
}
__device__ __forceinline__ void barrierExpectAt(uint32_t clusterAddress, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(clusterAddress), "r"(bytes)
               : "memory");
}
// 16 bytes into a block of this cluster, counted by a barrier there.
__device__ __forceinline__ void storeAt(uint32_t clusterAddress, uint32_t clusterBarrier, const uint4& v) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   clusterAddress),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(clusterBarrier)
               : "memory");
}

// True for one thread of the warp, all of which must call it.  Unlike of lane 0, the compiler knows that what such a branch hands to
// the copy unit is one thread's, and makes no loop over threads of it.
__device__ __forceinline__ bool electOne() {
  uint32_t one;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(one));
  return one != 0;
}

__device__ __forceinline__ uint32_t blockInCluster() {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ uint32_t clusterNumber() {
  uint32_t r;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void clusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// All have come here, and what they do in this order is all that there is to it: no memory is ordered, which takes a fence of the whole
// GPU's.
__device__ __forceinline__ void clusterMeet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ void namedSync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ uint32_t sharedLoadAcquire(uint32_t address) {
  uint32_t v;
  asm volatile("ld.acquire.cta.shared::cta.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void sharedStoreRelease(uint32_t address, uint32_t v) {
  asm volatile("st.release.cta.shared::cta.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ uint4 sharedLoad(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void sharedStore(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void sharedStore(uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
// Four 8 x 8 matrices of 16-bit elements from the fragments of a warp.
__device__ __forceinline__ void storeMatrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// Each transposed.
__device__ __forceinline__ void storeMatricesTurned(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// An 8 x 8 matrix of 16-bit elements in the fragments of a warp, transposed.
__device__ __forceinline__ uint32_t turnedMatrix(uint32_t a) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
  return r;
}

// Programmatic dependent launch: the next launch may be set up; what the one before has written may be read.
__device__ __forceinline__ void letNextLaunch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void awaitLaunchBefore() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

template <int kCount>
__device__ __forceinline__ void registersUp() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void registersDown() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace mk::kernels
