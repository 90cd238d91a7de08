// A run on the CPU platform, whatever the operation: a scan of M, launches on fresh data that are enqueued back to back, every
// result checked, the bytes sent compared with the formula.  What is the operation's own is a subclass: sum_run.cc, gather_run.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "data.h"
#include "mkernel.h"
#include "options.h"
#include "report.h"
#include "session.h"
#include "traffic.h"
#include "world.h"

namespace mk::perf {

// An output between guards, which show writes out of bounds.
struct GuardedOutput {
  char* memory = nullptr;
  size_t bytes = 0;  // of the output at hand

  char* data() const;
  // What an output of so many bytes needs.
  static size_t room(size_t bytes);
  void prepare(size_t size);
  // How many guards have been written to.
  int64_t damaged() const;
};

class CpuRun {
 public:
  // The report is rank 0's; the others have none.
  CpuRun(World& world, const Options& options, Session& session, const RunInfo& run, Report* report)
      : world_(world), options_(options), session_(session), info_(run), report_(report) {}
  virtual ~CpuRun() = default;
  CpuRun(const CpuRun&) = delete;
  CpuRun& operator=(const CpuRun&) = delete;
  // Ends the session.
  void run();

 protected:
  // Launches that are prepared, enqueued back to back, and then waited for together; each has operands of its own.
  static constexpr int kInFlight = 2;

  // Operands of one launch in flight.
  struct Set {
    Memory a, b, bias;
    GuardedOutput c, gathered;  // gathered: AllGather+GEMM's whole A, if it is asked for
    int64_t launch = 0;
  };

  // ---- The operation's own
  virtual const char* call() const = 0;  // the library's function
  virtual mkResult_t enqueue(int set, int64_t m) = 0;
  virtual void choose(int64_t m, Row* row) = 0;
  virtual Traffic traffic(const Row& row) const = 0;
  virtual int64_t aRows(int64_t m) const = 0;  // of this rank's A
  virtual int64_t kOfB() const = 0;            // of this rank's product
  virtual int64_t cRows(int64_t m) const = 0;  // of this rank's C
  virtual int owner() const = 0;               // whose bias and old C it has (-1: the same as all)
  // A result that all ranks have alike, or nullptr.
  virtual const GuardedOutput* shared(const Set& set) const = 0;
  // What there is beside A, B, bias and C, for M up to mMax; before a launch, fresh or poisoned.
  virtual void allocateMore(int64_t /*mMax*/) {}
  virtual void prepareMore(Set* /*set*/, int64_t /*m*/) {}
  // How this product is checked: changes what a product of A and B, not summed over ranks, would be told of.  Then what is
  // checked beside C.
  virtual void describe(const Set& set, int64_t m, GemmCase* problem) = 0;
  virtual void checkMore(const Set& /*set*/, int64_t /*m*/, Row* /*row*/) {}

  // For all launches in flight: room for outputs of up to so many bytes, in the window, of which a run has one, or in ordinary
  // memory.
  void allocateOutputs(size_t bytes, bool window, GuardedOutput Set::*output);
  // A, B, bias and C.
  Operands operandsOf(const Set& set) const;
  uint64_t offsetInWindow(const char* at) const;

  World& world_;
  const Options& options_;
  Session& session_;
  const RunInfo& info_;
  mkStream_t stream_ = nullptr;
  mkWindow_t window_ = nullptr;
  Set sets_[kInFlight];

 private:
  int64_t aElements(int64_t m) const { return aRows(m) * kOfB(); }
  int64_t cElements(int64_t m) const { return cRows(m) * options_.n; }
  size_t cBytes(int64_t m) const { return static_cast<size_t>(cElements(m)) * info(options_.out).bytes; }
  void allocateBuffers();
  // Fresh data and poisoned outputs.
  void fill(Set* set, int64_t m, int64_t launch);
  // last: of a row, which a negative control spoils.
  void check(const Set& set, int64_t m, bool last, Row* row);
  void corrupt(const Set& set) const;
  void launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row);
  // Data differ by the number of the row of its M.
  void runRow(int64_t number, Row* row);
  void sweep(const Row& blank);
  void disconnect();

  Report* const report_;
  std::vector<Memory> plainMemory_;  // of outputs
  void* windowMemory_ = nullptr;
  Memory oldC_;
};

// The runs, as the programs name them.  GEMM+AllReduce and GEMM+ReduceScatter, whichever the options say; AllGather+GEMM.
void runSumOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report);
void runGatherOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report);

}  // namespace mk::perf
