#include "ops/ag_world.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace test {

namespace {

constexpr char kGuardByte = 0x5a;

int64_t firstRowOf(int64_t m, int ranks, int rank) { return std::min(m, rank * ((m + ranks - 1) / ranks)); }

double unitOf(mkDataType_t t) { return t == mkFloat32 ? 0x1p-24 : t == mkFloat16 ? 0x1p-11 : 0x1p-8; }

}  // namespace

std::string AgCase::text() const {
  const char* const gathers[] = {"", " gathered", " gathered in a window", " gathered on even ranks"};
  return std::to_string(m) + "x" + std::to_string(n) + "+" + std::to_string(nStep) + "x" + std::to_string(k) +
         (in == mkFloat16 ? " fp16" : " bf16") + (out == mkFloat32 ? " out fp32" : "") + (transposed ? " NK" : "") +
         (bias ? " bias" : "") + gathers[static_cast<int>(gather)] + (inPlace ? " in place" : "") + " alpha " +
         std::to_string(alpha) + " beta " + std::to_string(beta) + " activation " + std::to_string(activation) +
         " exchange " + std::to_string(tune.exchange) + " chunkRows " + std::to_string(tune.chunkRows);
}

// ---- Matrices ----------------------------------------------------------------------------------------------------

GuardedMatrix::GuardedMatrix(mkDataType_t type, int64_t rows, int64_t cols, int64_t padding, mkComm_t comm)
    : type_(type),
      rows_(rows),
      cols_(cols),
      stride_(cols + padding),
      bytes_(static_cast<size_t>(rows * stride_) * sizeOf(type)),
      comm_(comm) {
  const size_t all = bytes_ + 2 * kGuard;
  if (comm != nullptr) {
    if (windowAllocate) {
      windowMemory_ = windowAllocate(all);
    } else {
      expect(mkMemAlloc(&windowMemory_, all), "mkMemAlloc");
    }
    expect(mkCommWindowRegister(comm, windowMemory_, all, &window_), "register", comm);
    base_ = static_cast<char*>(windowMemory_);
  }
  if (deviceMemory != nullptr) device_ = comm != nullptr ? base_ : static_cast<char*>(deviceMemory->allocate(all));
  if (comm == nullptr || device_ != nullptr) {
    memory_.resize(all + 16);
    base_ = memory_.data() + (16 - reinterpret_cast<uintptr_t>(memory_.data()) % 16) % 16;
  }
  std::memset(base_, kGuardByte, all);
  base_ += kGuard;
}

GuardedMatrix::~GuardedMatrix() {
  if (device_ != nullptr && windowMemory_ == nullptr) deviceMemory->release(device_);
  if (window_ != nullptr) mkCommWindowDeregister(comm_, window_);
  if (windowMemory_ != nullptr)
    windowRelease ? windowRelease(windowMemory_) : static_cast<void>(mkMemFree(windowMemory_));
}

char* GuardedMatrix::at(int64_t row, int64_t col) const {
  return base_ + static_cast<size_t>(row * stride_ + col) * sizeOf(type_);
}

void GuardedMatrix::fill(const std::function<float(int64_t, int64_t)>& element) const {
  for (int64_t i = 0; i < rows_; ++i)
    for (int64_t j = 0; j < cols_; ++j) put(type_, at(i, j), element(i, j));
}

void GuardedMatrix::upload() const {
  if (device_ != nullptr) deviceMemory->upload(device_, base_ - kGuard, bytes_ + 2 * kGuard);
}

void GuardedMatrix::download() const {
  if (device_ != nullptr) deviceMemory->download(base_ - kGuard, device_, bytes_ + 2 * kGuard);
}

char* GuardedMatrix::address(int64_t row) const {
  return device_ == nullptr ? at(row, 0) : device_ + kGuard + (at(row, 0) - base_);
}

void GuardedMatrix::checkGuards(const char* name) const {
  const auto untouched = [](const char* from, const char* to) {
    return std::all_of(from, to, [](char c) { return c == kGuardByte; });
  };
  if (!untouched(base_ - kGuard, base_)) throw std::string(name) + ": written before it";
  if (!untouched(base_ + bytes_, base_ + bytes_ + kGuard)) throw std::string(name) + ": written behind it";
  for (int64_t i = 0; i < rows_; ++i)
    if (!untouched(at(i, cols_), at(i, stride_))) throw std::string(name) + ": written into its padding";
}

