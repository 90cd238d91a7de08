#include "ops/ag_world.h"

#include <algorithm>
#include <limits>

#include "ops/reference.h"

namespace test {

namespace {

int64_t firstRowOf(int64_t m, int ranks, int rank) { return std::min(m, rank * ((m + ranks - 1) / ranks)); }

}  // namespace

std::string AgCase::text() const {
  const char* const gathers[] = {"", " gathered", " gathered in a window", " gathered on even ranks"};
  return std::to_string(m) + "x" + std::to_string(n) + "+" + std::to_string(nStep) + "x" + std::to_string(k) +
         (in == mkFloat16 ? " fp16" : " bf16") + (out == mkFloat32 ? " out fp32" : "") + (transposed ? " NK" : "") +
         (bias ? " bias" : "") + gathers[static_cast<int>(gather)] + (inPlace ? " in place" : "") + " alpha " +
         std::to_string(alpha) + " beta " + std::to_string(beta) + " activation " + std::to_string(activation) +
         " exchange " + std::to_string(tune.exchange) + " chunkRows " + std::to_string(tune.chunkRows);
}

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
  if (case_.bias) x.bias = bias_->vector();
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
  Matrix whole(case_.m, case_.k), own(case_.k, n_);
  for (int64_t i = 0; i < case_.m; ++i)
    for (int64_t k = 0; k < case_.k; ++k) whole(i, k) = a(i, k);
  for (int64_t k = 0; k < case_.k; ++k)
    for (int64_t j = 0; j < n_; ++j)
      own(k, j) = element(case_.in, case_.seed, 2, uint64_t(rank_), uint64_t(k), uint64_t(j));
  Reference reference;
  reference.product = whole * own;
  reference.magnitude = whole.cwiseAbs() * own.cwiseAbs();
  reference.owner = uint64_t(rank_);
  // Zeros, or a shard of another rank's in place of one, give about 1.
  reference.mostRelative = std::max(roundOff(case_.out), 0x1p-20);
  // A GPU's matrix unit cuts off what its sums cannot hold, which adds up.
  if (deviceMemory != nullptr && case_.out == mkFloat32)
    reference.mostRelative = std::max(reference.mostRelative, static_cast<double>(case_.k) * 0x1p-29);
  checkResult(case_, *c_, reference);
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
