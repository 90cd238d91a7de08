// Kernels of the data and the checks; see device.h.  Plain code, written for being right; times are not theirs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/device.h"

namespace mk::perf {
namespace {

constexpr int kBlocks = 528, kThreads = 256;
constexpr int kTile = 64, kDepth = 16;  // of the reference product: 256 threads, 4 x 4 elements each

__host__ __device__ inline uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ x >> 31;
}
constexpr uint64_t kStep = 0x9e3779b97f4a7c15ull;

// A sum of four uniform numbers of 16 bits.
__device__ float normal(uint64_t seed, uint64_t index) {
  const uint64_t bits = mix(seed + (index + 1) * kStep);
  float sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>(bits >> (16 * part) & 0xffff) * 0x1p-16f - 0.5f;
  return sum * 0.2165f;
}
__device__ void store(Type type, void* data, int64_t index, float value) {
  if (type == Type::fp32) {
    static_cast<float*>(data)[index] = value;
  } else if (type == Type::bf16) {
    static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16(value);
  } else {
    static_cast<__half*>(data)[index] = __float2half(value);
  }
}
__device__ float load(Type type, const void* data, int64_t index) {
  if (type == Type::fp32) return static_cast<const float*>(data)[index];
  if (type == Type::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
  return __half2float(static_cast<const __half*>(data)[index]);
}
__device__ float rounded(Type type, float value) {
  if (type == Type::fp32) return value;
  return type == Type::bf16 ? __bfloat162float(__float2bfloat16(value)) : __half2float(__float2half(value));
}

// The first and the last part give the first and the last row.
__host__ __device__ inline int64_t sampledRow(const RowSample& sample, int64_t index) {
  if (sample.count >= sample.m || index == 0) return index;
  if (index == sample.count - 1) return sample.m - 1;
  const int64_t first = index * sample.m / sample.count, next = (index + 1) * sample.m / sample.count;
  const uint64_t offset =
      mix(sample.seed + static_cast<uint64_t>(index + 1) * kStep) % static_cast<uint64_t>(next - first);
  return first + static_cast<int64_t>(offset);
}

__device__ int64_t firstIndex() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }
__device__ int64_t indexStep() { return gridDim.x * int64_t{blockDim.x}; }

__global__ void fillKernel(Type type, void* data, int64_t count, uint64_t seed, int64_t first) {
  for (int64_t i = firstIndex(); i < count; i += indexStep())
    store(type, data, i, normal(seed, static_cast<uint64_t>(first + i)));
}

__global__ void poisonKernel(Type type, void* data, int64_t count) {
  for (int64_t i = firstIndex(); i < count; i += indexStep()) {
    if (type == Type::fp32) {
      static_cast<uint32_t*>(data)[i] = 0x7fc0deadu;
    } else {
      static_cast<uint16_t*>(data)[i] = type == Type::bf16 ? 0x7fd5 : 0x7ed5;
    }
  }
}

__global__ void fillRowsKernel(Type type, void* data, RowSample sample, int64_t k, uint64_t seed) {
  for (int64_t i = firstIndex(); i < sample.count * k; i += indexStep()) {
    const int64_t source = (sample.first + sampledRow(sample, i / k)) * k + i % k;
    store(type, data, i, normal(seed, static_cast<uint64_t>(source)));
  }
}

// The sum over the block, in its first thread.
__device__ double blockSum(double value) {
  __shared__ double sums[kThreads];
  __syncthreads();
  sums[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return sums[0];
}

// A block to a vector.
__global__ void normsKernel(Type type, const void* data, int64_t vectors, int64_t length, int64_t vectorStride,
                            int64_t elementStride, double* sums) {
  for (int64_t v = blockIdx.x; v < vectors; v += gridDim.x) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
      const double x = load(type, data, v * vectorStride + i * elementStride);
      sum += x * x;
    }
    sum = blockSum(sum);
    if (threadIdx.x == 0) sums[v] += sum;
  }
}

