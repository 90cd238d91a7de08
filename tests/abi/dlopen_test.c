/* A plain C program that is not linked with the library: loads the shared object given as argument, asks for its version
 * before it looks up anything else, as ABI.md recommends to loaders, and runs one GEMM+AllReduce on one rank of the CPU
 * platform through the symbols it found.  The numbers are small integers, so the result must be exact.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "mkernel.h"

#define M 37
#define N 48
#define K 40

typedef mkResult_t (*GetVersionFn)(int*);
typedef const char* (*GetLastErrorFn)(mkComm_t);
typedef mkResult_t (*GetUniqueIdFn)(mkUniqueId_t*);
typedef mkResult_t (*InitFn)(mkComm_t*, int, mkUniqueId_t, int, const mkConfig_t*);
typedef mkResult_t (*WorkspaceFn)(mkComm_t, int, const void*, size_t*);
typedef mkResult_t (*ReserveFn)(mkComm_t, size_t);
typedef mkResult_t (*GemmFn)(mkComm_t, const mkGemmAllReduceArgs_t*, mkStream_t);
typedef mkResult_t (*AsyncErrorFn)(mkComm_t, mkResult_t*);
typedef mkResult_t (*CommFn)(mkComm_t);

static GetLastErrorFn getLastError;

static int fail(const char* what) {
  fprintf(stderr, "FAILED: %s: %s\n", what, getLastError != NULL ? getLastError(NULL) : "");
  return 1;
}

/* Stores the address of a function; ISO C has no conversion from void* to a function pointer, POSIX asks for this. */
static int lookUp(void* library, const char* name, void* function) {
  void* address = dlsym(library, name);
  if (address == NULL) {
    fprintf(stderr, "FAILED: %s\n", dlerror());
    return 1;
  }
  memcpy(function, &address, sizeof(address));
  return 0;
}

static uint16_t toBfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)(bits >> 16); /* exact for the small integers used here */
}

static int valueA(int m, int k) { return (m * 7 + k * 3) % 9 - 4; }
static int valueB(int k, int n) { return (k * 5 + n * 11) % 7 - 3; }

static mkTensor_t matrix(void* data, mkDataType_t dtype, int64_t rows, int64_t columns) {
  mkTensor_t t;
  memset(&t, 0, sizeof(t));
  t.data = data;
  t.dtype = (uint32_t)dtype;
  t.ndim = 2;
  t.dims[0] = rows;
  t.dims[1] = columns;
  return t;
}

/* Tensors start at multiples of 16 bytes. */
#define ALIGNED __attribute__((aligned(16)))
static uint16_t a[M * K] ALIGNED, b[K * N] ALIGNED;
static float c[M * N] ALIGNED;

static int countWrong(void) {
  int m, n, k, wrong = 0;
  for (m = 0; m < M; ++m)
    for (n = 0; n < N; ++n) {
      int sum = 0;
      for (k = 0; k < K; ++k) sum += valueA(m, k) * valueB(k, n);
      if (!(c[m * N + n] == (float)sum)) ++wrong;
    }
  return wrong;
}

static int multiply(void* library) {
  GetUniqueIdFn getUniqueId;
  InitFn init;
  WorkspaceFn workspace;
  ReserveFn reserve;
  GemmFn gemm;
  AsyncErrorFn asyncError;
  CommFn destroy;
  mkUniqueId_t id;
  mkConfig_t config;
  mkGemmAllReduceArgs_t args;
  mkComm_t comm = NULL;
  mkResult_t result = mkErrorInternal;
  size_t bytes = 0;
  int i, wrong;

  if (lookUp(library, "mkGetUniqueId", &getUniqueId) || lookUp(library, "mkCommInitRankConfig", &init) ||
      lookUp(library, "mkOpWorkspaceSize", &workspace) || lookUp(library, "mkCommReserve", &reserve) ||
      lookUp(library, "mkGemmAllReduce", &gemm) || lookUp(library, "mkCommGetAsyncError", &asyncError) ||
      lookUp(library, "mkCommDestroy", &destroy))
    return 1;
  if (getUniqueId(&id) != mkSuccess) return fail("mkGetUniqueId");
  MK_INIT(&config, MK_ID_CONFIG);
  config.platform = "cpu";
  if (init(&comm, 1, id, 0, &config) != mkSuccess) return fail("mkCommInitRankConfig");

  for (i = 0; i < M * K; ++i) a[i] = toBfloat16((float)valueA(i / K, i % K));
  for (i = 0; i < K * N; ++i) b[i] = toBfloat16((float)valueB(i / N, i % N));
  memset(c, 0xff, sizeof(c)); /* NaN */
  MK_INIT(&args, MK_ID_GEMM_ALL_REDUCE_ARGS);
  args.a = matrix(a, mkBfloat16, M, K);
  args.b = matrix(b, mkBfloat16, K, N);
  args.c = matrix(c, mkFloat32, M, N);
  if (workspace(comm, MK_OP_GEMM_ALL_REDUCE, &args, &bytes) != mkSuccess) return fail("mkOpWorkspaceSize");
  if (reserve(comm, bytes) != mkSuccess) return fail("mkCommReserve");
  if (gemm(comm, &args, NULL) != mkSuccess) return fail("mkGemmAllReduce");
  if (asyncError(comm, &result) != mkSuccess || result != mkSuccess) {
    fprintf(stderr, "asynchronous error %d: %s\n", (int)result, getLastError(comm));
    return fail("mkCommGetAsyncError");
  }
  wrong = countWrong();
  if (destroy(comm) != mkSuccess) return fail("mkCommDestroy");
  printf("%d x %d x %d: %d of %d values wrong\n", M, N, K, wrong, M * N);
  return wrong != 0;
}

int main(int argc, char** argv) {
  int round, version;
  if (argc != 2) {
    fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
    return 2;
  }
  /* Twice, since a program may close the library and load it again. */
  for (round = 0; round < 2; ++round) {
    GetVersionFn getVersion;
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "FAILED: %s\n", dlerror());
      return 1;
    }
    if (lookUp(library, "mkGetVersion", &getVersion)) return 1;
    version = -1;
    if (getVersion(&version) != mkSuccess || version != MK_VERSION_CODE) {
      fprintf(stderr, "FAILED: the library has version %d, the header %d\n", version, MK_VERSION_CODE);
      return 1;
    }
    if (lookUp(library, "mkGetLastError", &getLastError)) return 1;
    if (multiply(library)) return 1;
    getLastError = NULL;
    if (dlclose(library) != 0) return fail("dlclose");
  }
  return 0;
}
