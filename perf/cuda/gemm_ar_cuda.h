// The run of mk_gemm_ar_perf on GPUs: times beside cuBLAS and NCCL, eager and from CUDA graphs, and checks what was timed.
// Called by gemm_ar.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/report.h"
#include "common/session.h"
#include "common/world.h"
#include "cuda/baseline.h"
#include "cuda/stopwatch.h"
#include "cuda/verifier.h"

namespace mk::perf {

// Makes the GPU of this rank's place on its host the current one: one rank per GPU.  False, and nothing is done, if the
// platform is another one or there is no GPU; the library then has its own words.  *device: for the header.
bool useLocalDevice(World& world, const Options& options, std::string* device);

class GemmAllReduceCuda {
 public:
  // The session is connected.
  GemmAllReduceCuda(World& world, const Options& options, Session& session, const RunInfo& run);
  ~GemmAllReduceCuda();
  GemmAllReduceCuda(const GemmAllReduceCuda&) = delete;
  GemmAllReduceCuda& operator=(const GemmAllReduceCuda&) = delete;
  // Makes the report on rank 0, and ends the session.
  void run(std::unique_ptr<Report>* report);

 private:
  static constexpr int kSets = 4;  // inputs that launches rotate through
  // C, between guards; registered with a communicator where --window says so.
  struct Result {
    void* memory = nullptr;
    bool fromLibrary = false;
    Session* session = nullptr;
    mkWindow_t window = nullptr;
    char* c() const;
  };
  enum Kind { fused, ours, blas, unfused, kinds };
  // A way of launching: one by one, or from graphs.
  struct Way {
    std::string mode;
    int at[kinds] = {-1, -1, -1, -1};  // in operations_; -1: not measured
  };

  void cuda(cudaError_t result, const char* call) { requireCuda(world_, result, call); }
  void sync(const std::string& what);
  int64_t resultBytes() const;
  int64_t slotBytes() const { return (resultBytes() + 255) / 256 * 256 + 512; }
  void allocateResult(Session& session, Result* result);
  void freeResult(Result* result);
  Operands operands(const Result& result, int set, bool bias) const;

  std::string loadBaseline();
  void runShape(const Shape& shape, Report* report);
  std::string allocate(Row* row);
  void release();
  void refill();
  LaunchSeeds seeds(int set) const;

  void launch(Kind kind, int set);
  bool measured(Kind kind) const;
  Way addEager();
  Way addGraphs();
  std::vector<cudaGraphExec_t> capture(Kind kind);

  Timing timing(const Row& row, const Way& way) const;
  void checkLast(Row* row);
  void checkUnfused(Row* row);
  void checkFresh(const Way& way, bool spoil, Row* row);
  void judge(Row* row);
  void corrupt();

  World& world_;
  const Options& options_;
  Session& session_;
  RunInfo run_;
  Options aloneOptions_;
  std::unique_ptr<Session> alone_;
  mkStream_t stream_ = nullptr;
  std::unique_ptr<Cublas> blas_;
  std::unique_ptr<Nccl> nccl_;
  std::unique_ptr<Stopwatch> watch_;

  // Of the shape at hand.
  Shape shape_;
  int64_t k_ = 0;  // this rank's part
  DeviceMemory a_[kSets], b_, bias_;
  Result fused_, plain_;
  mkGemmAllReduceArgs_t fusedArgs_[kSets] = {}, aloneArgs_[kSets] = {};
  std::vector<TimedOperation> operations_;
  std::vector<cudaGraphExec_t> graphs_;
  std::unique_ptr<Verifier> verifier_;
  int64_t fill_ = 0, fillOf_[kSets] = {};  // numbers of the fills: part of the seeds
  int64_t fusedLaunches_ = 0;
  int lastSet_ = 0;
};

}  // namespace mk::perf
