// The part of the CUDA driver's binary interface that copies between GPUs need, under our own names: so the plugin needs no
// CUDA to build, and every build of it can carry GPU memory where there is a driver.  tests/plugins compare it with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUctx_st;
struct CUstream_st;

namespace mk::plugin::loopback::cuda {

using Result = int;
constexpr Result kSuccess = 0, kNotReady = 600;

using Device = int;
using DevicePtr = unsigned long long;
using Allocation = unsigned long long;  // CUmemGenericAllocationHandle
using Context = CUctx_st*;
using Stream = CUstream_st*;

constexpr unsigned kStreamNonBlocking = 1, kHostAllocPortable = 1;
constexpr int kHandleFileDescriptor = 1, kLocationDevice = 1, kAccessReadWrite = 3;
constexpr int kAttributeMemoryType = 2;
constexpr unsigned kMemoryTypeDevice = 2;

struct Location {
  int type, id;
};
struct AccessDescription {
  Location location;
  int flags;
};

// A store by the stream, after all before it on the stream are visible: CUstreamBatchMemOpParams with writeValue in it.
struct MemOp {
  int operation;
  DevicePtr address;
  uint64_t value;
  unsigned flags;
  DevicePtr alias;
  uint64_t rest;
};
constexpr int kWriteValue64 = 5;

// CALL(name here, symbol, parameters)
#define MK_LOOPBACK_CUDA_CALLS(CALL)                                                                          \
  CALL(getErrorName, "cuGetErrorName", (Result, const char**))                                                \
  CALL(ctxGetCurrent, "cuCtxGetCurrent", (Context*))                                                          \
  CALL(ctxGetDevice, "cuCtxGetDevice", (Device*))                                                             \
  CALL(ctxPushCurrent, "cuCtxPushCurrent_v2", (Context))                                                      \
  CALL(ctxPopCurrent, "cuCtxPopCurrent_v2", (Context*))                                                       \
  CALL(pointerGetAttribute, "cuPointerGetAttribute", (void*, int, DevicePtr))                                 \
  CALL(memImportFromShareableHandle, "cuMemImportFromShareableHandle", (Allocation*, void*, int))             \
  CALL(memRelease, "cuMemRelease", (Allocation))                                                              \
  CALL(memAddressReserve, "cuMemAddressReserve", (DevicePtr*, size_t, size_t, DevicePtr, unsigned long long)) \
  CALL(memAddressFree, "cuMemAddressFree", (DevicePtr, size_t))                                               \
  CALL(memMap, "cuMemMap", (DevicePtr, size_t, size_t, Allocation, unsigned long long))                       \
  CALL(memUnmap, "cuMemUnmap", (DevicePtr, size_t))                                                           \
  CALL(memSetAccess, "cuMemSetAccess", (DevicePtr, size_t, const AccessDescription*, size_t))                 \
  CALL(memHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                            \
  CALL(memFreeHost, "cuMemFreeHost", (void*))                                                                 \
  CALL(streamCreate, "cuStreamCreate", (Stream*, unsigned))                                                   \
  CALL(streamDestroy, "cuStreamDestroy_v2", (Stream))                                                         \
  CALL(streamQuery, "cuStreamQuery", (Stream))                                                                \
  CALL(streamBatchMemOp, "cuStreamBatchMemOp_v2", (Stream, unsigned, MemOp*, unsigned))                       \
  CALL(memcpyAsync, "cuMemcpyAsync", (DevicePtr, DevicePtr, size_t, Stream))

struct Calls {
#define MK_LOOPBACK_CUDA_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  MK_LOOPBACK_CUDA_CALLS(MK_LOOPBACK_CUDA_MEMBER)
#undef MK_LOOPBACK_CUDA_MEMBER
};

}  // namespace mk::plugin::loopback::cuda
