// Output of the programs that run an operation: header, rows and footer as nccl-tests prints them, and the same as JSON Lines.  Only rank 0
// holds one.  Called by the programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "options.h"
#include "sweep.h"
#include "timing.h"

namespace mk::perf {

// What every rank says of itself; travels as bytes.
struct RankLine {
  int32_t rank = 0, node = 0, localRank = 0;
  int64_t pid = 0;
  char host[64] = "", platform[16] = "", transport[32] = "", device[64] = "";
};

// What holds for the whole run, from the library.
struct RunInfo {
  int version = 0;
  uint32_t cudaVersion = 0, transportAbiMajor = 0, transportAbiMinor = 0;
  std::string revision, compiler, platforms;
  std::string platform, transport;
  std::string baseline;  // GPUs: what the times are compared with
  int ranks = 1, nodes = 1, ranksPerNode = 1;
  uint32_t smCount = 0;  // of a rank, the fewest; CPU platform: agents
  std::vector<RankLine> lines;
};

struct Row {
  int64_t m = 0, n = 0, k = 0;
  int launches = 0;     // whose bytes were counted
  std::string skipped;  // why nothing was run; empty: it was
  uint32_t exchange = 0, tileM = 0, tileN = 0, chunkTiles = 0, chunkRows = 0, computeAgents = 0, receiveAgents = 0,
           minSMs = 0;
  uint64_t workspaceBytes = 0;
  bool checked = false;
  bool compared = true;     // ranks have results that must be the same
  int64_t checkedRows = 0;  // of every launch that was checked
  CheckResult check;
  std::optional<Timing> timing;  // GPUs only
  std::optional<Split> split;    // of a sweep
  int64_t outOfBounds = 0;       // ranks and launches that found bytes around C changed
  uint64_t netBytes = 0;         // of all launches and ranks
  uint64_t netBytesExpected = 0;
  std::vector<uint64_t> netBytesPerRank;
  std::string netError;  // empty if the bytes match; else which do not
  uint64_t netMessages = 0, netBatches = 0;
  int64_t unfusedWrong = 0;  // elements of the comparison's result
  bool good() const {
    return check.wrong == 0 && unfusedWrong == 0 && check.identical && outOfBounds == 0 && netError.empty();
  }
};

class Report {
 public:
  // Opens the JSON file, if one is asked for.  Throws std::runtime_error.
  explicit Report(const Options& options);
  void header(const RunInfo& run);
  // GPUs: a shape has a row for each way it was launched.
  void row(const Row& row);
  // A shape's rows, of all splits; which of them is best.
  void sweep(const std::vector<Row>& rows);
  // Prints the verdict; returns whether every row was good.  Throws std::runtime_error if the JSON could not be written.
  bool footer();

 private:
  struct Closer {
    void operator()(FILE* file) const { fclose(file); }
  };
  void cpuRow(const Row& row);
  void finishRow(const Row& row);
  void jsonHeader(const RunInfo& run);
  void jsonRow(const Row& row);
  void jsonLine(const std::string& line);

  Options options_;
  bool gpu_ = false;
  std::unique_ptr<FILE, Closer> json_;
  int rows_ = 0, bad_ = 0, unchecked_ = 0, skipped_ = 0;
  int64_t wrong_ = 0, outOfBounds_ = 0;
  int differing_ = 0, bytesBad_ = 0;
  double worstError_ = 0, worstShare_ = 0;
  int splitsNotRun_ = 0;
  double worstBehind_ = NAN;  // of the automatic splits
};

}  // namespace mk::perf
