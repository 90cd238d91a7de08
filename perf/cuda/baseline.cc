// cuBLAS and NCCL by name; see baseline.h.  Their numbers are written out here, because their headers need not be installed.
#include "baseline.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace mk::perf {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;  // cuBLAS asks for 32 MiB on this architecture
constexpr int kTransposed = 1, kAsIs = 0;             // cublasOperation_t
constexpr int kComputeFp32 = 68;                      // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;
constexpr int kSum = 0;  // ncclSum

int cudaType(Type type) { return type == Type::fp32 ? CUDA_R_32F : type == Type::bf16 ? CUDA_R_16BF : CUDA_R_16F; }

// The first that loads; *why has the loader's words on those before it.
void* openFirst(const std::vector<const char*>& names, std::string* found, std::string* why) {
  for (const char* name : names) {
    if (name == nullptr || *name == '\0') continue;
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      *found = name;
      return library;
    }
    const char* text = dlerror();
    *why += (why->empty() ? "" : "; ") + std::string(text ? text : name);
  }
  return nullptr;
}

template <typename Function>
bool resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Cublas::Cublas(mkStream_t stream) {
  std::string name, why;
  void* const library = openFirst({getenv("CUBLAS_LIBRARY"), "libcublas.so.13", "libcublas.so.12"}, &name, &why);
  if (!library) {
    text_ = "no cuBLAS (" + why + "; CUBLAS_LIBRARY may name it)";
    return;
  }
  int (*create)(void**) = nullptr;
  int (*setStream)(void*, mkStream_t) = nullptr;
  int (*setWorkspace)(void*, void*, size_t) = nullptr;
  int (*getVersion)(void*, int*) = nullptr;
  if (!resolve(library, "cublasCreate_v2", &create) || !resolve(library, "cublasDestroy_v2", &destroy_) ||
      !resolve(library, "cublasSetStream_v2", &setStream) ||
      !resolve(library, "cublasSetWorkspace_v2", &setWorkspace) ||
      !resolve(library, "cublasGetVersion_v2", &getVersion) || !resolve(library, "cublasGemmEx", &gemm_)) {
    text_ = "no cuBLAS (" + name + " lacks a function)";
    return;
  }
  void* handle = nullptr;
  int version = 0;
  const int status = create(&handle);
  // A workspace of its own keeps it from allocating while a graph is captured.
  if (status != 0 || setStream(handle, stream) != 0 || cudaMalloc(&workspace_, kWorkspaceBytes) != cudaSuccess ||
      setWorkspace(handle, workspace_, kWorkspaceBytes) != 0 || getVersion(handle, &version) != 0) {
    text_ = "no cuBLAS (" + name + ": cannot be set up, status " + std::to_string(status) + ")";
    return;
  }
  handle_ = handle;
  text_ = "cuBLAS " + std::to_string(version) + " (" + name + ")";
}

Cublas::~Cublas() {
  if (handle_) destroy_(handle_);
  cudaFree(workspace_);
}

int Cublas::multiply(const Options& o, const void* a, const void* b, void* c, int64_t m, int64_t n, int64_t k,
                     float beta) const {
  // cuBLAS counts by columns: a row-major C is its transpose, C' = B' A'.
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
  const int strideA = std::max(1, depth), strideB = o.transB ? strideA : columns;
  const int in = cudaType(o.in);
  return gemm_(handle_, o.transB ? kTransposed : kAsIs, kAsIs, columns, rows, depth, &o.alpha, b, in, strideB, a, in,
               strideA, &beta, c, cudaType(o.out), columns, kComputeFp32, kDefaultAlgorithm);
}

Nccl::Nccl(World& world) {
  struct Id {
    char bytes[128];
  };
  std::string name, why;
  void* const library = openFirst({getenv("NCCL_LIBRARY"), "libnccl.so.2"}, &name, &why);
  int (*getId)(Id*) = nullptr;
  int (*init)(void**, int, Id, int) = nullptr;
  int (*getVersion)(int*) = nullptr;
  const bool found = library && resolve(library, "ncclGetUniqueId", &getId) &&
                     resolve(library, "ncclCommInitRank", &init) && resolve(library, "ncclGetVersion", &getVersion) &&
                     resolve(library, "ncclCommDestroy", &destroy_) && resolve(library, "ncclAllReduce", &allReduce_) &&
                     resolve(library, "ncclReduceScatter", &reduceScatter_) &&
                     resolve(library, "ncclAllGather", &allGather_);
  if (!world.all(found) || !found) {
    text_ = found ? "no NCCL (another rank has none)" : "no NCCL (" + why + "; NCCL_LIBRARY may name it)";
    return;
  }
  world.phase("NCCL's communicator");
  Id id = {};
  int result = world.rank() == 0 ? getId(&id) : 0;
  if (!world.all(result == 0)) {
    text_ = "no NCCL (ncclGetUniqueId: result " + std::to_string(result) + " on rank 0)";
    return;
  }
  world.broadcast(&id, sizeof(id));
  void* comm = nullptr;
  result = init(&comm, world.size(), id, world.rank());
  if (!world.all(result == 0)) {
    text_ = "no NCCL (ncclCommInitRank: result " + std::to_string(result) + " on this rank)";
    if (result == 0) destroy_(comm);
    return;
  }
  comm_ = comm;
  int version = 0;
  getVersion(&version);
  text_ = "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
          std::to_string(version % 100) + " (" + name + ")";
}

Nccl::~Nccl() {
  if (comm_) destroy_(comm_);
}

int Nccl::allReduce(Type type, void* data, int64_t count, mkStream_t stream) const {
  return allReduce_(data, data, static_cast<size_t>(count), static_cast<int>(info(type).dtype), kSum, comm_, stream);
}

int Nccl::reduceScatter(Type type, const void* data, void* part, int64_t count, mkStream_t stream) const {
  return reduceScatter_(data, part, static_cast<size_t>(count), static_cast<int>(info(type).dtype), kSum, comm_,
                        stream);
}

int Nccl::allGather(Type type, const void* part, void* data, int64_t count, mkStream_t stream) const {
  return allGather_(part, data, static_cast<size_t>(count), static_cast<int>(info(type).dtype), comm_, stream);
}

}  // namespace mk::perf