mkTensor_t GuardedMatrix::tensor() const {
  mkTensor_t x = matrix(address(0), type_, rows_, cols_, stride_);
  if (window_ == nullptr) return x;
  x.data = nullptr;
  x.window = window_;
  x.offset = kGuard;
  return x;
}

// ---- Operands ----------------------------------------------------------------------------------------------------

AgOperands::AgOperands(const AgCase& c, const World& world, int rank, mkComm_t comm)
    : case_(c),
      rank_(rank),
      n_(c.n + rank * c.nStep),
      firstRow_(firstRowOf(c.m, world.ranks(), rank)),
      rows_(firstRowOf(c.m, world.ranks(), rank + 1) - firstRow_) {
  a_ = std::make_unique<GuardedMatrix>(c.in, rows_, c.k, c.padding);
  b_ = c.transposed ? std::make_unique<GuardedMatrix>(c.in, n_, c.k, c.padding)
                    : std::make_unique<GuardedMatrix>(c.in, c.k, n_, c.padding);
  c_ = std::make_unique<GuardedMatrix>(c.out, c.m, n_, c.padding);
  if (gathers())
    gathered_ = std::make_unique<GuardedMatrix>(c.in, c.m, c.k, c.padding, c.gather == Gather::window ? comm : nullptr);
  bias_ = std::make_unique<GuardedMatrix>(c.out, 1, n_, 0);
  tune_ = c.tune;
  tune_.structSize = sizeof(tune_);
  tune_.structId = MK_ID_TUNE;
  refill(c.seed);
}

bool AgOperands::gathers() const {
  return case_.gather == Gather::someRanks ? rank_ % 2 == 0 : case_.gather != Gather::none;
}

void AgOperands::refill(uint64_t seed) {
  case_.seed = seed;
  const float poison = std::numeric_limits<float>::quiet_NaN();
  const auto mine = [&](mkDataType_t type, uint64_t which) {
    return [this, type, which](int64_t i, int64_t j) {
      return element(type, case_.seed, which, uint64_t(rank_), uint64_t(i), uint64_t(j));
    };
  };
  if (gathered_ != nullptr) gathered_->fill([&](int64_t, int64_t) { return poison; });
  a_->fill([&](int64_t i, int64_t k) { return a(firstRow_ + i, k); });
  if (case_.inPlace && gathered_ != nullptr)
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t k = 0; k < case_.k; ++k) put(case_.in, gathered_->at(firstRow_ + i, k), a(firstRow_ + i, k));
  if (case_.transposed) {
    b_->fill([&](int64_t j, int64_t k) { return mine(case_.in, 2)(k, j); });
  } else {
    b_->fill(mine(case_.in, 2));
  }
  bias_->fill(mine(case_.out, 3));
  const auto old = mine(case_.out, 4);
  c_->fill([&](int64_t i, int64_t j) { return case_.beta != 0 ? old(i, j) : poison; });
  for (const GuardedMatrix* m : {a_.get(), b_.get(), bias_.get(), c_.get(), gathered_.get()})
    if (m != nullptr) m->upload();
}

