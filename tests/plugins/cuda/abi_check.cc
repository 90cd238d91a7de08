// Compares the plugin's own picture of the CUDA driver (plugins/loopback/cuda_abi.h) with the toolkit's header, where there is
// one.  Nothing to run.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "loopback/cuda_abi.h"

namespace {

using namespace mk::plugin::loopback::cuda;

static_assert(kSuccess == CUDA_SUCCESS && kNotReady == CUDA_ERROR_NOT_READY && sizeof(Result) == sizeof(CUresult));
static_assert(std::is_same_v<Device, CUdevice> && std::is_same_v<DevicePtr, CUdeviceptr> &&
              std::is_same_v<Allocation, CUmemGenericAllocationHandle>);
static_assert(std::is_same_v<Context, CUcontext> && std::is_same_v<Stream, CUstream>);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
using WriteValue = CUstreamBatchMemOpParams::CUstreamMemOpWriteValueParams_st;
static_assert(kWriteValue64 == CU_STREAM_MEM_OP_WRITE_VALUE_64 && sizeof(MemOp) == sizeof(CUstreamBatchMemOpParams));
static_assert(offsetof(MemOp, address) == offsetof(WriteValue, address) &&
              offsetof(MemOp, value) == offsetof(WriteValue, value64) &&
              offsetof(MemOp, flags) == offsetof(WriteValue, flags) &&
              offsetof(MemOp, alias) == offsetof(WriteValue, alias));
static_assert(kHandleFileDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
              kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE && kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(sizeof(Location) == sizeof(CUmemLocation) && offsetof(Location, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc) &&
              offsetof(AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));
// The versions that the names without suffix stand for.
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
constexpr bool same(const char* a, const char* b) {
  for (; *a != '\0' && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}
static_assert(same(TEXT(cuCtxPushCurrent), "cuCtxPushCurrent_v2") && same(TEXT(cuCtxPopCurrent), "cuCtxPopCurrent_v2"));
static_assert(same(TEXT(cuStreamDestroy), "cuStreamDestroy_v2") &&
              same(TEXT(cuStreamBatchMemOp), "cuStreamBatchMemOp_v2"));
static_assert(same(TEXT(cuMemcpyAsync), "cuMemcpyAsync") && same(TEXT(cuMemHostAlloc), "cuMemHostAlloc"));

}  // namespace
