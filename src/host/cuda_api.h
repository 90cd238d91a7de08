// What the CUDA platform's files share: errors of the runtime and driver as Error, the driver's functions, the current device.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "host/error.h"

namespace mk::cuda {

// Throw mkErrorUnhandledCuda: what was tried, and the runtime's or driver's words.
void check(cudaError_t e, const char* what);
void check(CUresult e, const char* what);
std::string describe(CUresult e);

// Asked of the driver at run time, so that the library loads where there is none.
struct Driver {
  decltype(&cuMemCreate) memCreate = nullptr;
  decltype(&cuMemRelease) memRelease = nullptr;
  decltype(&cuMemAddressReserve) addressReserve = nullptr;
  decltype(&cuMemAddressFree) addressFree = nullptr;
  decltype(&cuMemMap) memMap = nullptr;
  decltype(&cuMemUnmap) memUnmap = nullptr;
  decltype(&cuMemSetAccess) setAccess = nullptr;
  decltype(&cuMemExportToShareableHandle) exportHandle = nullptr;
  decltype(&cuMemImportFromShareableHandle) importHandle = nullptr;
  decltype(&cuMemRetainAllocationHandle) retainHandle = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) handleProperties = nullptr;
  decltype(&cuMemGetAddressRange) addressRange = nullptr;
  decltype(&cuPointerGetAttributes) pointerAttributes = nullptr;
  decltype(&cuDeviceGetAttribute) deviceAttribute = nullptr;
  decltype(&cuGetErrorName) errorName = nullptr;
  decltype(&cuGetErrorString) errorString = nullptr;
};
// Throws mkErrorNotSupported if the driver lacks one.
const Driver& driver();

// Makes `device` the calling thread's, where no call disturbs a stream capture.  Returns what leaveDevice() needs.
int enterDevice(int device);
void leaveDevice(int device, int before);

class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device), before_(enterDevice(device)) {}
  ~OnDevice() { leaveDevice(device_, before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const int device_, before_;
};

}  // namespace mk::cuda
