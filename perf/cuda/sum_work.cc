// GEMM+AllReduce and GEMM+ReduceScatter on GPUs; see work.h.
#include "cuda/work.h"

namespace mk::perf {
namespace {

class SumWork final : public Work {
 public:
  SumWork(const Gpu& gpu, const Shape& shape) : Work(gpu, shape), k_(partOfK(shape.k, world_.rank(), world_.size())) {}

  // The old C of each rank's own rows would have to be added behind NCCL's sum.
  bool measured(Kind kind) const override {
    return Work::measured(kind) && (kind != unfused || !scatters() || options_.beta == 0);
  }
  Traffic traffic(const Row& row) const override {
    return scatters() ? gemmReduceScatterTraffic(options_, row, gpu_.run)
                      : gemmAllReduceTraffic(options_, row, gpu_.run.nodes);
  }
  double nvlinkBytes() const override {
    return perf::nvlinkBytes(shape_.m, shape_.n, gpu_.run.ranksPerNode, info(options_.wire).bytes,
                             scatters() ? 0 : info(options_.out).bytes);
  }
  double kOfRank() const override { return static_cast<double>(shape_.k) / world_.size(); }

 private:
  bool scatters() const { return options_.operation == Operation::gemmReduceScatter; }
  RowShare share() const { return scatters() ? rowsOf(shape_.m, world_.rank(), world_.size()) : RowShare{0, shape_.m}; }
  // NCCL scatters equal parts.
  int64_t height() const { return rowsOf(shape_.m, 0, world_.size()).rows; }
  int64_t plainRows() const { return scatters() ? height() * world_.size() : shape_.m; }
  int64_t plainBytes() const { return plainRows() * shape_.n * outBytes(); }
  int64_t scatteredBytes() const { return scatters() ? height() * shape_.n * outBytes() : 0; }

  int64_t memoryBytes() const override {
    return kSets * shape_.m * k_ * inBytes() + slotBytes(cBytes()) + slotBytes(plainBytes()) + scatteredBytes();
  }
  void allocateOperands() override;
  void releaseOperands() override {
    for (DeviceMemory& a : a_) a.reset();
    scattered_.reset();
  }
  void choose(Row* row, Row* alone) override {
    if (scatters()) {
      gpu_.session.choose(MK_OP_GEMM_REDUCE_SCATTER, &fusedScatter_[0], gpu_.run.nodes, row);
      gpu_.alone.choose(MK_OP_GEMM_REDUCE_SCATTER, &aloneScatter_[0], 1, alone);
    } else {
      gpu_.session.choose(MK_OP_GEMM_ALL_REDUCE, &fusedReduce_[0], gpu_.run.nodes, row);
      gpu_.alone.choose(MK_OP_GEMM_ALL_REDUCE, &aloneReduce_[0], 1, alone);
    }
  }
  void fillA(int set) override {
    fillNormal(options_.in, a_[set].get(), shape_.m * k_, seedOfA(set, world_.rank()), gpu_.stream);
  }
  mkResult_t enqueue(Kind kind, int set) override {
    Session& session = kind == fused ? gpu_.session : gpu_.alone;
    if (scatters()) return session.enqueue(kind == fused ? &fusedScatter_[set] : &aloneScatter_[set], gpu_.stream);
    return session.enqueue(kind == fused ? &fusedReduce_[set] : &aloneReduce_[set], gpu_.stream);
  }
  void multiply(int set, float beta) override {
    const int status =
        gpu_.blas->multiply(options_, a_[set].get(), b_.get(), plain_.data(), shape_.m, shape_.n, k_, beta);
    if (status != 0) world_.die(exitSystem, "cublasGemmEx: status " + std::to_string(status));
  }
  void launchUnfused(int set) override;
  void poisonUnfused(int) override {
    poison(options_.out, plain_.data(), plainRows() * shape_.n, gpu_.stream);
    if (scatters()) poison(options_.out, scattered_.get(), height() * shape_.n, gpu_.stream);
  }
  const void* unfusedResult() const override { return scatters() ? scattered_.get() : plain_.data(); }
  ProductData data(int set) const override;
  int owner() const override { return scatters() ? world_.rank() : -1; }
  int64_t cRows() const override { return share().rows; }
  int64_t kOfB() const override { return k_; }
  int64_t checkedRows() override { return scatters() ? world_.sum(verifier_->rows()) : verifier_->rows(); }
  void judgeMore(int, Row*) override {}
  const Result* shared() const override { return scatters() ? nullptr : &fused_; }

  const int64_t k_;  // this rank's part
  DeviceMemory a_[kSets], scattered_;
  mkGemmAllReduceArgs_t fusedReduce_[kSets] = {}, aloneReduce_[kSets] = {};
  mkGemmReduceScatterArgs_t fusedScatter_[kSets] = {}, aloneScatter_[kSets] = {};
};

void SumWork::allocateOperands() {
  for (DeviceMemory& a : a_) a = room(shape_.m * k_ * inBytes());
  if (scatters()) scattered_ = room(scatteredBytes());
  const bool window = !scatters() && options_.window == 1;
  allocateResult(gpu_.session, cBytes(), window, &fused_);
  allocateResult(gpu_.alone, plainBytes(), window, &plain_);
  const auto operands = [&](const Result& result, int set, bool bias) {
    Operands o;
    o.a = a_[set].get();
    o.b = b_.get();
    if (bias) o.bias = bias_.get();
    o.c = result.data();
    o.window = result.window;
    if (result.window) o.offset = kGuardBytes;
    return o;
  };
  const int64_t m = shape_.m, n = shape_.n;
  for (int set = 0; set < kSets; ++set) {
    const Operands mine = operands(fused_, set, options_.bias), alone = operands(plain_, set, false);
    if (scatters()) {
      fusedScatter_[set] = gpu_.session.scatterArguments(mine, m, share().rows, n, k_);
      aloneScatter_[set] = gpu_.alone.scatterArguments(alone, m, m, n, k_);
    } else {
      fusedReduce_[set] = gpu_.session.arguments(mine, m, n, k_);
      aloneReduce_[set] = gpu_.alone.arguments(alone, m, n, k_);
    }
  }
}

void SumWork::launchUnfused(int set) {
  multiply(set, world_.rank() ? 0 : options_.beta);
  const int status = scatters() ? gpu_.nccl->reduceScatter(options_.out, plain_.data(), scattered_.get(),
                                                           height() * shape_.n, gpu_.stream)
                                : gpu_.nccl->allReduce(options_.out, plain_.data(), shape_.m * shape_.n, gpu_.stream);
  if (status != 0) world_.die(exitSystem, "NCCL's sum: result " + std::to_string(status));
}

ProductData SumWork::data(int set) const {
  ProductData data;
  for (int rank = 0; rank < world_.size(); ++rank)
    data.terms.push_back({partOfK(shape_.k, rank, world_.size()), seedOfA(set, rank), seedOfB(rank)});
  data.firstRow = share().first;
  data.summed = true;
  data.everywhere = !scatters();
  data.oldC = seedOf(Role::oldC, shape_.m, 0, owner());
  data.bias = seedOf(Role::bias, shape_.m, 0, owner());
  return data;
}

}  // namespace

std::unique_ptr<Work> makeSumWork(const Gpu& gpu, const Shape& shape) { return std::make_unique<SumWork>(gpu, shape); }

}  // namespace mk::perf
