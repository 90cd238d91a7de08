#include "world.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mk::kernels::test {

void check(cudaError_t e, const char* what, int line) {
  if (e == cudaSuccess) return;
  std::printf("FAIL line %d: %s: %s\n", line, what, cudaGetErrorString(e));
  std::fflush(stdout);
  _exit(1);
}

namespace {

constexpr uint64_t kHostWordsAt = 100000;  // in a rank's private words

const char* nameOf(Type t) { return t == Type::f32 ? "f32" : t == Type::bf16 ? "bf16" : "f16"; }

__device__ float random(uint64_t i, uint32_t seed) {  // about normal, sigma 1/8
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + (static_cast<uint64_t>(seed) << 40);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  float sum = 0;
  for (int x = 0; x < 4; ++x) sum += static_cast<float>(z >> (16 * x) & 0xffff) * (1.0f / 65536.0f) - 0.5f;
  return sum * 0.2165f;
}
__device__ float load(const void* p, uint64_t i, Type t) {
  if (t == Type::f32) return static_cast<const float*>(p)[i];
  if (t == Type::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}
__device__ void put(void* p, uint64_t i, Type t, float v) {
  if (t == Type::f32)
    static_cast<float*>(p)[i] = v;
  else if (t == Type::bf16)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(v);
  else
    static_cast<__half*>(p)[i] = __float2half(v);
}
__global__ void fillKernel(void* p, uint64_t count, Type t, uint32_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x)
    put(p, i, t, random(i, seed));
}
// C[row * n + col] in fp32, block of 16 x 16 threads, 4 x 4 elements each.
__global__ void referenceKernel(const void* a, const void* b, float* c, uint64_t m, uint64_t n, uint64_t k, Type t,
                                bool transposed) {
  __shared__ float as[16][65], bs[16][65];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const uint64_t row0 = blockIdx.y * 64ull, col0 = blockIdx.x * 64ull;
  float d[4][4] = {};
  for (uint64_t k0 = 0; k0 < k; k0 += 16) {
    for (int x = threadIdx.x; x < 1024; x += 256) {
      const int kk = x % 16, r = x / 16;
      as[kk][r] = row0 + r < m && k0 + kk < k ? load(a, (row0 + r) * k + k0 + kk, t) : 0;
      const uint64_t at = transposed ? (col0 + r) * k + k0 + kk : (k0 + kk) * n + col0 + r;
      bs[kk][r] = col0 + r < n && k0 + kk < k ? load(b, at, t) : 0;
    }
    __syncthreads();
    for (int kk = 0; kk < 16; ++kk)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) d[i][j] += as[kk][ty + 16 * i] * bs[kk][tx + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j)
      if (row0 + ty + 16 * i < m && col0 + tx + 16 * j < n) c[(row0 + ty + 16 * i) * n + col0 + tx + 16 * j] = d[i][j];
}
__device__ float roundTo(float v, Type t) {
  if (t == Type::f32) return v;
  return t == Type::bf16 ? __bfloat162float(__float2bfloat16(v)) : __half2float(__float2half(v));
}
constexpr uint32_t kSeedC = 77;
__global__ void prepareKernel(char* c, uint64_t m, uint64_t n, uint64_t stride, Type t, bool values) {
  const uint64_t total = (m + 1) * stride;
  const int bytes = t == Type::f32 ? 4 : 2;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < total; i += uint64_t{gridDim.x} * blockDim.x) {
    for (int x = 0; x < bytes; ++x) c[i * bytes + x] = static_cast<char>(0xff);
    if (values && i / stride < m && i % stride < n) put(c, i, t, random(i, kSeedC));
  }
}
// counts: wrong, different, outside, largest error over its bound in thousandths.
struct Results {
  const char* c[kMostRanks];
  const float* partial[kMostRanks];
  int ranks;
};
__global__ void judgeKernel(Results r, const char* bias, uint64_t m, uint64_t n, uint64_t stride, Type t, float alpha,
                            float beta, float unit, float floor, int roundings, unsigned long long* counts) {
  const uint64_t total = (m + 1) * stride;
  const int bytes = t == Type::f32 ? 4 : 2;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < total; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t row = i / stride, col = i % stride;
    if (row >= m || col >= n) {
      for (int x = 0; x < bytes; ++x)
        for (int q = 0; q < r.ranks; ++q)
          if (r.c[q][i * bytes + x] != static_cast<char>(0xff)) atomicAdd(counts + 2, 1);
      continue;
    }
    float reference = 0, size = 0;
    for (int q = 0; q < r.ranks; ++q) {
      reference += r.partial[q][row * n + col];
      size += fabsf(r.partial[q][row * n + col]);
    }
    reference *= alpha;
    size *= fabsf(alpha);
    if (beta != 0) {
      const float old = roundTo(random(i, kSeedC), t);
      reference += beta * old;
      size += fabsf(beta * old);
    }
    if (bias != nullptr) {
      reference += load(bias, col, Type::f32);
      size += fabsf(load(bias, col, Type::f32));
    }
    const float got = load(r.c[0], i, t);
    // What travels and the result are rounded once each.
    const float bound = 1.02f * unit * (static_cast<float>(roundings) * size + fabsf(reference)) + floor;
    const float error = fabsf(got - reference) / bound;
    if (!(error <= 1)) atomicAdd(counts, 1);
    if (error == error) atomicMax(counts + 3, static_cast<unsigned long long>(error * 1000));
    for (int q = 1; q < r.ranks; ++q) {
      bool same = true;
      for (int x = 0; x < bytes; ++x) same = same && r.c[0][i * bytes + x] == r.c[q][i * bytes + x];
      if (!same) atomicAdd(counts + 1, 1);
    }
  }
}

}  // namespace

