#include "ops/world.h"

#include <Eigen/Core>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <random>
#include <thread>

#include "ops/values.h"

namespace test {

namespace {

constexpr size_t kGuard = 256;  // bytes before and after C
constexpr char kGuardByte = 0x5a;

// K of a rank: as even as multiples of 8 allow.
int64_t share(int64_t k, int ranks, int rank) {
  const int64_t units = k / 8;
  return (units / ranks + (rank < units % ranks ? 1 : 0)) * 8;
}

}  // namespace

std::vector<World> worlds(std::vector<World> all) {
  if (kBrief) return {{2, 2}, {3, 2}};
  return all;
}

void expect(mkResult_t result, const char* what, mkComm_t comm, mkResult_t expected) {
  if (result == expected) return;
  std::string text = std::string(what) + ": " + mkGetErrorString(result) + ": " + mkGetLastError(nullptr);
  if (comm != nullptr) text += std::string(" / ") + mkGetLastError(comm);
  throw text;
}

std::vector<std::string> runWorld(const World& world, const std::function<void(mkComm_t, int)>& body,
                                  const std::function<void(mkConfig_t&, int)>& configure) {
  mkUniqueId_t id;
  if (mkGetUniqueId(&id) != mkSuccess) return {mkGetLastError(nullptr)};
  std::vector<std::string> errors(static_cast<size_t>(world.ranks()));
  std::vector<std::thread> threads;
  for (int r = 0; r < world.ranks(); ++r) {
    threads.emplace_back([&, r] {
      mkComm_t comm = nullptr;
      try {
        const std::string host = "test-node-" + std::to_string(r / world.locals);
        mkConfig_t config;
        MK_INIT(&config, MK_ID_CONFIG);
        config.hostId = host.c_str();
        config.initTimeoutMs = 60000;
        config.teardownTimeoutMs = 60000;  // of sanitized ranks on a busy machine
        if (configure) configure(config, r);
        expect(mkCommInitRankConfig(&comm, world.ranks(), id, r, &config), "init");
        body(comm, r);
        expect(mkCommDestroy(comm), "destroy");
      } catch (const std::string& text) {
        errors[static_cast<size_t>(r)] = "rank " + std::to_string(r) + ": " + text;
        if (comm != nullptr) mkCommAbort(comm);
      }
    });
  }
  for (auto& t : threads) t.join();
  std::erase_if(errors, [](const std::string& e) { return e.empty(); });
  return errors;
}

std::string Case::text() const {
  return std::string(op == MK_OP_GEMM_REDUCE_SCATTER ? "ReduceScatter " : "AllReduce ") + std::to_string(m) + "x" +
         std::to_string(n) + "x" + std::to_string(k) + (in == mkFloat16 ? " fp16" : " bf16") +
         (out == mkFloat32 ? " out fp32" : "") + (wireF32 ? " wire fp32" : "") + (transposed ? " NK" : "") +
         (window ? " window" : "") + (bias ? " bias" : "") + " alpha " + std::to_string(alpha) + " beta " +
         std::to_string(beta) + (activation != 0 ? " activation " + std::to_string(activation) : "");
}

Operands::Operands(const Case& c, const World& world, int rank, mkComm_t comm)
    : case_(c), world_(world), rank_(rank), comm_(comm), kLocal_(share(c.k, world.ranks(), rank)) {
  const size_t in = sizeOf(c.in), out = sizeOf(c.out);
  int64_t mostRows = rows_ = c.m;
  if (c.op == MK_OP_GEMM_REDUCE_SCATTER) {
    mostRows = (c.m + world.ranks() - 1) / world.ranks();
    firstRow_ = std::min(c.m, rank * mostRows);
    rows_ = std::min(c.m, firstRow_ + mostRows) - firstRow_;
    own_ = static_cast<uint64_t>(rank);
  }
  a_.resize(static_cast<size_t>(c.m * (kLocal_ + c.padding)) * in + 16);
  b_.resize(static_cast<size_t>(c.transposed ? c.n * (kLocal_ + c.padding) : kLocal_ * (c.n + c.padding)) * in + 16);
  bias_.resize(static_cast<size_t>(c.n) * out + 16);
  cBytes_ = static_cast<size_t>(rows_ * (c.n + c.padding)) * out;
  if (c.window) {
    const size_t bytes = static_cast<size_t>(mostRows * (c.n + c.padding)) * out + 2 * kGuard;  // the same on all ranks
    if (windowAllocate) {
      windowMemory_ = windowAllocate(bytes);
    } else {
      expect(mkMemAlloc(&windowMemory_, bytes), "mkMemAlloc");
    }
    c_ = static_cast<char*>(windowMemory_) + kGuard;
    expect(mkCommWindowRegister(comm, windowMemory_, bytes, &window_), "register", comm);
  }
  if (!c.window || deviceMemory != nullptr) {
    cOwned_.resize(cBytes_ + 2 * kGuard + 64);
    c_ = cOwned_.data() + kGuard;
    c_ += (16 - reinterpret_cast<uintptr_t>(c_) % 16) % 16;
  }
  if (deviceMemory != nullptr) {
    device_[0] = deviceMemory->allocate(a_.size());
    device_[1] = deviceMemory->allocate(b_.size());
    device_[2] = deviceMemory->allocate(bias_.size());
    device_[3] = c.window ? windowMemory_ : deviceMemory->allocate(cBytes_ + 2 * kGuard);
  }
  tune_ = c.tune;
  tune_.structSize = sizeof(tune_);
  tune_.structId = MK_ID_TUNE;
  refill(c.seed);
}

Operands::~Operands() {
  for (void* const p : device_)
    if (p != nullptr && p != windowMemory_) deviceMemory->release(p);
  if (window_ != nullptr) mkCommWindowDeregister(comm_, window_);
  if (windowMemory_ != nullptr)
    windowRelease ? windowRelease(windowMemory_) : static_cast<void>(mkMemFree(windowMemory_));
}

void Operands::refill(uint64_t seed) {
  case_.seed = seed;
  const size_t in = sizeOf(case_.in), out = sizeOf(case_.out);
  struct Upload {
    Operands& operands;
    ~Upload() noexcept(false) { operands.upload(); }
  } const upload{*this};
  const auto r = static_cast<uint64_t>(rank_);
  for (int64_t i = 0; i < case_.m; ++i)
    for (int64_t k = 0; k < kLocal_; ++k)
      put(case_.in, &a_[static_cast<size_t>(i * (kLocal_ + case_.padding) + k) * in],
          element(case_.in, seed, 1, r, uint64_t(i), uint64_t(k)));
  for (int64_t k = 0; k < kLocal_; ++k)
    for (int64_t j = 0; j < case_.n; ++j) {
      const int64_t at = case_.transposed ? j * (kLocal_ + case_.padding) + k : k * (case_.n + case_.padding) + j;
      put(case_.in, &b_[static_cast<size_t>(at) * in], element(case_.in, seed, 2, r, uint64_t(k), uint64_t(j)));
    }
  for (int64_t j = 0; j < case_.n; ++j)
    put(case_.out, &bias_[static_cast<size_t>(j) * out], element(case_.out, seed, 3, own_, 0, uint64_t(j)));
  std::memset(c_ - kGuard, kGuardByte, kGuard);
  std::memset(c_ + cBytes_, kGuardByte, case_.window ? kGuard : kGuard / 2);
  for (int64_t i = 0; i < rows_; ++i) {
    for (int64_t j = 0; j < case_.n + case_.padding; ++j) {
      char* at = c_ + static_cast<size_t>(i * (case_.n + case_.padding) + j) * out;
      if (j >= case_.n) {
        std::memset(at, kGuardByte, out);
      } else {
        put(case_.out, at,
            case_.beta != 0 ? element(case_.out, seed, 4, own_, uint64_t(i), uint64_t(j))
                            : std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
}

void Operands::upload() {
  if (deviceMemory == nullptr) return;
  deviceMemory->upload(device_[0], a_.data(), a_.size());
  deviceMemory->upload(device_[1], b_.data(), b_.size());
  deviceMemory->upload(device_[2], bias_.data(), bias_.size());
  deviceMemory->upload(device_[3], c_ - kGuard, cBytes_ + (case_.window ? 2 * kGuard : kGuard + kGuard / 2));
}

void Operands::download() const {
  if (deviceMemory != nullptr)
    deviceMemory->download(c_ - kGuard, device_[3], cBytes_ + (case_.window ? 2 * kGuard : kGuard + kGuard / 2));
}

void synchronize(mkStream_t stream) {
  if (deviceMemory != nullptr) {
    deviceMemory->synchronize(stream);
  } else {
    expect(mkCpuStreamSynchronize(stream), "synchronize");
  }
}

template <class Args>
Args Operands::argsOf(uint32_t id) const {
  const bool device = deviceMemory != nullptr;
  const void* const a = device ? device_[0] : a_.data();
  const void* const b = device ? device_[1] : b_.data();
  const void* const c = device ? static_cast<char*>(device_[3]) + kGuard : c_;
  Args x;
  MK_INIT(&x, id);
  x.a = matrix(a, case_.in, case_.m, kLocal_, kLocal_ + case_.padding);
  x.b = case_.transposed ? matrix(b, case_.in, case_.n, kLocal_, kLocal_ + case_.padding)
                         : matrix(b, case_.in, kLocal_, case_.n, case_.n + case_.padding);
  x.c = matrix(c, case_.out, rows_, case_.n, case_.n + case_.padding);
  if (case_.window) {
    x.c.data = nullptr;
    x.c.window = window_;
    x.c.offset = kGuard;
  }
  if (case_.bias) {
    x.bias.data = device ? device_[2] : const_cast<char*>(bias_.data());
    x.bias.dtype = static_cast<uint32_t>(case_.out);
    x.bias.ndim = 1;
    x.bias.dims[0] = case_.n;
  }
  x.alpha = &case_.alpha;
  x.beta = &case_.beta;
  x.bLayout = case_.transposed ? MK_LAYOUT_NK : MK_LAYOUT_KN;
  if (case_.wireF32) x.wireDtypePlus1 = 1 + mkFloat32;
  x.activation = case_.activation;
  x.tune = &tune_;
  return x;
}

template <class Call>
auto Operands::withArgs(const Call& call) const {
  if (case_.op == MK_OP_GEMM_REDUCE_SCATTER) {
    const mkGemmReduceScatterArgs_t x = scatterArgs();
    return call(&x);
  }
  const mkGemmAllReduceArgs_t x = args();
  return call(&x);
}

mkGemmAllReduceArgs_t Operands::args() const { return argsOf<mkGemmAllReduceArgs_t>(MK_ID_GEMM_ALL_REDUCE_ARGS); }

mkGemmReduceScatterArgs_t Operands::scatterArgs() const {
  return argsOf<mkGemmReduceScatterArgs_t>(MK_ID_GEMM_REDUCE_SCATTER_ARGS);
}

size_t Operands::workspace() const {
  size_t bytes = 0;
  expect(withArgs([&](const auto* x) { return mkOpWorkspaceSize(comm_, case_.op, x, &bytes); }), "workspace");
  return bytes;
}

void Operands::reserve() const { expect(mkCommReserve(comm_, workspace()), "reserve", comm_); }

namespace {

mkResult_t launchArgs(mkComm_t comm, const mkGemmAllReduceArgs_t* args, mkStream_t stream) {
  return mkGemmAllReduce(comm, args, stream);
}
mkResult_t launchArgs(mkComm_t comm, const mkGemmReduceScatterArgs_t* args, mkStream_t stream) {
  return mkGemmReduceScatter(comm, args, stream);
}

}  // namespace

mkResult_t Operands::launch(mkStream_t stream) const {
  return withArgs([&](const auto* x) { return launchArgs(comm_, x, stream); });
}

int64_t Operands::poisoned() const {
  int64_t count = 0;
  const size_t out = sizeOf(case_.out);
  for (int64_t i = 0; i < rows_; ++i)
    for (int64_t j = 0; j < case_.n; ++j)
      count += std::isnan(get(case_.out, c_ + static_cast<size_t>(i * (case_.n + case_.padding) + j) * out)) ? 1 : 0;
  return count;
}

void Operands::check() const {
  download();
  const size_t out = sizeOf(case_.out);
  for (size_t i = 0; i < kGuard; ++i)
    if (c_[static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuard)] != kGuardByte)
      throw std::string("written before C");
  for (size_t i = 0; i < (case_.window ? kGuard : kGuard / 2); ++i)
    if (c_[cBytes_ + i] != kGuardByte) throw std::string("written behind C");
  using Mat = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Mat sum = Mat::Zero(rows_, case_.n), magnitude = Mat::Zero(rows_, case_.n);
  for (int r = 0; r < world_.ranks(); ++r) {
    const int64_t k = share(case_.k, world_.ranks(), r);
    Mat a(rows_, k), b(k, case_.n);
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t d = 0; d < k; ++d)
        a(i, d) = element(case_.in, case_.seed, 1, uint64_t(r), uint64_t(firstRow_ + i), uint64_t(d));
    for (int64_t d = 0; d < k; ++d)
      for (int64_t j = 0; j < case_.n; ++j)
        b(d, j) = element(case_.in, case_.seed, 2, uint64_t(r), uint64_t(d), uint64_t(j));
    sum += a * b;
    magnitude += a.cwiseAbs() * b.cwiseAbs();
  }
  // Unit round-off of what travels and of the result.  Partials are rounded once, then node sums, then the result; the bound
  // for an element follows from the magnitudes, with a little room for fp32 accumulation.
  const double wire = case_.wireF32 || case_.out == mkFloat32 ? 0x1p-24 : case_.out == mkFloat16 ? 0x1p-11 : 0x1p-8;
  const double last = case_.out == mkFloat32 ? 0x1p-24 : case_.out == mkFloat16 ? 0x1p-11 : 0x1p-8;
  double errorNorm = 0, refNorm = 0;
  for (int64_t i = 0; i < rows_; ++i) {
    for (int64_t j = 0; j < case_.n + case_.padding; ++j) {
      const char* at = c_ + static_cast<size_t>(i * (case_.n + case_.padding) + j) * out;
      if (j >= case_.n) {
        for (size_t byte = 0; byte < out; ++byte)
          if (at[byte] != kGuardByte) throw std::string("written into the padding of C");
        continue;
      }
      double ref = case_.alpha * sum(i, j);
      if (case_.beta != 0)
        ref += static_cast<double>(case_.beta) * element(case_.out, case_.seed, 4, own_, uint64_t(i), uint64_t(j));
      if (case_.bias) ref += element(case_.out, case_.seed, 3, own_, 0, uint64_t(j));
      ref = activate(case_.activation, ref);
      const double value = get(case_.out, at);
      const double bound = slope(case_.activation) * std::abs(case_.alpha) * magnitude(i, j) * (2 * wire + 0x1p-20) +
                           std::abs(ref) * last * 1.01 + 1e-6;
      const double error = std::abs(value - ref);
      if (!(error <= bound))
        throw std::to_string(poisoned()) + " elements are not numbers; C(" + std::to_string(i) + ", " +
            std::to_string(j) + ") is " + std::to_string(value) + ", should be " + std::to_string(ref) + " within " +
            std::to_string(bound) + " (" + case_.text() + ")";
      errorNorm += error * error;
      refNorm += ref * ref;
    }
  }
  // Relative error of the whole: zeros or a missing rank give about 1 and 1/W.
  const double relative = refNorm > 0 ? std::sqrt(errorNorm / refNorm) : 0;
  if (!(relative <= 3 * std::max(wire, last)))
    throw "relative error " + std::to_string(relative) + " (" + case_.text() + ")";
}

std::vector<uint16_t> Operands::outputBits() const {
  download();
  std::vector<uint16_t> bits;
  const size_t out = sizeOf(case_.out);
  for (int64_t i = 0; i < rows_; ++i) {
    const char* row = c_ + static_cast<size_t>(i * (case_.n + case_.padding)) * out;
    for (size_t byte = 0; byte < static_cast<size_t>(case_.n) * out; byte += 2) {
      uint16_t word;
      std::memcpy(&word, row + byte, 2);
      bits.push_back(word);
    }
  }
  return bits;
}

void runCase(const Case& c, const World& world, int rank, mkComm_t comm, mkStream_t stream) {
  Operands o(c, world, rank, comm);
  o.reserve();
  expect(o.launch(stream), "launch", comm);
  synchronize(stream);
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  expect(async, "asynchronous error", comm);
  o.check();
}

}  // namespace test
