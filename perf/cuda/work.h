// One shape on one GPU: operands and results, the four ways to compute it that are timed, and the checks.  What differs between
// the operations is a subclass: sum_work.cc, gather_work.cc.  Called by gpu_run.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/report.h"
#include "common/session.h"
#include "common/traffic.h"
#include "common/world.h"
#include "cuda/baseline.h"
#include "cuda/cuda_support.h"
#include "cuda/verifier.h"

namespace mk::perf {

// What all shapes of a run share.
struct Gpu {
  World& world;
  const Options& options;
  Session& session;  // of all ranks
  Session& alone;    // of this rank alone
  const RunInfo& run;
  mkStream_t stream;
  const Cublas* blas;  // or null
  const Nccl* nccl;    // likewise

  void cuda(cudaError_t result, const char* call) const { requireCuda(world, result, call); }
  void sync(const std::string& what) const;
};

class Work {
 public:
  enum Kind { fused, ours, blas, unfused, kinds };
  static const char* nameOf(Kind kind);
  static constexpr int kSets = 4;  // inputs that launches rotate through

  static std::unique_ptr<Work> make(const Gpu& gpu, const Shape& shape);
  Work(const Gpu& gpu, const Shape& shape) : gpu_(gpu), options_(gpu.options), world_(gpu.world), shape_(shape) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Returns why the shape is skipped, the same on all ranks; empty if it is not.
  std::string allocate(Row* row);
  // For a split that the session's arguments ask for.
  void chooseSplit(Row* row);
  // No rank's launch is under way.
  void release();
  // New A in all sets; two fills are never the same.
  void refill();
  virtual bool measured(Kind kind) const;
  void launch(Kind kind, int set);
  // Results before a launch that is checked.
  virtual void poisonResult();
  virtual void poisonUnfused(int set) = 0;
  // What the last fused launch has left, or the unfused one.  Collective.
  void judge(int set, Row* row);
  void judgeUnfused(int set, Row* row);
  // As --corrupt says.
  void corrupt();

  virtual Traffic traffic(const Row& row) const = 0;
  virtual double nvlinkBytes() const = 0;  // that a rank sends to its node's other ranks
  virtual double kOfRank() const = 0;      // of one rank's product

 protected:
  static constexpr int64_t kGuardBytes = 256;  // around every result, to see writes out of bounds
  static constexpr int kGuardByte = 0x5c;
  // Between guards; in a window of its communicator, or in ordinary memory.
  struct Result {
    void* memory = nullptr;
    int64_t bytes = 0;
    Session* session = nullptr;
    mkWindow_t window = nullptr;
    char* data() const { return static_cast<char*>(memory) + kGuardBytes; }
  };
  static int64_t slotBytes(int64_t bytes) { return (bytes + 255) / 256 * 256 + 2 * kGuardBytes; }
  void allocateResult(Session& session, int64_t bytes, bool window, Result* result);
  void freeResult(Result* result);
  bool damaged(const Result& result);
  // The bytes around it as they should be, whatever an earlier launch has made of them.
  void guard(const Result& result);
  DeviceMemory room(int64_t bytes) const { return allocateDevice(world_, bytes); }
  int64_t inBytes() const { return static_cast<int64_t>(info(options_.in).bytes); }
  int64_t outBytes() const { return static_cast<int64_t>(info(options_.out).bytes); }
  uint64_t seedOfA(int set, int rank) const { return seedOf(Role::a, shape_.m, fillOf_[set], rank); }
  uint64_t seedOfB(int rank) const { return seedOf(Role::b, shape_.m, 0, rank); }

  // ---- The operation's own
  virtual int64_t memoryBytes() const = 0;  // of what allocateOperands() takes
  virtual void allocateOperands() = 0;      // and the arguments
  virtual void releaseOperands() = 0;
  virtual void choose(Row* row, Row* alone) = 0;
  virtual void fillA(int set) = 0;
  virtual mkResult_t enqueue(Kind kind, int set) = 0;  // fused, ours
  virtual void multiply(int set, float beta) = 0;      // cuBLAS, into plain_
  virtual void launchUnfused(int set) = 0;
  virtual const void* unfusedResult() const = 0;
  virtual ProductData data(int set) const = 0;  // what the verifier makes again
  virtual int owner() const = 0;                // whose bias and old C it has (-1: the same as all)
  virtual int64_t cRows() const = 0;            // of this rank's C
  virtual int64_t kOfB() const = 0;             // of this rank's product
  virtual int64_t checkedRows() { return verifier_->rows(); }
  virtual void judgeMore(int set, Row* row) = 0;
  // The bytes of C, and a result that all ranks have alike, if there is one.
  int64_t cBytes() const { return cRows() * shape_.n * outBytes(); }
  virtual const Result* shared() const = 0;

  const Gpu& gpu_;
  const Options& options_;
  World& world_;
  const Shape shape_;
  DeviceMemory b_, bias_;
  Result fused_, plain_;  // plain: of a product alone
  std::unique_ptr<Verifier> verifier_;

 private:
  int64_t fill_ = 0, fillOf_[kSets] = {};  // numbers of the fills: part of the seeds
};

// The two kinds.
std::unique_ptr<Work> makeSumWork(const Gpu& gpu, const Shape& shape);
std::unique_ptr<Work> makeGatherWork(const Gpu& gpu, const Shape& shape);

}  // namespace mk::perf
