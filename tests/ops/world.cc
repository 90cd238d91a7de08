#include "ops/world.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>

#include "host/comm.h"
#include "ops/reference.h"
#include "ops/values.h"
#include "support/longest_gap.h"

namespace test {

namespace {

// K of a rank: as even as multiples of 8 allow.
int64_t share(int64_t k, int ranks, int rank) {
  const int64_t units = k / 8;
  return (units / ranks + (rank < units % ranks ? 1 : 0)) * 8;
}

// "" unless an operation's deadline has passed.
std::string accountOf(mkComm_t handle, const LongestGap& gap) {
  mkResult_t async = mkSuccess;
  if (handle == nullptr || mkCommGetAsyncError(handle, &async) != mkSuccess || async != mkErrorTimeout) return {};
  const mk::Proxy* const proxy = mk::Comm::find(handle)->proxy();
  return (proxy != nullptr ? "; " + proxy->account() : std::string()) + "; a sleeping thread was held up for at most " +
         std::to_string(gap.milliseconds()) + " ms";
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
  const LongestGap gap;
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
        if (kSanitized) config.timeoutMs = 120000;
        if (configure) configure(config, r);
        expect(mkCommInitRankConfig(&comm, world.ranks(), id, r, &config), "init");
        body(comm, r);
        expect(mkCommDestroy(comm), "destroy");
      } catch (const std::string& text) {
        errors[static_cast<size_t>(r)] = "rank " + std::to_string(r) + ": " + text + accountOf(comm, gap);
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
  int64_t mostRows = rows_ = c.m;
  if (c.op == MK_OP_GEMM_REDUCE_SCATTER) {
    mostRows = (c.m + world.ranks() - 1) / world.ranks();
    firstRow_ = std::min(c.m, rank * mostRows);
    rows_ = std::min(c.m, firstRow_ + mostRows) - firstRow_;
    own_ = static_cast<uint64_t>(rank);
  }
  a_ = std::make_unique<GuardedMatrix>(c.in, c.m, kLocal_, c.padding);
  b_ = c.transposed ? std::make_unique<GuardedMatrix>(c.in, c.n, kLocal_, c.padding)
                    : std::make_unique<GuardedMatrix>(c.in, kLocal_, c.n, c.padding);
  bias_ = std::make_unique<GuardedMatrix>(c.out, 1, c.n, 0);
  // The window is the same on all ranks.
  c_ = std::make_unique<GuardedMatrix>(c.out, rows_, c.n, c.padding, c.window ? comm : nullptr, mostRows);
  tune_ = c.tune;
  tune_.structSize = sizeof(tune_);
  tune_.structId = MK_ID_TUNE;
  refill(c.seed);
}

void Operands::refill(uint64_t seed) {
  case_.seed = seed;
  const auto of = [&](mkDataType_t type, uint64_t which, uint64_t owner) {
    return [type, seed, which, owner](int64_t i, int64_t j) {
      return element(type, seed, which, owner, uint64_t(i), uint64_t(j));
    };
  };
  const auto r = static_cast<uint64_t>(rank_);
  a_->fill(of(case_.in, 1, r));
  const auto b = of(case_.in, 2, r);
  if (case_.transposed) {
    b_->fill([&](int64_t j, int64_t k) { return b(k, j); });
  } else {
    b_->fill(b);
  }
  bias_->fill(of(case_.out, 3, own_));
  const auto old = of(case_.out, 4, own_);
  c_->fill([&](int64_t i, int64_t j) { return case_.beta != 0 ? old(i, j) : std::numeric_limits<float>::quiet_NaN(); });
  for (const GuardedMatrix* m : {a_.get(), b_.get(), bias_.get(), c_.get()}) m->upload();
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
  Args x;
  MK_INIT(&x, id);
  x.a = a_->tensor();
  x.b = b_->tensor();
  x.c = c_->tensor();
  if (case_.bias) x.bias = bias_->vector();
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

mkTune_t Operands::tune() const {
  mkTune_t tune;
  MK_INIT(&tune, MK_ID_TUNE);
  expect(withArgs([&](const auto* x) { return mkTuneQuery(comm_, case_.op, x, &tune); }), "query");
  return tune;
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

void Operands::check() const {
  c_->download();
  c_->checkGuards("C");
  Reference reference;
  reference.product = reference.magnitude = Matrix::Zero(rows_, case_.n);
  for (int r = 0; r < world_.ranks(); ++r) {
    const int64_t k = share(case_.k, world_.ranks(), r);
    Matrix a(rows_, k), b(k, case_.n);
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t d = 0; d < k; ++d)
        a(i, d) = element(case_.in, case_.seed, 1, uint64_t(r), uint64_t(firstRow_ + i), uint64_t(d));
    for (int64_t d = 0; d < k; ++d)
      for (int64_t j = 0; j < case_.n; ++j)
        b(d, j) = element(case_.in, case_.seed, 2, uint64_t(r), uint64_t(d), uint64_t(j));
    reference.product += a * b;
    reference.magnitude += a.cwiseAbs() * b.cwiseAbs();
  }
  reference.owner = own_;
  // Partials are rounded once as they travel, then node sums, then the result.
  const double wire = roundOff(case_.wireF32 ? mkFloat32 : case_.out);
  reference.travel = 2 * wire;
  // Zeros or a missing rank give about 1 and 1/W.
  reference.mostRelative = 3 * std::max(wire, roundOff(case_.out));
  checkResult(case_, *c_, reference);
}

std::vector<uint16_t> Operands::outputBits() const {
  c_->download();
  std::vector<uint16_t> bits;
  const size_t bytes = static_cast<size_t>(case_.n) * sizeOf(case_.out);
  for (int64_t i = 0; i < rows_; ++i) {
    for (size_t byte = 0; byte < bytes; byte += 2) {
      uint16_t word;
      std::memcpy(&word, c_->at(i, 0) + byte, 2);
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