void AgOperands::spoilA() const {
  a_->fill([](int64_t, int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
  a_->upload();
}

mkAllGatherGemmArgs_t AgOperands::args() const {
  mkAllGatherGemmArgs_t x;
  MK_INIT(&x, MK_ID_ALL_GATHER_GEMM_ARGS);
  x.a = a_->tensor();
  x.b = b_->tensor();
  x.c = c_->tensor();
  if (gathered_ != nullptr) {
    x.gathered = gathered_->tensor();
    if (case_.inPlace) x.a.data = gathered_->address(firstRow_);
  }
  if (case_.bias) {
    x.bias.data = bias_->address(0);
    x.bias.dtype = static_cast<uint32_t>(case_.out);
    x.bias.ndim = 1;
    x.bias.dims[0] = n_;
  }
  x.alpha = &case_.alpha;
  x.beta = &case_.beta;
  x.bLayout = case_.transposed ? MK_LAYOUT_NK : MK_LAYOUT_KN;
  x.activation = case_.activation;
  x.tune = &tune_;
  return x;
}

void AgOperands::check() const {
  for (const GuardedMatrix* m : {b_.get(), c_.get(), gathered_.get()})
    if (m != nullptr) m->download();
  b_->checkGuards("B");
  checkC();
  if (gathered_ != nullptr) checkGathered();
}

void AgOperands::checkGathered() const {
  gathered_->checkGuards("gathered");
  for (int64_t i = 0; i < case_.m; ++i)
    for (int64_t k = 0; k < case_.k; ++k)
      if (gathered_->value(i, k) != a(i, k))
        throw "gathered(" + std::to_string(i) + ", " + std::to_string(k) + ") is " +
            std::to_string(gathered_->value(i, k)) + ", should be " + std::to_string(a(i, k)) + " (" + case_.text() +
            ")";
}

void AgOperands::checkC() const {
  c_->checkGuards("C");
  using Mat = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Mat whole(case_.m, case_.k), own(case_.k, n_);
  for (int64_t i = 0; i < case_.m; ++i)
    for (int64_t k = 0; k < case_.k; ++k) whole(i, k) = a(i, k);
  for (int64_t k = 0; k < case_.k; ++k)
    for (int64_t j = 0; j < n_; ++j)
      own(k, j) = element(case_.in, case_.seed, 2, uint64_t(rank_), uint64_t(k), uint64_t(j));
  const Mat product = whole * own, magnitude = whole.cwiseAbs() * own.cwiseAbs();
  const double unit = unitOf(case_.out);
  double errorNorm = 0, refNorm = 0;
  for (int64_t i = 0; i < case_.m; ++i) {
    for (int64_t j = 0; j < n_; ++j) {
      double ref = case_.alpha * product(i, j);
      if (case_.beta != 0)
        ref += static_cast<double>(case_.beta) *
               element(case_.out, case_.seed, 4, uint64_t(rank_), uint64_t(i), uint64_t(j));
      if (case_.bias) ref += element(case_.out, case_.seed, 3, uint64_t(rank_), 0, uint64_t(j));
      ref = activate(case_.activation, ref);
      // One rounding of the result, and fp32 sums.
      const double bound = slope(case_.activation) * std::abs(case_.alpha) * magnitude(i, j) * 0x1p-20 +
                           std::abs(ref) * unit * 1.01 + 1e-6;
      const double value = c_->value(i, j), error = std::abs(value - ref);
      if (!(error <= bound))
        throw "C(" + std::to_string(i) + ", " + std::to_string(j) + ") is " + std::to_string(value) + ", should be " +
            std::to_string(ref) + " within " + std::to_string(bound) + " (" + case_.text() + ")";
      errorNorm += error * error;
      refNorm += ref * ref;
    }
  }
  // Relative error of the whole: zeros, or a shard of another rank's in place of one, give about 1.
  const double relative = refNorm > 0 ? std::sqrt(errorNorm / refNorm) : 0;
  if (!(relative <= std::max(unit, 0x1p-20)))
    throw "relative error " + std::to_string(relative) + " (" + case_.text() + ")";
}

void reserveFor(mkComm_t comm, const mkAllGatherGemmArgs_t& args) {
  size_t bytes = 0;
  expect(mkOpWorkspaceSize(comm, MK_OP_ALL_GATHER_GEMM, &args, &bytes), "workspace");
  expect(mkCommReserve(comm, bytes), "reserve", comm);
}

void launch(mkComm_t comm, const AgOperands& o, mkStream_t stream) {
  const mkAllGatherGemmArgs_t args = o.args();
  expect(mkAllGatherGemm(comm, &args, stream), "mkAllGatherGemm", comm);
}

void runCase(const AgCase& c, const World& world, int rank, mkComm_t comm, mkStream_t stream) {
  AgOperands o(c, world, rank, comm);
  reserveFor(comm, o.args());
  launch(comm, o, stream);
  synchronize(stream);
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  expect(async, "asynchronous error", comm);
  o.check();
}

}  // namespace test
