// Output of the programs that run an operation; see report.h.
#include "report.h"

#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "json.h"
#include "mkernel.h"

namespace mk::perf {
namespace {

std::string versionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

const char* exchangeName(uint32_t exchange) {
  switch (exchange) {
    case MK_EXCHANGE_SWAP:
      return "swap";
    case MK_EXCHANGE_HOME:
      return "home";
    case MK_EXCHANGE_DIRECT:
      return "direct";
    case MK_EXCHANGE_RING:
      return "ring";
    default:
      return "none";
  }
}

std::string chosen(const std::string& text) { return text.empty() ? "the library's choice" : text; }

// A mean over the launches: a whole number where it is one.
std::string perLaunch(uint64_t total, int launches) {
  const uint64_t count = static_cast<uint64_t>(launches);
  char text[40];
  if (total % count == 0) {
    snprintf(text, sizeof(text), "%" PRIu64, total / count);
  } else {
    snprintf(text, sizeof(text), "%.1f", static_cast<double>(total) / static_cast<double>(count));
  }
  return text;
}

constexpr const char* kWhyNoTiming =
    "# CPU platform: the same protocol, proxy and transport as on GPUs, run by ordinary processes.  It proves "
    "results,\n"
    "# bytes and messages; how long it takes says nothing about the kernels, so no time is printed.\n";

TimingVerdict verdictOf(const Row& row) {
  TimingVerdict verdict;
  verdict.checked = row.checked;
  verdict.allRows = row.checkedRows == row.m;
  verdict.share = row.check.worst;
  verdict.wrong = row.check.wrong;
  verdict.compared = row.compared;
  verdict.identical = row.check.identical;
  return verdict;
}

}  // namespace

Report::Report(const Options& options) : options_(options) {
  if (options_.json.empty()) return;
  json_.reset(fopen(options_.json.c_str(), "we"));
  if (!json_) throw std::runtime_error("--json " + options_.json + ": " + strerror(errno));
}

void Report::header(const RunInfo& run) {
  const Options& o = options_;
  printf("# %s: libmkernel %s (header %s), revision %s, %s, platforms %s, %s, transport ABI %u.%u\n",
         programName(o.operation), versionText(run.version).c_str(), versionText(MK_VERSION_CODE).c_str(),
         run.revision.c_str(), run.compiler.c_str(), run.platforms.c_str(),
         run.cudaVersion
             ? ("CUDA " + std::to_string(run.cudaVersion / 1000) + "." + std::to_string(run.cudaVersion % 1000 / 10))
                   .c_str()
             : "no CUDA",
         run.transportAbiMajor, run.transportAbiMinor);
  gpu_ = run.platform == "cuda";
  const char* const layout = o.transB ? "(N, K)" : "(K, N)";
  if (o.operation == Operation::allGatherGemm) {
    const char* const gathered[] = {"is not kept", "in ordinary memory", "in a window"};
    printf(
        "# C = %g * A*B + %g * C%s; rows of A divided among the ranks, B and C each rank's own; A, B %s, C %s; B as "
        "%s; "
        "the whole A %s\n",
        static_cast<double>(o.alpha), static_cast<double>(o.beta), o.bias ? " + bias" : "", info(o.in).name,
        info(o.out).name, layout, gathered[static_cast<int>(o.gathered)]);
  } else {
    printf(
        "# C = %g * A*B summed over the ranks + %g * C%s; %sK %sdivided among the ranks; A, B %s, C %s, wire %s; B as "
        "%s\n",
        static_cast<double>(o.alpha), static_cast<double>(o.beta), o.bias ? " + bias" : "",
        o.operation == Operation::gemmReduceScatter ? "rows of C and " : "",
        o.listed() ? "" : (std::to_string(o.k) + " ").c_str(), info(o.in).name, info(o.out).name, info(o.wire).name,
        layout);
  }
  const bool gather = o.operation == Operation::allGatherGemm;
  if (o.suite) {
    printf("# M = %s = b from 2048 to 32768, x2, with b/2 and b/16 of %s on each rank", gather ? "K" : "N",
           gather ? "N" : "K");
  } else if (o.layers) {
    printf("# %s 8192, and on each rank %s 8192 and 28672 over 2, 4 and 8", gather ? "K" : "N", gather ? "N" : "K");
  } else {
    printf("# M %" PRId64 " to %" PRId64 ", %s%" PRId64, o.mMin, o.mMax, o.mIncrement ? "+" : "x",
           o.mIncrement ? o.mIncrement : o.mFactor);
  }
  if (gpu_) {
    printf("; median of %d batches of %s launches, fresh data each; check: %s", o.rounds,
           o.launches ? std::to_string(o.launches).c_str() : "some", o.check ? "after timing" : "none");
  } else {
    printf("; warm-up %d, launches %d, fresh data each; check: %s", o.warmup, o.launches,
           o.check == 0   ? "none"
           : o.check == 1 ? "last launch"
                          : "every launch");
  }
  printf("%s\n", o.operation != Operation::gemmAllReduce ? ""
                 : o.window                              ? "; C in a window: yes"
                                                         : "; C in a window: no");
  printf("# ranks %d, nodes %d%s, ranks per node %d; platform %s (asked: %s), transport %s (asked: %s)\n", run.ranks,
         run.nodes, o.nodes ? " (emulated)" : "", run.ranksPerNode, run.platform.c_str(), chosen(o.platform).c_str(),
         run.transport.empty() ? "none" : run.transport.c_str(), chosen(o.transport).c_str());
  if (run.platform == "cpu") printf("%s", kWhyNoTiming);
  printf("#\n");
  for (const RankLine& line : run.lines) {
    printf("#  Rank %3d  Node %3d  Local rank %2d on %s, process %" PRId64 ", platform %s, transport %s%s%s\n",
           line.rank, line.node, line.localRank, line.host, line.pid, line.platform,
           line.transport[0] ? line.transport : "none", line.device[0] ? ", device " : "", line.device);
  }
  printf("#\n");
  if (o.sweeps()) {
    printf("%s", sweepHeader(o.sweepSplits, gpu_).c_str());
    fflush(stdout);
    jsonHeader(run);
    return;
  }
  if (gpu_) {
    printf("%s", timingHeader(run.baseline, o.nicGBps, run.nodes).c_str());
    fflush(stdout);
    jsonHeader(run);
    return;
  }
  printf(
      "# net: payload bytes of one launch over all ranks, as the proxies counted them and by formula; then the busiest "
      "rank's\n");
  printf("#\n");
  printf("# %7s %7s %7s %5s %9s %9s %5s %5s %8s %14s %14s %13s %9s %9s  %s\n", "M", "N", "K", "type", "error",
         "of bound", "#wrong", "same", "exchange", "net counted", "net formula", "busiest rank", "messages", "batches",
         "time");
  fflush(stdout);
  jsonHeader(run);
}

void Report::cpuRow(const Row& row) {
  const Options& o = options_;
  char error[24] = "N/A", share[24] = "N/A", wrong[24] = "N/A";
  if (row.checked) {
    snprintf(error, sizeof(error), "%.2e", row.check.relativeError);
    snprintf(share, sizeof(share), "%.3f", row.check.worst);
    snprintf(wrong, sizeof(wrong), "%" PRId64, row.check.wrong);
  }
  uint64_t busiest = 0;
  for (uint64_t bytes : row.netBytesPerRank) busiest = std::max(busiest, bytes);
  printf("  %7" PRId64 " %7" PRId64 " %7" PRId64 " %5s %9s %9s %5s %5s %8s %14s %14" PRIu64 " %13s %9s %9s  %s\n",
         row.m, row.n, row.k, info(o.in).name, error, share, wrong,
         !row.checked || !row.compared ? "N/A"
         : row.check.identical         ? "yes"
                                       : "NO",
         exchangeName(row.exchange), perLaunch(row.netBytes, row.launches).c_str(), row.netBytesExpected,
         perLaunch(busiest, row.launches).c_str(), perLaunch(row.netMessages, row.launches).c_str(),
         perLaunch(row.netBatches, row.launches).c_str(), "CPU: no timing");
}

void Report::sweep(const std::vector<Row>& rows) {
  std::vector<Split> splits;
  std::vector<double> us;
  for (const Row& row : rows) {
    splits.push_back(*row.split);
    us.push_back(row.timing ? row.timing->fusedUs : NAN);
  }
  const SweepVerdict verdict = judgeSweep(splits, us);
  const double bestUs = verdict.best < 0 ? NAN : us[static_cast<size_t>(verdict.best)];
  const Row& first = rows.front();
  const SweptShape shape = {first.m, first.n, first.k, first.timing ? first.timing->mode : "cpu"};
  for (const Row& row : rows) {
    if (row.skipped.empty()) {
      const Timing* const timing = row.timing ? &*row.timing : nullptr;
      printf("%s\n", sweepLine(shape, *row.split, timing, bestUs, verdictOf(row)).c_str());
    } else {
      printf("%s\n", notRunLine(shape, *row.split, row.skipped).c_str());
    }
    finishRow(row);
  }
  printf("%s\n", verdictLine(shape, splits, us, verdict).c_str());
  fflush(stdout);
  worstBehind_ = std::fmax(worstBehind_, verdict.behind);

  JsonObject json;
  json.add("record", "sweep").add("M", shape.m).add("N", shape.n).add("K", shape.k).add("mode", shape.mode);
  const auto choice = [&](const char* name, int which) {
    if (which < 0) {
      json.null(name);
      return;
    }
    JsonObject split = splitJson(splits[static_cast<size_t>(which)]);
    json.raw(name, split.add("timeUs", us[static_cast<size_t>(which)]).text());
  };
  choice("best", verdict.best);
  choice("automatic", verdict.automatic);
  json.add("behindPercent", verdict.behind);
  jsonLine(json.text());
}

void Report::row(const Row& row) {
  if (!row.skipped.empty()) {
    printf("  %6" PRId64 " %6" PRId64 " %7" PRId64 "  SKIPPED: %s\n", row.m, row.n, row.k, row.skipped.c_str());
  } else if (row.timing) {
    printf("%s\n", timingLine(*row.timing, verdictOf(row)).c_str());
  } else {
    cpuRow(row);
  }
  finishRow(row);
}

// What is said and counted of every row.
void Report::finishRow(const Row& row) {
  if (!row.netError.empty()) printf("# net bytes: %s\n", row.netError.c_str());
  if (row.unfusedWrong) printf("# the unfused result has %" PRId64 " wrong elements\n", row.unfusedWrong);
  if (row.outOfBounds) printf("# bytes around C were changed, %" PRId64 " times\n", row.outOfBounds);
  fflush(stdout);
  jsonRow(row);

  if (!row.skipped.empty()) {
    ++(row.split ? splitsNotRun_ : skipped_);
    return;
  }
  ++rows_;
  if (!row.good()) ++bad_;
  if (!row.checked) ++unchecked_;
  wrong_ += row.check.wrong;
  outOfBounds_ += row.outOfBounds;
  if (!row.check.identical) ++differing_;
  if (!row.netError.empty()) ++bytesBad_;
  worstError_ = std::max(worstError_, row.check.relativeError);
  worstShare_ = std::max(worstShare_, row.check.worst);
}

bool Report::footer() {
  const bool good = bad_ == 0 && rows_ > 0;
  printf("#\n");
  printf("# Wrong elements          : %" PRId64 "%s\n", wrong_, unchecked_ ? " (data not checked, -c 0)" : "");
  printf("# Out of bounds values    : %" PRId64 "\n", outOfBounds_);
  printf("# Rows with ranks apart   : %d\n", differing_);
  printf("# Rows with bytes apart   : %d\n", bytesBad_);
  printf("# Largest relative error  : %.2e (element: %.3f of its bound)\n", worstError_, worstShare_);
  if (skipped_) printf("# Shapes skipped          : %d\n", skipped_);
  if (splitsNotRun_) printf("# Splits not run          : %d\n", splitsNotRun_);
  if (std::isfinite(worstBehind_)) {
    printf("# Automatic split         : at most %.2f%% behind the best\n", worstBehind_);
  }
  printf("# %s: %d rows good, %d bad\n", good ? "PASSED" : "FAILED", rows_ - bad_, bad_);
  fflush(stdout);
  JsonObject json;
  json.add("record", "summary").add("rows", rows_).add("bad", bad_).add("skipped", skipped_).add("wrong", wrong_);
  json.add("outOfBounds", outOfBounds_).add("rowsDiffering", differing_).add("rowsBytesApart", bytesBad_);
  json.add("relativeError", worstError_).add("passed", good);
  if (options_.sweeps()) json.add("splitsNotRun", splitsNotRun_).add("worstBehindPercent", worstBehind_);
  jsonLine(json.text());
  if (json_ && ferror(json_.get())) throw std::runtime_error("--json " + options_.json + ": writing failed");
  return good;
}

void Report::jsonHeader(const RunInfo& run) {
  const Options& o = options_;
  std::vector<std::string> lines;
  for (const RankLine& line : run.lines) {
    JsonObject rank;
    rank.add("rank", line.rank).add("node", line.node).add("localRank", line.localRank).add("host", line.host);
    rank.add("pid", line.pid).add("platform", line.platform).add("transport", line.transport);
    if (line.device[0]) rank.add("device", line.device);
    lines.push_back(rank.text());
  }
  JsonObject json;
  json.add("record", "header").add("program", programName(o.operation)).add("version", run.version);
  json.add("headerVersion", MK_VERSION_CODE).add("revision", run.revision).add("compiler", run.compiler);
  json.add("platforms", run.platforms).add("cudaVersion", run.cudaVersion);
  json.add("platform", run.platform).add("transport", run.transport);
  json.add("ranks", run.ranks).add("nodes", run.nodes).add("ranksPerNode", run.ranksPerNode);
  json.add("smCount", run.smCount);
  json.add("warmup", o.warmup).add("launches", o.launches).add("check", o.check);
  json.add("alpha", static_cast<double>(o.alpha)).add("beta", static_cast<double>(o.beta));
  json.add("bias", o.bias).add("transB", o.transB).add("window", o.window == 1);
  if (gpu_) {
    json.add("baseline", run.baseline).add("rounds", o.rounds).add("graph", o.graph).add("nicGBps", o.nicGBps);
  }
  json.raw("rankList", JsonObject::array(lines));
  jsonLine(json.text());
}

void Report::jsonRow(const Row& row) {
  const Options& o = options_;
  std::vector<std::string> perRank;
  for (uint64_t bytes : row.netBytesPerRank) perRank.push_back(std::to_string(bytes));
  JsonObject json;
  json.add("record", "row").add("M", row.m).add("N", row.n).add("K", row.k);
  if (row.split) json.raw("split", splitJson(*row.split).text());
  if (!row.skipped.empty()) {
    json.add("skipped", row.skipped);
    jsonLine(json.text());
    return;
  }
  json.add("type", info(o.in).name).add("out", info(o.out).name).add("wire", info(o.wire).name);
  json.add("exchange", exchangeName(row.exchange)).add("tileM", row.tileM).add("tileN", row.tileN);
  json.add("chunkTiles", row.chunkTiles).add("chunkRows", row.chunkRows).add("computeAgents", row.computeAgents);
  json.add("receiveAgents", row.receiveAgents).add("minSMs", row.minSMs).add("workspaceBytes", row.workspaceBytes);
  json.add("launches", row.launches).add("checked", row.checked);
  if (row.checked) {
    json.add("relativeError", row.check.relativeError).add("shareOfBound", row.check.worst);
    json.add("wrong", row.check.wrong).add("identical", row.check.identical);
    json.add("checkedRows", row.checkedRows);
  } else {
    json.null("relativeError").null("shareOfBound").null("wrong").null("identical");
  }
  json.add("outOfBounds", row.outOfBounds).add("netBytes", row.netBytes);
  json.add("netBytesExpected", row.netBytesExpected * static_cast<uint64_t>(row.launches));
  json.raw("netBytesPerRank", JsonObject::array(perRank)).add("netError", row.netError);
  json.add("netMessages", row.netMessages).add("netBatches", row.netBatches);
  if (row.timing) {
    json.add("timeUs", row.timing->fusedUs).raw("timing", timingJson(*row.timing).text());
    json.add("unfusedWrong", row.unfusedWrong);
  } else {
    json.null("timeUs");
  }
  json.add("passed", row.good());
  jsonLine(json.text());
}

void Report::jsonLine(const std::string& line) {
  if (!json_) return;
  fprintf(json_.get(), "%s\n", line.c_str());
  fflush(json_.get());
}

}  // namespace mk::perf