std::string Problem::name() const {
  char s[200];
  std::snprintf(s, sizeof(s), "M %llu N %llu K %llu %s>%s wire %s B(%s)%s%s%s%s tileN %u chunk %u ex %u",
                static_cast<unsigned long long>(m), static_cast<unsigned long long>(n),
                static_cast<unsigned long long>(k), nameOf(in), nameOf(out), nameOf(wire), bTransposed ? "N,K" : "K,N",
                alpha != 1 ? " alpha" : "", beta != 0 ? " beta" : "", bias ? " bias" : "", staged ? " staged" : "",
                tileN, chunkTiles, exchange);
  return s;
}

void both(const std::function<void(int)>& fn, int count) {
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back([&fn, i] { fn(i); });
  fn(0);
  for (std::thread& t : threads) t.join();
}

int deviceCount() {
  // Before CUDA begins: streams of ranks that share a GPU must not share a queue of it, where one's kernel would wait behind the
  // other's.
  static const int set = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  static_cast<void>(set);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  return count < kRanks ? count : kRanks;
}

void makeRanks(Rank* ranks) {
  for (int i = 0; i < kMostRanks; ++i) {
    Rank& r = ranks[i];
    r.index = i;
    r.device = i % deviceCount();
    CUDA(cudaSetDevice(r.device));
    if (i < kRanks && deviceCount() > 1) CUDA(cudaDeviceEnablePeerAccess(1 - i, 0));
    CUDA(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&r.side, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&r.begin));
    CUDA(cudaEventCreate(&r.end));
    CUDA(cudaMalloc(&r.heap, kHeapBytes));
    CUDA(cudaMalloc(&r.own, 1 << 20));
    for (auto& a : r.a) CUDA(cudaMalloc(&a, kMaxElements * 2));
    CUDA(cudaMalloc(&r.work, 64 << 20));
    CUDA(cudaMalloc(&r.b, kMaxElements * 2));
    CUDA(cudaMalloc(&r.c, kMaxElements * 2 + (1 << 20)));
    CUDA(cudaMalloc(&r.bias, 1 << 20));
    for (auto& p : r.partial) CUDA(cudaMalloc(&p, kMaxElements * 4));
    CUDA(cudaMalloc(&r.counts, 64));
    CUDA(cudaHostAlloc(&r.record, sizeof(*r.record), cudaHostAllocPortable | cudaHostAllocMapped));
    CUDA(cudaHostAlloc(&r.ring, kRingSlots * sizeof(mkCommand_t), cudaHostAllocPortable | cudaHostAllocMapped));
  }
}

