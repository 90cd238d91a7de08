// See device.h.
#include "cuda/device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace test {
namespace {

using namespace std::chrono_literals;

// CUmemAllocationProp.
struct AllocationProperties {
  int type, handleTypes;
  cuda::Location location;
  void* unused;
  unsigned char flags[8];
};

// The calls that only a test makes.
#define TEST_CUDA_CALLS(CALL)                                                                                  \
  CALL(init, "cuInit", (unsigned))                                                                             \
  CALL(deviceGetCount, "cuDeviceGetCount", (int*))                                                             \
  CALL(primaryCtxRetain, "cuDevicePrimaryCtxRetain", (cuda::Context*, cuda::Device))                           \
  CALL(ctxSetCurrent, "cuCtxSetCurrent", (cuda::Context))                                                      \
  CALL(memGranularity, "cuMemGetAllocationGranularity", (size_t*, const AllocationProperties*, int))           \
  CALL(memCreate, "cuMemCreate", (cuda::Allocation*, size_t, const AllocationProperties*, unsigned long long)) \
  CALL(memExport, "cuMemExportToShareableHandle", (void*, cuda::Allocation, int, unsigned long long))

struct Api : cuda::Calls {
  void* object = nullptr;
  const char* missing = nullptr;
#define TEST_CUDA_MEMBER(name, symbol, parameters) cuda::Result(*name) parameters = nullptr;
  TEST_CUDA_CALLS(TEST_CUDA_MEMBER)
#undef TEST_CUDA_MEMBER

  Api() : object(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (object == nullptr) {
      missing = "libcuda.so.1";
      return;
    }
    const auto find = [this](const char* symbol, auto& entry) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(object, symbol));
      if (entry == nullptr) missing = symbol;
    };
#define TEST_CUDA_FIND(name, symbol, parameters) find(symbol, name);
    MK_LOOPBACK_CUDA_CALLS(TEST_CUDA_FIND)
    TEST_CUDA_CALLS(TEST_CUDA_FIND)
#undef TEST_CUDA_FIND
  }
};

Api& api() {
  static Api only;
  return only;
}

void check(cuda::Result result, const char* what) {
  const char* name = nullptr;
  if (result != cuda::kSuccess) api().getErrorName(result, &name);
  expect(result == cuda::kSuccess, "%s: %s (%d)", what, name != nullptr ? name : "?", result);
}

class DeviceMemory final : public MemorySource {
 public:
  mkTransportMemory_t make(size_t bytes) override { return CudaDevice::current().allocate(bytes); }
  void destroy(const mkTransportMemory_t& memory) override { CudaDevice::current().release(memory); }
} deviceMemory;

thread_local CudaDevice* currentDevice = nullptr;
thread_local cuda::Stream currentStream = nullptr;

cuda::DevicePtr toDevice(const void* address) { return reinterpret_cast<cuda::DevicePtr>(address); }

}  // namespace

int CudaDevice::count(const char** why) {
  *why = api().missing;
  int devices = 0;
  if (api().missing != nullptr) return 0;
  if (api().init(0) != cuda::kSuccess || api().deviceGetCount(&devices) != cuda::kSuccess) *why = "cuInit fails";
  return devices;
}

CudaDevice::CudaDevice(int index) : index_(index) {
  check(api().init(0), "cuInit");
  check(api().primaryCtxRetain(&context_, index_), "cuDevicePrimaryCtxRetain");
}

CudaDevice& CudaDevice::enter(int index) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<CudaDevice>> devices;
  expect(api().missing == nullptr, "no CUDA driver here: it lacks %s", api().missing);
  const std::lock_guard lock(mutex);
  std::unique_ptr<CudaDevice>& device = devices[index];
  if (device == nullptr) device.reset(new CudaDevice(index));
  check(api().ctxSetCurrent(device->context_), "cuCtxSetCurrent");
  currentDevice = device.get();
  useMemory(&deviceMemory);
  return *device;
}

CudaDevice& CudaDevice::current() {
  expect(currentDevice != nullptr, "this thread has no GPU");
  return *currentDevice;
}

mkTransportMemory_t CudaDevice::allocate(size_t bytes) {
  AllocationProperties properties = {};
  properties.type = 1;  // pinned
  properties.handleTypes = cuda::kHandleFileDescriptor;
  properties.location = {cuda::kLocationDevice, index_};
  size_t granularity = 0;
  check(api().memGranularity(&granularity, &properties, 0), "cuMemGetAllocationGranularity");
  mkTransportMemory_t memory = {};
  memory.structSize = sizeof(memory);
  memory.kind = MK_MEMORY_KIND_CUDA;
  memory.bytes = (bytes + granularity - 1) / granularity * granularity;
  cuda::Allocation allocation = 0;
  check(api().memCreate(&allocation, memory.bytes, &properties, 0), "cuMemCreate");
  check(api().memExport(&memory.fd, allocation, cuda::kHandleFileDescriptor, 0), "cuMemExportToShareableHandle");
  cuda::DevicePtr address = 0;
  check(api().memAddressReserve(&address, memory.bytes, 0, 0, 0), "cuMemAddressReserve");
  check(api().memMap(address, memory.bytes, 0, allocation, 0), "cuMemMap");
  check(api().memRelease(allocation), "cuMemRelease");  // the mapping and the descriptor keep it
  const cuda::AccessDescription access = {{cuda::kLocationDevice, index_}, cuda::kAccessReadWrite};
  check(api().memSetAccess(address, memory.bytes, &access, 1), "cuMemSetAccess");
  memory.address = reinterpret_cast<void*>(address);
  return memory;
}

void CudaDevice::release(const mkTransportMemory_t& memory) {
  // Copies may be under way while a failed test unwinds; its reason counts, not what they run into.
  if (std::uncaught_exceptions() > 0) return;
  api().memUnmap(toDevice(memory.address), memory.bytes);
  api().memAddressFree(toDevice(memory.address), memory.bytes);
  ::close(memory.fd);
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) {
  if (currentStream == nullptr) check(api().streamCreate(&currentStream, cuda::kStreamNonBlocking), "cuStreamCreate");
  check(api().memcpyAsync(toDevice(to), toDevice(from), bytes, currentStream), "cuMemcpyAsync");
  const auto deadline = Clock::now() + 10s;
  cuda::Result result;
  while ((result = api().streamQuery(currentStream)) == cuda::kNotReady) {
    expect(Clock::now() < deadline, "a copy of %zu bytes does not end", bytes);
    std::this_thread::yield();
  }
  check(result, "cuMemcpyAsync");
}

void* CudaDevice::pinned(size_t bytes) {
  void* memory = nullptr;
  check(api().memHostAlloc(&memory, bytes, cuda::kHostAllocPortable), "cuMemHostAlloc");
  return memory;
}

void CudaDevice::releasePinned(void* memory) { api().memFreeHost(memory); }

void* CudaDevice::symbol(const char* name) { return api().object != nullptr ? dlsym(api().object, name) : nullptr; }

}  // namespace test