__global__ void productKernel(Type type, const void* a, const void* b, bool bTransposed, int64_t rows, int64_t n,
                              int64_t k, double* sums, double* magnitudes) {
  __shared__ double partA[kDepth][kTile + 1], partB[kDepth][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  const int64_t row0 = blockIdx.y * int64_t{kTile}, column0 = blockIdx.x * int64_t{kTile};
  double d[4][4] = {};
  for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kDepth; e += kThreads) {
      const int depth = e % kDepth, line = e / kDepth;
      const bool inside = k0 + depth < k;
      partA[depth][line] = inside && row0 + line < rows ? load(type, a, (row0 + line) * k + k0 + depth) : 0;
      if (bTransposed) {
        partB[depth][line] = inside && column0 + line < n ? load(type, b, (column0 + line) * k + k0 + depth) : 0;
      }
    }
    if (!bTransposed) {
      for (int e = static_cast<int>(threadIdx.x); e < kTile * kDepth; e += kThreads) {
        const int line = e % kTile, depth = e / kTile;
        partB[depth][line] =
            k0 + depth < k && column0 + line < n ? load(type, b, (k0 + depth) * n + column0 + line) : 0;
      }
    }
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) d[i][j] += partA[depth][y + 16 * i] * partB[depth][x + 16 * j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int64_t row = row0 + y + 16 * i, column = column0 + x + 16 * j;
      if (row >= rows || column >= n) continue;
      sums[row * n + column] += d[i][j];
      magnitudes[row * n + column] += fabs(d[i][j]);
    }
  }
}

__global__ void judgeKernel(Type out, const void* c, RowSample sample, int64_t n, const double* sums,
                            const double* magnitudes, const double* rowNorms, const double* columnNorms, Bound bound,
                            uint64_t oldSeed, bool bias, uint64_t biasSeed, Judged* judged) {
  double error2 = 0, reference2 = 0, worst = 0;
  unsigned long long wrong = 0;
  for (int64_t i = firstIndex(); i < sample.count * n; i += indexStep()) {
    const int64_t at = i / n, column = i % n;
    const int64_t element = sampledRow(sample, at) * n + column;
    const double product = bound.alpha * sums[i];
    const double old =
        bound.beta != 0 ? bound.beta * rounded(out, normal(oldSeed, static_cast<uint64_t>(element))) : 0.0;
    const double added = bias ? rounded(out, normal(biasSeed, static_cast<uint64_t>(column))) : 0.0;
    const double reference = product + old + added;
    const double off = fabs(bound.alpha) * (bound.accumulation * sqrt(rowNorms[at] * columnNorms[column]) +
                                            bound.wire * magnitudes[i]) +
                       0x1p-22 * (fabs(product) + fabs(old) + fabs(added)) + bound.fixed;
    const double limit = 1.01 * off + bound.output * (fabs(reference) + off) + bound.outputUnderflow;
    const double difference = fabs(load(out, c, element) - reference);
    if (!(difference <= limit)) ++wrong;  // written so that NaN is wrong
    const double share = difference / limit;
    worst = isnan(share) ? static_cast<double>(INFINITY) : fmax(worst, share);
    error2 += difference * difference;
    reference2 += reference * reference;
  }
  if (wrong != 0) atomicAdd(&judged->wrong, wrong);
  // Bits of numbers that are not negative are in the numbers' order.
  atomicMax(reinterpret_cast<unsigned long long*>(&judged->worst),
            static_cast<unsigned long long>(__double_as_longlong(worst)));
  error2 = blockSum(error2);
  if (threadIdx.x == 0) atomicAdd(&judged->error, error2);
  reference2 = blockSum(reference2);
  if (threadIdx.x == 0) atomicAdd(&judged->reference, reference2);
}