void fill(Rank& r, const Problem& p) {
  CUDA(cudaSetDevice(r.device));
  for (int set = 0; set < 2; ++set)
    fillKernel<<<528, 512, 0, r.stream>>>(r.a[set], p.m * p.k, p.in, static_cast<uint32_t>(1 + r.index * 10 + set));
  fillKernel<<<528, 512, 0, r.stream>>>(r.b, p.n * p.k, p.in, static_cast<uint32_t>(5 + r.index * 10));
  fillKernel<<<528, 512, 0, r.stream>>>(r.bias, p.n, Type::f32, 99);
  CUDA(cudaGetLastError());
}

void makeReference(Rank& r, const Problem& p, int set) {
  if (p.m == 0 || p.n == 0) return;
  CUDA(cudaSetDevice(r.device));
  const dim3 grid(static_cast<unsigned>((p.n + 63) / 64), static_cast<unsigned>((p.m + 63) / 64));
  referenceKernel<<<grid, 256, 0, r.stream>>>(r.a[set], r.b, r.partial[set], p.m, p.n, p.k, p.in, p.bTransposed);
  CUDA(cudaGetLastError());
}

void prepareC(Rank& r, const Problem& p) {
  CUDA(cudaSetDevice(r.device));
  prepareKernel<<<528, 512, 0, r.stream>>>(r.c, p.m, p.n, p.n + p.pad, p.out, p.beta != 0);
  CUDA(cudaGetLastError());
}

Verdict judge(Rank* ranks, const World& world, const Problem& p, int set) {
  Verdict all;
  const bool alone = world.nodes() * world.locals() == 1;
  for (int me = 0; me < (alone ? 2 : 1); ++me) {
    Rank& r = ranks[me];
    Results results = {};
    results.ranks = alone ? 1 : world.count();
    for (int i = 0; i < results.ranks; ++i) {
      results.c[i] = ranks[me + i].c;
      results.partial[i] = ranks[me + i].partial[set];
    }
    CUDA(cudaSetDevice(r.device));
    CUDA(cudaMemsetAsync(r.counts, 0, 32, r.stream));
    // Half a unit in the last place: of what travels and of the result.  Partial results travel in the node, its sums between.
    const auto half = [](Type t) { return t == Type::f32 ? 6e-8f : t == Type::bf16 ? 0x1p-8f : 0x1p-11f; };
    const float unit = std::max(half(p.out), half(p.wire));
    const int roundings = world.nodes() > 1 && world.locals() > 1 ? 2 : 1;
    const float floor = 2e-6f * static_cast<float>(p.k) * 0.02f + 1e-5f;
    judgeKernel<<<528, 512, 0, r.stream>>>(results, p.bias ? r.bias : nullptr, p.m, p.n, p.n + p.pad, p.out, p.alpha,
                                           p.beta, unit, floor, roundings, r.counts);
    CUDA(cudaGetLastError());
    unsigned long long h[4];
    CUDA(cudaMemcpyAsync(h, r.counts, 32, cudaMemcpyDeviceToHost, r.stream));
    CUDA(cudaStreamSynchronize(r.stream));
    all.wrong += h[0];
    all.different += h[1];
    all.outside += h[2];
    all.worst = std::max(all.worst, static_cast<double>(h[3]) / 1000);
  }
  return all;
}

World::World(Rank* ranks, uint32_t nodes, uint32_t locals, uint64_t workspace)
    : ranks_(ranks), nodes_(nodes), locals_(locals), workspace_(workspace) {
  control_ = sched::ControlLayout{nodes, locals};
  layout_.controlBytes = control_.bytes();
  layout_.maxWorkspace = sched::alignUp(workspace, sched::kWorkspaceUnit);
  if (layout_.totalBytes() > kHeapBytes) {
    std::printf("FAIL heap of %llu bytes\n", static_cast<unsigned long long>(layout_.totalBytes()));
    std::exit(1);
  }
  reset();
}

