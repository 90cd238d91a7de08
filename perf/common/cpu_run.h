// A run on the CPU platform, whatever the operation: a scan of M, launches on fresh data that are enqueued back to back, every
// result checked, the bytes sent compared with the formula.  What is the operation's own, its operands and their check, is a
// subclass: sum_run.cc, gather_run.cc.
#pragma once

#include <cstdint>
#include <string>

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

  // For all values of M.
  virtual void allocateBuffers() = 0;
  // Fresh data and poisoned outputs.
  virtual void fill(int set, int64_t m, int64_t launch) = 0;
  virtual mkResult_t enqueue(int set, int64_t m) = 0;
  virtual void choose(int64_t m, Row* row) = 0;
  virtual Traffic traffic(const Row& row) const = 0;
  // last: of a row, which a negative control spoils.
  virtual void check(int set, int64_t m, bool last, Row* row) = 0;
  virtual const char* call() const = 0;  // the library's function

  // Memory that is registered as the window; freed at the end.
  char* makeWindow(size_t bytes);
  uint64_t offsetInWindow(const char* at) const;

  World& world_;
  const Options& options_;
  Session& session_;
  const RunInfo& info_;
  mkStream_t stream_ = nullptr;
  mkWindow_t window_ = nullptr;

 private:
  void launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row);
  Row runRow(int64_t m);
  void disconnect();

  Report* const report_;
  void* windowMemory_ = nullptr;
};

// The runs, as the programs name them.  GEMM+AllReduce and GEMM+ReduceScatter, whichever the options say; AllGather+GEMM.
void runSumOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report);
void runGatherOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report);

}  // namespace mk::perf
