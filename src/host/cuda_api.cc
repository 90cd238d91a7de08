#include "host/cuda_api.h"

namespace mk::cuda {

void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // or the caller's next check would find it
  fail(mkErrorUnhandledCuda, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

std::string describe(CUresult e) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver().errorName(e, &name) != CUDA_SUCCESS) return format("driver error %d", static_cast<int>(e));
  driver().errorString(e, &text);
  return format("%s (%s)", text != nullptr ? text : "", name);
}

void check(CUresult e, const char* what) {
  if (e != CUDA_SUCCESS) fail(mkErrorUnhandledCuda, "%s: %s", what, describe(e).c_str());
}

const Driver& driver() {
  static const Driver table = [] {
    Driver d;
    const auto find = [](const char* name, auto* function) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
      const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
      if (e != cudaSuccess || status != cudaDriverEntryPointSuccess || found == nullptr)
        fail(mkErrorNotSupported, "the driver has no %s; needed: a driver for CUDA 12.0 or later", name);
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    };
    find("cuMemCreate", &d.memCreate);
    find("cuMemRelease", &d.memRelease);
    find("cuMemAddressReserve", &d.addressReserve);
    find("cuMemAddressFree", &d.addressFree);
    find("cuMemMap", &d.memMap);
    find("cuMemUnmap", &d.memUnmap);
    find("cuMemSetAccess", &d.setAccess);
    find("cuMemExportToShareableHandle", &d.exportHandle);
    find("cuMemImportFromShareableHandle", &d.importHandle);
    find("cuMemRetainAllocationHandle", &d.retainHandle);
    find("cuMemGetAllocationPropertiesFromHandle", &d.handleProperties);
    find("cuMemGetAddressRange", &d.addressRange);
    find("cuPointerGetAttributes", &d.pointerAttributes);
    find("cuDeviceGetAttribute", &d.deviceAttribute);
    find("cuGetErrorName", &d.errorName);
    find("cuGetErrorString", &d.errorString);
    return d;
  }();
  return table;
}

int enterDevice(int device) {
  int before = -1;
  check(cudaGetDevice(&before), "asking for the current device");
  if (before != device) check(cudaSetDevice(device), "making the communicator's device current");
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "allowing calls beside a capture");
  return before << 2 | static_cast<int>(mode);
}

void leaveDevice(int device, int before) {
  auto mode = static_cast<cudaStreamCaptureMode>(before & 3);
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  if (before >> 2 != device) static_cast<void>(cudaSetDevice(before >> 2));
}

}  // namespace mk::cuda
