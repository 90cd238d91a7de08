// A driver without a GPU: libcuda.so.1 for the tests of GPU memory on machines that have none.  Two GPUs whose memory is
// files, streams that are threads (fake_stream.h), and rules that the real driver does not enforce but relies on
// (fake_memory.h): breaking one ends the program with a word about it.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "fake_memory.h"
#include "fake_stream.h"

namespace fake {
namespace {

CUctx_st contexts[kDevices] = {{0}, {1}};
thread_local std::vector<Context> current;
thread_local bool hot = false;
std::atomic<int64_t> copiesTaken{0}, storesTaken{0};

// Calls that allocate, or that the real driver may hold up until a running kernel has ended.
void slow(const char* call) {
  if (hot) breach("%s where nothing may wait for the GPU", call);
}

int deviceNow() { return current.empty() || current.back() == nullptr ? -1 : current.back()->device; }

}  // namespace
}  // namespace fake

using namespace fake;

#define FAKE_CALL extern "C" [[gnu::visibility("default")]] Result

// Until the next call with false, this thread makes slow calls at its peril.
extern "C" [[gnu::visibility("default")]] void fakeCudaHot(bool on) { hot = on; }
extern "C" [[gnu::visibility("default")]] void fakeCudaFailAfter(int64_t copies) { failAfter(copies); }
// Copies taken so far, and calls to store.
extern "C" [[gnu::visibility("default")]] int64_t fakeCudaCopies() { return copiesTaken; }
extern "C" [[gnu::visibility("default")]] int64_t fakeCudaStores() { return storesTaken; }

FAKE_CALL cuInit(unsigned) { return kSuccess; }
FAKE_CALL cuDeviceGetCount(int* count) {
  *count = kDevices;
  return kSuccess;
}
FAKE_CALL cuGetErrorName(Result result, const char** name) {
  switch (result) {
    case kSuccess:
      *name = "CUDA_SUCCESS";
      break;
    case kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case kInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      break;
    case kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case kNotReady:
      *name = "CUDA_ERROR_NOT_READY";
      break;
    case kNotSupported:
      *name = "CUDA_ERROR_NOT_SUPPORTED";
      break;
    default:
      *name = nullptr;
      return kInvalidValue;
  }
  return kSuccess;
}

// ---- Contexts ------------------------------------------------------------------------------------------------------

FAKE_CALL cuDevicePrimaryCtxRetain(Context* context, Device device) {
  if (device < 0 || device >= kDevices) return kInvalidValue;
  *context = &contexts[device];
  return kSuccess;
}
FAKE_CALL cuDevicePrimaryCtxRelease_v2(Device) { return kSuccess; }
FAKE_CALL cuCtxGetCurrent(Context* context) {
  *context = current.empty() ? nullptr : current.back();
  return kSuccess;
}
FAKE_CALL cuCtxSetCurrent(Context context) {
  if (current.empty()) current.push_back(nullptr);
  current.back() = context;
  return kSuccess;
}
FAKE_CALL cuCtxPushCurrent_v2(Context context) {
  current.push_back(context);
  return kSuccess;
}
FAKE_CALL cuCtxPopCurrent_v2(Context* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}
FAKE_CALL cuCtxGetDevice(Device* device) {
  if (deviceNow() < 0) return kInvalidContext;
  *device = deviceNow();
  return kSuccess;
}

// ---- Memory --------------------------------------------------------------------------------------------------------