__global__ void scanKernel(Type type, const uint64_t* words, int64_t count, Scanned* scanned) {
  unsigned long long hash = 0, nan = 0;
  for (int64_t i = firstIndex(); i < count; i += indexStep()) {
    const uint64_t word = words[i];
    hash += mix(word + mix((static_cast<uint64_t>(i) + 1) * kStep));
    if (type == Type::fp32) {
      for (int part = 0; part < 2; ++part) nan += (word >> (32 * part) & 0x7fffffffu) > 0x7f800000u;
    } else {
      const uint32_t infinity = type == Type::bf16 ? 0x7f80 : 0x7c00;
      for (int part = 0; part < 4; ++part) nan += (word >> (16 * part) & 0x7fffu) > infinity;
    }
  }
  atomicAdd(&scanned->hash, hash);
  if (nan != 0) atomicAdd(&scanned->nan, nan);
}

__global__ void changedKernel(const unsigned char* data, int64_t bytes, int value, unsigned long long* changed) {
  for (int64_t i = firstIndex(); i < bytes; i += indexStep()) {
    if (data[i] != value) atomicAdd(changed, 1);
  }
}

__global__ void differentKernel(const char* a, const char* b, int64_t count, int64_t element,
                                unsigned long long* different) {
  for (int64_t i = firstIndex(); i < count; i += indexStep()) {
    bool same = true;
    for (int64_t byte = i * element; byte < (i + 1) * element; ++byte) same = same && a[byte] == b[byte];
    if (!same) atomicAdd(different, 1);
  }
}

}  // namespace

void fillNormal(Type type, void* data, int64_t count, uint64_t seed, mkStream_t stream, int64_t first) {
  fillKernel<<<kBlocks, kThreads, 0, stream>>>(type, data, count, seed, first);
}
void poison(Type type, void* data, int64_t count, mkStream_t stream) {
  poisonKernel<<<kBlocks, kThreads, 0, stream>>>(type, data, count);
}
int64_t rowOf(const RowSample& sample, int64_t index) { return sampledRow(sample, index); }
void fillRows(Type type, void* data, const RowSample& sample, int64_t k, uint64_t seed, mkStream_t stream) {
  fillRowsKernel<<<kBlocks, kThreads, 0, stream>>>(type, data, sample, k, seed);
}
void addNorms(Type type, const void* data, int64_t vectors, int64_t length, int64_t vectorStride, int64_t elementStride,
              double* sums, mkStream_t stream) {
  normsKernel<<<4 * kBlocks, kThreads, 0, stream>>>(type, data, vectors, length, vectorStride, elementStride, sums);
}
void addProduct(Type type, const void* a, const void* b, bool bTransposed, int64_t rows, int64_t n, int64_t k,
                double* sums, double* magnitudes, mkStream_t stream) {
  const dim3 grid(static_cast<unsigned>((n + kTile - 1) / kTile), static_cast<unsigned>((rows + kTile - 1) / kTile));
  productKernel<<<grid, kThreads, 0, stream>>>(type, a, b, bTransposed, rows, n, k, sums, magnitudes);
}
void judge(Type out, const void* c, const RowSample& sample, int64_t n, const double* sums, const double* magnitudes,
           const double* rowNorms, const double* columnNorms, const Bound& bound, uint64_t oldSeed, bool bias,
           uint64_t biasSeed, Judged* judged, mkStream_t stream) {
  judgeKernel<<<kBlocks, kThreads, 0, stream>>>(out, c, sample, n, sums, magnitudes, rowNorms, columnNorms, bound,
                                                oldSeed, bias, biasSeed, judged);
}
void scan(Type type, const void* c, int64_t bytes, Scanned* scanned, mkStream_t stream) {
  scanKernel<<<kBlocks, kThreads, 0, stream>>>(type, static_cast<const uint64_t*>(c), bytes / 8, scanned);
}
void countChanged(const void* data, int64_t bytes, int value, unsigned long long* changed, mkStream_t stream) {
  changedKernel<<<4, kThreads, 0, stream>>>(static_cast<const unsigned char*>(data), bytes, value, changed);
}
void countDifferent(const void* a, const void* b, int64_t bytes, int64_t element, unsigned long long* different,
                    mkStream_t stream) {
  differentKernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<const char*>(a), static_cast<const char*>(b),
                                                    bytes / element, element, different);
}

}  // namespace mk::perf