void World::reset() {
  for (int i = 0; i < count(); ++i) {
    Rank& r = ranks_[i];
    CUDA(cudaSetDevice(r.device));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemset(r.heap, 0, layout_.data(0)));
    CUDA(cudaMemset(r.own, 0, 1 << 20));
    CUDA(cudaDeviceSynchronize());
    std::memset(static_cast<void*>(r.record), 0, sizeof(*r.record));
    std::memset(r.ring, 0, kRingSlots * sizeof(mkCommand_t));
  }
}
void World::poisonBanks() {
  for (int i = 0; i < count(); ++i) {
    Rank& r = ranks_[i];
    CUDA(cudaSetDevice(r.device));
    CUDA(cudaMemsetAsync(r.heap + layout_.data(0), 0xff, layout_.totalBytes() - layout_.data(0), r.stream));
    CUDA(cudaStreamSynchronize(r.stream));
  }
}

RankMemory World::memory(int me) const {
  const Rank& r = ranks_[me];
  RankMemory m;
  const bool alone = nodes_ * locals_ == 1;
  const uint32_t rank = alone ? 0 : static_cast<uint32_t>(me);
  m.place = sched::Place{nodes_, locals_, rank / locals_, rank % locals_};
  for (uint32_t l = 0; l < locals_; ++l) m.heaps[l] = alone ? r.heap : ranks_[m.place.node * locals_ + l].heap;
  m.heapLayout = layout_;
  m.controlLayout = control_;
  m.own = r.own;
  m.host = r.own + kHostWordsAt;  // written by copies, in the order of the stream
  m.ring = r.ring;
  m.ringSlots = kRingSlots;
  m.timeoutNs = timeoutNs;
  m.record = r.record;
  return m;
}

GemmArOperands World::operands(const Problem& p, int me, int set) const {
  const Rank& r = ranks_[me];
  GemmArOperands op;
  op.in = p.in;
  op.out = p.out;
  op.wire = p.wire;
  op.biasType = Type::f32;
  op.k = p.k;
  op.a = set == 2 ? r.work : r.a[set];
  op.aStride = p.k;
  op.b = r.b;
  op.bStride = p.bTransposed ? p.k : p.n;
  op.bTransposed = p.bTransposed;
  op.c = r.c;
  op.cStride = p.n + p.pad;
  const RankMemory mine = memory(me);
  for (uint32_t l = 0; l < locals_; ++l) op.peerC[l] = locals_ > 1 ? ranks_[mine.place.node * locals_ + l].c : r.c;
  if (p.bias) op.bias = r.bias;
  op.alpha = p.alpha;
  op.beta = p.beta;
  return op;
}
sched::KernelChoice World::choose(const Problem& p) const {
  sched::KernelShape s;
  s.m = p.m;
  s.n = p.n;
  s.k = p.k;
  s.locals = locals_;
  s.nodes = nodes_;
  s.staged = p.staged;
  s.turnable = isTurnable(operands(p, 0, 0), sched::Place{nodes_, locals_}, p.staged);
  s.tileN = p.tileN;
  // Of ranks that share a GPU one launch that runs and one that waits fit it.
  if (count() > deviceCount()) s.deviceClusters = static_cast<uint32_t>(66 * deviceCount() / (2 * count()));
  sched::KernelChoice c = sched::chooseKernel(s);
  if (p.pace >= 0) c.paceNs = static_cast<uint32_t>(p.pace);
  if (p.bands != 0 && c.tileN == 128) c.flagBands = static_cast<uint32_t>(p.bands);
  if (p.early >= 0) c.early = static_cast<uint32_t>(p.early);
  if (p.clusters != 0) c.clusters = p.clusters;
  return c;
}
sched::GemmArPlan World::plan(const Problem& p, int me) const {
  sched::GemmArShape shape;
  shape.m = p.m;
  shape.n = p.n;
  shape.outBytes = typeBytes(p.out);
  shape.wireBytes = typeBytes(p.wire);
  shape.staged = p.staged;
  shape.place = memory(me).place;
  sched::GemmChoice choice;
  choice.chunkTiles = p.chunkTiles;
  choice.exchange = p.exchange;
  const sched::KernelChoice kernel = choose(p);
  if (kernel.turned) std::swap(shape.m, shape.n);
  return sched::planGemmAr(shape, clusterChoice(kernel, choice), 132);
}

