// AllGather+GEMM on GPUs; see work.h.  The rows of A are one stream of random numbers, of which each rank has its part.
#include "cuda/work.h"

namespace mk::perf {
namespace {

class GatherWork final : public Work {
 public:
  using Work::Work;

  Traffic traffic(const Row& row) const override { return allGatherGemmTraffic(options_, row, gpu_.run); }
  double nvlinkBytes() const override {
    return perf::nvlinkBytes(shape_.m, shape_.k, gpu_.run.ranksPerNode, info(options_.in).bytes, 0);
  }
  double kOfRank() const override { return static_cast<double>(shape_.k); }

 private:
  bool gathers() const { return options_.gathered != Gathered::none; }
  RowShare share() const { return rowsOf(shape_.m, world_.rank(), world_.size()); }
  // NCCL gathers equal parts.
  int64_t height() const { return rowsOf(shape_.m, 0, world_.size()).rows; }
  int64_t shardBytes() const { return height() * shape_.k * inBytes(); }
  int64_t gatheredBytes() const { return shape_.m * shape_.k * inBytes(); }

  int64_t memoryBytes() const override {
    return kSets * shardBytes() * (1 + world_.size()) + 2 * slotBytes(cBytes()) +
           (gathers() ? slotBytes(gatheredBytes()) : 0);
  }
  void allocateOperands() override;
  void releaseOperands() override {
    freeResult(&gathered_);
    for (DeviceMemory& a : a_) a.reset();
    for (DeviceMemory& a : whole_) a.reset();
  }
  void choose(Row* row, Row* alone) override {
    gpu_.session.choose(MK_OP_ALL_GATHER_GEMM, &fusedArgs_[0], gpu_.run.nodes, row);
    gpu_.alone.choose(MK_OP_ALL_GATHER_GEMM, &aloneArgs_[0], 1, alone);
  }
  void fillA(int set) override {
    const RowShare mine = share();
    fillNormal(options_.in, a_[set].get(), mine.rows * shape_.k, seedOfA(set, -1), gpu_.stream, mine.first * shape_.k);
    fillWhole(set);
  }
  void fillWhole(int set) {
    fillNormal(options_.in, whole_[set].get(), shape_.m * shape_.k, seedOfA(set, -1), gpu_.stream);
  }
  mkResult_t enqueue(Kind kind, int set) override {
    return kind == fused ? gpu_.session.enqueue(&fusedArgs_[set], gpu_.stream)
                         : gpu_.alone.enqueue(&aloneArgs_[set], gpu_.stream);
  }
  void multiply(int set, float beta) override {
    const int status =
        gpu_.blas->multiply(options_, whole_[set].get(), b_.get(), plain_.data(), shape_.m, shape_.n, shape_.k, beta);
    if (status != 0) world_.die(exitSystem, "cublasGemmEx: status " + std::to_string(status));
  }
  void launchUnfused(int set) override {
    const int status =
        gpu_.nccl->allGather(options_.in, a_[set].get(), whole_[set].get(), height() * shape_.k, gpu_.stream);
    if (status != 0) world_.die(exitSystem, "ncclAllGather: result " + std::to_string(status));
    multiply(set, options_.beta);
  }
  void poisonUnfused(int set) override {
    poison(options_.in, whole_[set].get(), shape_.m * shape_.k, gpu_.stream);
    poison(options_.out, plain_.data(), shape_.m * shape_.n, gpu_.stream);
  }
  void poisonResult() override {
    Work::poisonResult();
    if (!gathers()) return;
    guard(gathered_);
    poison(options_.in, gathered_.data(), shape_.m * shape_.k, gpu_.stream);
  }
  const void* unfusedResult() const override { return plain_.data(); }
  ProductData data(int set) const override;
  int owner() const override { return world_.rank(); }
  int64_t cRows() const override { return shape_.m; }
  int64_t kOfB() const override { return shape_.k; }
  void judgeMore(int set, Row* row) override;
  const Result* shared() const override { return gathers() ? &gathered_ : nullptr; }

  DeviceMemory a_[kSets],
      whole_[kSets];  // this rank's rows, and all: for the product alone, and where NCCL gathers them
  Result gathered_;
  mkAllGatherGemmArgs_t fusedArgs_[kSets] = {}, aloneArgs_[kSets] = {};
};

void GatherWork::allocateOperands() {
  for (DeviceMemory& a : a_) a = room(shardBytes());
  for (DeviceMemory& a : whole_) a = room(shardBytes() * world_.size());
  allocateResult(gpu_.session, cBytes(), false, &fused_);
  allocateResult(gpu_.alone, cBytes(), false, &plain_);
  if (gathers()) {
    allocateResult(gpu_.session, gatheredBytes(), options_.gathered == Gathered::window, &gathered_);
  }
  for (int set = 0; set < kSets; ++set) {
    Operands mine;
    mine.a = a_[set].get();
    mine.b = b_.get();
    if (options_.bias) mine.bias = bias_.get();
    mine.c = fused_.data();
    if (gathers()) mine.gathered = gathered_.data();
    mine.window = gathered_.window;
    if (gathered_.window) mine.offset = kGuardBytes;
    fusedArgs_[set] = gpu_.session.gatherArguments(mine, shape_.m, share().rows, shape_.n, shape_.k);
    Operands alone;
    alone.a = whole_[set].get();
    alone.b = b_.get();
    alone.c = plain_.data();
    aloneArgs_[set] = gpu_.alone.gatherArguments(alone, shape_.m, shape_.m, shape_.n, shape_.k);
  }
}

ProductData GatherWork::data(int set) const {
  ProductData data;
  data.terms.push_back({shape_.k, seedOfA(set, -1), seedOfB(world_.rank())});
  data.oldC = seedOf(Role::oldC, shape_.m, 0, owner());
  data.bias = seedOf(Role::bias, shape_.m, 0, owner());
  return data;
}

// The whole A, bit by bit.
void GatherWork::judgeMore(int set, Row* row) {
  if (!gathers()) return;
  row->outOfBounds += world_.sum(damaged(gathered_));
  const uint64_t bits = verifier_->hash(gathered_.data(), gatheredBytes());
  if (world_.min(bits) != world_.max(bits)) row->check.identical = false;
  fillWhole(set);
  row->check.wrong += world_.sum(verifier_->different(gathered_.data(), whole_[set].get(), gatheredBytes(), inBytes()));
}

}  // namespace

std::unique_ptr<Work> makeGatherWork(const Gpu& gpu, const Shape& shape) {
  return std::make_unique<GatherWork>(gpu, shape);
}

}  // namespace mk::perf
