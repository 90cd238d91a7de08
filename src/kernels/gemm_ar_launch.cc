// Host side of the GEMM+AllReduce launch: which devices can run it, tensor maps, the kernel's instance and its launch.
#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "kernels/gemm_ar_table.h"

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

// A row-major matrix in boxes of 128 bytes by `boxRows`.  An empty one stands as one of the 16 bytes at `spare`: nothing is
// stored to it, and what is loaded lies past its end.
std::string encode(EncodeTiled encodeMap, CUtensorMap* map, const char* name, Type type, const void* base,
                   uint64_t rows, uint64_t cols, uint64_t stride, uint32_t boxRows, bool readOften, void* spare) {
  const uint32_t bytes = typeBytes(type);
  const bool empty = rows == 0 || cols == 0 || base == nullptr;
  const cuuint64_t dims[2] = {empty ? 16 / bytes : cols, empty ? 1 : rows};
  const cuuint64_t strides[1] = {empty ? 16 : stride * bytes};
  const cuuint32_t box[2] = {128 / bytes, boxRows}, steps[2] = {1, 1};
  const CUtensorMapDataType dataType = type == Type::f32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                       : type == Type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                            : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  void* const address = empty ? spare : const_cast<void*>(base);
  const CUresult r = encodeMap(map, dataType, 2, address, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_128B,
                               readOften ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r == CUDA_SUCCESS) return "";
  return text("tensor map of %s (%llu x %llu, row stride %llu elements of %u bytes, at %p): driver error %d", name,
              static_cast<unsigned long long>(rows), static_cast<unsigned long long>(cols),
              static_cast<unsigned long long>(stride), bytes, base, static_cast<int>(r));
}

const GemmArTable& tableOf(Type in, bool general) {
  if (in == Type::bf16) return general ? gemmArBf16General() : gemmArBf16Lean();
  return general ? gemmArF16General() : gemmArF16Lean();
}

const GemmArEntry& entryOf(const sched::KernelChoice& choice, const GemmArOperands& op, bool general) {
  return tableOf(op.in, general).entries[(choice.tileN == 256 ? 2 : 0) + (op.bTransposed ? 0 : 1)];
}

}  // namespace

std::string gemmArUnsupported(int device) {
  int major = 0, minor = 0;
  cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (e != cudaSuccess) return failed("asking for the compute capability", e);
  if (major != 9 || minor != 0)
    return text("device %d has compute capability %d.%d; this build has kernels for 9.0 (Hopper)", device, major,
                minor);
  return "";
}

std::string loadGemmAr(GemmArDevice* device) {
  device->clusters = 0;
  for (const int table : {0, 1, 2, 3}) {
    for (const GemmArEntry& entry : tableOf(table / 2 == 0 ? Type::bf16 : Type::f16, table % 2 != 0).entries) {
      const void* const kernel = reinterpret_cast<const void*>(entry.kernel);
      cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(entry.sharedBytes));
      if (e != cudaSuccess) return failed("setting a kernel's shared memory", e);
      cudaFuncAttributes attributes = {};  // asking for them loads the kernel
      e = cudaFuncGetAttributes(&attributes, kernel);
      if (e != cudaSuccess) return failed("loading a kernel", e);
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(2);
      config.blockDim = dim3(kThreads);
      config.dynamicSmemBytes = entry.sharedBytes;
      int clusters = 0;
      e = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
      if (e != cudaSuccess) return failed("asking how many clusters fit", e);
      if (device->clusters == 0 || static_cast<uint32_t>(clusters) < device->clusters)
        device->clusters = static_cast<uint32_t>(clusters);
    }
  }
  if (device->clusters == 0) return "not one cluster of two blocks fits on the device";
  return "";
}

sched::GemmChoice gemmArChoice(const sched::KernelChoice& kernel, sched::GemmChoice choice) {
  choice.tileM = sched::kClusterRows;
  choice.tileN = kernel.tileN;
  choice.parts = sched::kClusterBlocks * kernel.flagBands;
  return choice;
}

std::string launchGemmAr(const RankMemory& memory, const sched::GemmArPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const GemmArOperands& op, cudaStream_t stream) {
  std::string why;
  static const EncodeTiled encodeMap = encodeTiled(&why);
  if (encodeMap == nullptr) return why.empty() ? "the driver has no cuTensorMapEncodeTiled" : why;

  GemmArParams p = {};
  const uint64_t m = plan.shape.m, n = plan.shape.n;
  p.memory = memory;
  p.plan = plan;
  p.order = sched::TileOrder(plan);
  p.choice = choice;
  p.operands = op;
  p.partialFlags = plan.arrivalWords();
  p.outFlags = plan.outFlagBase();
  p.stagedFlags = plan.stagedFlagBase();
  p.stage = plan.stageBase();
  p.ownedParts = static_cast<uint32_t>(plan.ownedTiles() * sched::kClusterBlocks);
  for (uint32_t l = 0; l < memory.place.locals; ++l) p.owners |= plan.chunks.ownedTiles(l) != 0 ? 1u << l : 0;
  p.hash = hash;
  p.kSteps = static_cast<uint32_t>(sched::larger(1, sched::ceilDiv(op.k, 64)));
  p.kFirst = op.k == 0 ? 1 : 0;
  why = encode(encodeMap, &p.a, "A", op.in, op.a, m, op.k, op.aStride, 128, true, memory.own);
  if (why.empty()) {
    why = op.bTransposed
              ? encode(encodeMap, &p.b, "B", op.in, op.b, n, op.k, op.bStride, choice.tileN / 2, true, memory.own)
              : encode(encodeMap, &p.b, "B", op.in, op.b, op.k, n, op.bStride, 64, true, memory.own);
  }
  if (why.empty()) why = encode(encodeMap, &p.c, "C", op.out, op.c, m, n, op.cStride, 64, false, memory.own);
  const bool staged = plan.staged();
  for (uint32_t l = 0; why.empty() && l < memory.place.locals; ++l) {
    if (l != memory.place.local && !staged)
      why = encode(encodeMap, &p.peerC[l], "a peer's C", op.out, op.peerC[l], m, n, op.cStride, 16, false, memory.own);
  }
  if (!why.empty()) return why;

  const bool plain = op.alpha == 1.0f && op.beta == 0.0f && op.bias == nullptr;
  const bool general = plan.multiNode() || staged || !plain || op.out == Type::f32 || op.wire == Type::f32;
  const GemmArEntry& entry = entryOf(choice, op, general);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(sched::kClusterBlocks * (choice.clusters + choice.receiveClusters + choice.copyClusters));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = entry.sharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  void* args[] = {&p};
  const cudaError_t e = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(entry.kernel), args);
  if (e != cudaSuccess) return failed("launching GEMM+AllReduce", e);
  return "";
}

}  // namespace mk::kernels
