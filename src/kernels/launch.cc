// Host side of all operations' launches: which devices can run them, loading, tensor maps, the launch itself.
#include "kernels/launch.h"

#include <cstdarg>
#include <cstdio>
#include <utility>

#include "kernels/launch_tools.h"

namespace mk::kernels {

namespace {

constexpr int kThreads = 384;

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char* format, ...) {
  char buffer[512];
  va_list args;
  va_start(args, format);
  vsnprintf(buffer, sizeof(buffer), format, args);
  va_end(args);
  return buffer;
}
std::string failed(const char* call, cudaError_t e) {
  return text("%s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Asked of the driver at run time, so that the library loads where there is none.
EncodeTiled encodeTiled(std::string* why) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t e =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
  if (e != cudaSuccess) {
    *why = failed("looking up cuTensorMapEncodeTiled", e);
  } else if (found == nullptr || status != cudaDriverEntryPointSuccess) {
    *why = "the driver has no cuTensorMapEncodeTiled; needed: a driver for CUDA 12.0 or later";
  }
  return reinterpret_cast<EncodeTiled>(found);
}

std::string load(const void* kernel, uint32_t sharedBytes, KernelDevice* device) {
  cudaError_t e =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sharedBytes));
  if (e != cudaSuccess) return failed("setting a kernel's shared memory", e);
  cudaFuncAttributes attributes = {};  // asking for them loads the kernel
  e = cudaFuncGetAttributes(&attributes, kernel);
  if (e != cudaSuccess) return failed("loading a kernel", e);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(sched::kClusterBlocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sharedBytes;
  int clusters = 0;
  e = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (e != cudaSuccess) return failed("asking how many clusters fit", e);
  if (device->clusters == 0 || static_cast<uint32_t>(clusters) < device->clusters)
    device->clusters = static_cast<uint32_t>(clusters);
  return "";
}

template <class Params>
std::string load(KernelDevice* device) {
  for (const Type in : {Type::bf16, Type::f16}) {
    for (const bool general : {false, true}) {
      for (const KernelEntry<Params>& entry : kernelTable<Params>(in, general).entries) {
        if (entry.kernel == nullptr) continue;
        std::string why = load(reinterpret_cast<const void*>(entry.kernel), entry.sharedBytes, device);
        if (!why.empty()) return why;
      }
    }
  }
  return "";
}

}  // namespace

std::string unsupported(int device) {
  int major = 0, minor = 0;
  cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (e != cudaSuccess) return failed("asking for the compute capability", e);
  if (major != 9 || minor != 0)
    return text("device %d has compute capability %d.%d; this build has kernels for 9.0 (Hopper)", device, major,
                minor);
  return "";
}

std::string loadKernels(KernelDevice* device) {
  device->clusters = 0;
  for (const auto all : {load<GemmArParams>, load<GemmRsParams>, load<AgGemmParams>}) {
    if (std::string why = all(device); !why.empty()) return why;
  }
  if (device->clusters == 0) return "not one cluster of two blocks fits on the device";
  return "";
}

sched::GemmChoice clusterChoice(const sched::KernelChoice& kernel, sched::GemmChoice choice) {
  choice.tileM = kernel.tileM();
  choice.tileN = kernel.tileN;
  choice.spanning = kernel.spanning ? sched::Spanning::always : sched::Spanning::never;
  choice.turned = kernel.turned;
  choice.ownUnit = kernel.ownUnit;
  choice.ownLag = kernel.ownLag;
  // Also asked for as mkTuneQuery tells it.
  if (kernel.chunkRows != 0 && (choice.chunkRows == 0 || choice.chunkRows == kernel.chunkRows)) {
    choice.chunkRows = kernel.chunkRows;
    choice.sliceCols = kernel.sliceCols;
    choice.groupChunks = kernel.groupChunks;
  }
  choice.parts = sched::kClusterBlocks * kernel.flagBands;
  return choice;
}

MapMaker::MapMaker(void* spare) : spare_(spare) {}

void MapMaker::encode(CUtensorMap* map, const Matrix& m, uint32_t boxRows, uint64_t planes, bool readOften,
                      uint32_t bandCols) {
  if (!why_.empty()) return;
  static const EncodeTiled encodeMap = encodeTiled(&why_);
  if (encodeMap == nullptr) {
    if (why_.empty()) why_ = "the driver has no cuTensorMapEncodeTiled";
    return;
  }
  const uint32_t bytes = typeBytes(m.type);
  const bool empty = m.rows == 0 || m.cols == 0 || m.base == nullptr;
  const bool bands = bandCols != 0 && !empty;
  const cuuint64_t row = empty ? 16 : m.stride * bytes;
  cuuint64_t dims[3] = {empty ? 16 / bytes : m.cols, empty ? 1 : m.rows, empty || planes == 0 ? 1 : planes};
  cuuint64_t strides[2] = {row, row * dims[1]};
  cuuint32_t box[3] = {128 / bytes, boxRows, 1};
  if (bandCols != 0) {
    dims[2] = dims[1];
    dims[1] = bands ? m.cols / bandCols : 1;
    if (bands) dims[0] = bandCols;
    strides[0] = bands ? uint64_t{bandCols} * bytes : row;
    strides[1] = row;
    std::swap(box[1], box[2]);
  }
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUtensorMapDataType dataType = m.type == Type::f32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                       : m.type == Type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  void* const address = empty ? spare_ : const_cast<void*>(m.base);
  const CUresult r = encodeMap(map, dataType, planes == 0 && bandCols == 0 ? 2 : 3, address, dims, strides, box, steps,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               readOften ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    why_ =
        text("tensor map of %s (%llu times %llu x %llu, row stride %llu elements of %u bytes, at %p): driver error %d",
             m.name, static_cast<unsigned long long>(planes), static_cast<unsigned long long>(m.rows),
             static_cast<unsigned long long>(m.cols), static_cast<unsigned long long>(m.stride), bytes, m.base,
             static_cast<int>(r));
}

std::string launchKernel(const char* name, const void* kernel, uint32_t sharedBytes, void* params,
                         const sched::KernelChoice& choice, cudaStream_t stream) {
  if (kernel == nullptr)
    return text("launching %s: there is no kernel for tiles of %u x %u%s%s (an error of the library)", name,
                choice.tileM(), choice.tileN, choice.turned ? ", turned" : "",
                choice.spanning ? ", that span shards" : "");
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(sched::kClusterBlocks * (choice.clusters + choice.receiveClusters + choice.copyClusters));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  void* args[] = {params};
  const cudaError_t e = cudaLaunchKernelExC(&config, kernel, args);
  if (e != cudaSuccess) return failed((std::string("launching ") + name).c_str(), e);
  return "";
}

}  // namespace mk::kernels