void World::launch(int me, const Problem& p, int set, uint32_t hash) {
  Rank& r = ranks_[me];
  const GemmArOperands op = operands(p, me, set);
  const sched::GemmArPlan made = plan(p, me);
  if (made.workspace() > workspace_) {
    std::printf("FAIL workspace %llu of %llu\n", static_cast<unsigned long long>(made.workspace()),
                static_cast<unsigned long long>(workspace_));
    std::exit(1);
  }
  CUDA(cudaSetDevice(r.device));
  const std::string why =
      launchGemmAr(memory(me), made, choose(p), hash != 0 ? hash : made.hash().value(), op, r.stream);
  if (!why.empty()) {
    std::printf("FAIL %s\n", why.c_str());
    std::fflush(stdout);
    _exit(1);
  }
}

void World::revoke(int me) {
  Rank& r = ranks_[me];
  CUDA(cudaSetDevice(r.device));
  static const uint64_t one = 1;
  CUDA(cudaMemcpyAsync(r.own + protocol::OwnLayout::revoked, &one, 8, cudaMemcpyHostToDevice, r.side));
  CUDA(cudaStreamSynchronize(r.side));
}

bool World::sync(int me, int limitMs) {
  Rank& r = ranks_[me];
  CUDA(cudaSetDevice(r.device));
  const auto start = std::chrono::steady_clock::now();
  bool revoked = false;
  for (;;) {
    const cudaError_t e = cudaStreamQuery(r.stream);
    if (e == cudaSuccess) break;
    if (e != cudaErrorNotReady) check(e, "stream", __LINE__);
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
    if (!revoked && ms > limitMs) {
      std::printf("rank %d: still running after %d ms; revoked\n", me, limitMs);
      std::fflush(stdout);
      revoke(me);
      revoked = true;
    }
    if (ms > limitMs + 3000) {
      std::printf("FAIL rank %d hangs\n", me);
      std::fflush(stdout);
      _exit(3);
    }
  }
  return !revoked && r.record->kind == protocol::FailRecord::none;
}

Pump::Pump(Rank* ranks, const World& world, int me)
    : ranks_(ranks), world_(world), me_(me), thread_([this] { loop(); }) {}
Pump::~Pump() {
  stop_ = true;
  thread_.join();
}
void Pump::loop() {
  Rank& r = ranks_[me_];
  CUDA(cudaSetDevice(r.device));
  cudaStream_t stream = nullptr;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  constexpr uint64_t kWords = 1 << 16;
  uint64_t* words = nullptr;  // sources of flags and counts
  CUDA(cudaHostAlloc(&words, kWords * 8, cudaHostAllocPortable));
  const RankMemory mine = world_.memory(me_);
  uint64_t taken = 0, used = 0;
  const auto word = [&](uint64_t v) {
    words[used % kWords] = v;
    return words + used++ % kWords;
  };
  while (!stop_) {
    mkCommand_t& slot = r.ring[taken % kRingSlots];
    const uint64_t header = std::atomic_ref<uint64_t>(slot.header).load(std::memory_order_acquire);
    if (mkHeaderLap(header) != mkCommandLap(taken, kRingSlots)) continue;
    const mkCommand_t c = slot;
    ++taken;
    Rank& peer = ranks_[mkHeaderPeer(header) * world_.locals() + mine.place.local];
    if (c.bytes != 0)
      CUDA(cudaMemcpyPeerAsync(peer.heap + mkPlaceOffset(c.destination), peer.device, r.heap + mkPlaceOffset(c.source),
                               r.device, c.bytes, stream));
    const uint64_t flag = sched::arrivalFlag(mine.heapLayout, mine.controlLayout, c.slot, mine.place.node, c.epoch);
    CUDA(cudaMemcpyAsync(peer.heap + flag, word(c.epoch), 8, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(mine.host + HostWords::credits, word(taken), 8, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(mine.host + HostWords::completions, word(taken), 8, cudaMemcpyHostToDevice, stream));
    if (taken % 4096 == 0) CUDA(cudaStreamSynchronize(stream));
  }
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(words));
}

}  // namespace mk::kernels::test