FAKE_CALL cuPointerGetAttribute(void* data, int attribute, DevicePtr address) {
  if (attribute != kAttributeMemoryType || !memory().isDevice(address)) return kInvalidValue;
  std::memcpy(data, &kMemoryTypeDevice, sizeof(kMemoryTypeDevice));
  return kSuccess;
}
FAKE_CALL cuMemGetAllocationGranularity(size_t* granularity, const void*, int) {
  *granularity = kGranularity;
  return kSuccess;
}
FAKE_CALL cuMemCreate(Allocation* allocation, size_t bytes, const void*, unsigned long long) {
  slow("cuMemCreate");
  return memory().create(allocation, bytes);
}
FAKE_CALL cuMemExportToShareableHandle(void* fd, Allocation allocation, int, unsigned long long) {
  return memory().exportFd(static_cast<int*>(fd), allocation);
}
FAKE_CALL cuMemImportFromShareableHandle(Allocation* allocation, void* fd, int type) {
  slow("cuMemImportFromShareableHandle");
  if (type != kHandleFileDescriptor) return kInvalidValue;
  return memory().import(allocation, static_cast<int>(reinterpret_cast<intptr_t>(fd)));
}
FAKE_CALL cuMemRelease(Allocation allocation) {
  slow("cuMemRelease");
  return memory().release(allocation);
}
FAKE_CALL cuMemAddressReserve(DevicePtr* address, size_t bytes, size_t, DevicePtr, unsigned long long) {
  slow("cuMemAddressReserve");
  return memory().reserve(address, bytes);
}
FAKE_CALL cuMemAddressFree(DevicePtr address, size_t bytes) {
  slow("cuMemAddressFree");
  return memory().unreserve(address, bytes);
}
FAKE_CALL cuMemMap(DevicePtr address, size_t bytes, size_t offset, Allocation allocation, unsigned long long) {
  slow("cuMemMap");
  return offset == 0 ? memory().map(address, bytes, allocation) : kInvalidValue;
}
FAKE_CALL cuMemUnmap(DevicePtr address, size_t bytes) {
  slow("cuMemUnmap");
  return memory().unmap(address, bytes);
}
FAKE_CALL cuMemSetAccess(DevicePtr address, size_t bytes, const AccessDescription* access, size_t count) {
  slow("cuMemSetAccess");
  return memory().setAccess(address, bytes, access, count);
}
FAKE_CALL cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  slow("cuMemHostAlloc");
  return deviceNow() < 0 ? kInvalidContext : memory().hostAlloc(address, bytes);
}
FAKE_CALL cuMemFreeHost(void* address) {
  slow("cuMemFreeHost");
  return deviceNow() < 0 ? kInvalidContext : memory().hostFree(address);
}

// ---- Streams -------------------------------------------------------------------------------------------------------

FAKE_CALL cuStreamCreate(Stream* stream, unsigned flags) {
  slow("cuStreamCreate");
  if (deviceNow() < 0) return kInvalidContext;
  if (flags != kStreamNonBlocking) breach("cuStreamCreate of a stream that waits for the legacy one");
  *stream = new CUstream_st(deviceNow());
  return kSuccess;
}
FAKE_CALL cuStreamDestroy_v2(Stream stream) {
  slow("cuStreamDestroy");
  delete stream;
  return kSuccess;
}
FAKE_CALL cuStreamQuery(Stream stream) {
  if (stream == nullptr) breach("the legacy stream is asked");
  return deviceNow() < 0 ? kInvalidContext : stream->query();
}
FAKE_CALL cuMemcpyAsync(DevicePtr to, DevicePtr from, size_t bytes, Stream stream) {
  if (stream == nullptr) breach("a copy on the legacy stream");
  ++copiesTaken;
  return deviceNow() < 0 ? kInvalidContext : stream->copy(to, from, bytes);
}
FAKE_CALL cuStreamBatchMemOp_v2(Stream stream, unsigned count, MemOp* ops, unsigned flags) {
  if (stream == nullptr) breach("stores on the legacy stream");
  if (count == 0 || count >= 256 || flags != 0) return kInvalidValue;
  ++storesTaken;
  for (unsigned i = 0; i < count; ++i) {
    if (ops[i].operation != kWriteValue64 || ops[i].flags != 0) return kInvalidValue;
    if (const Result result = stream->store(ops[i].address, ops[i].value); result != kSuccess) return result;
  }
  return deviceNow() < 0 ? kInvalidContext : kSuccess;
}
