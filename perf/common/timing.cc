// Figures and text of what was timed on GPUs; see timing.h.
#include "timing.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace mk::perf {
namespace {

// fmin and fmax take the other argument where one is NaN.
double least(double x, double y) { return std::fmin(x, y); }
double most(double x, double y) { return std::fmax(x, y); }

double microseconds(double bytes, double gigabytesPerSecond) { return bytes / gigabytesPerSecond / 1e3; }

}  // namespace

std::string cell(double value, int width, int decimals, const char* unit) {
  char text[48];
  if (std::isfinite(value)) {
    snprintf(text, sizeof(text), "%.*f%s", decimals, value, unit);
  } else {
    snprintf(text, sizeof(text), "-");
  }
  char padded[64];
  snprintf(padded, sizeof(padded), "%*s", width, text);
  return padded;
}

std::string timeCell(double us) { return cell(us, 9, us < 1000 ? 2 : 1); }

double nvlinkBytes(int64_t m, int64_t n, int ranksPerNode, uint64_t wireBytes, uint64_t outBytes) {
  const double elements = static_cast<double>(m) * static_cast<double>(n);
  return elements * static_cast<double>(wireBytes + outBytes) * (ranksPerNode - 1) / ranksPerNode;
}

Figures figures(const Timing& t) {
  Figures f;
  f.tflops = 2.0 * static_cast<double>(t.m) * static_cast<double>(t.n) * t.kOfRank / t.fusedUs / 1e6;
  f.nvlinkGBps = t.nvlinkBytes / t.fusedUs / 1e3;
  f.nicGBps = t.nicBytes / t.fusedUs / 1e3;
  f.aloneUs = least(t.blasUs, t.oursUs);
  f.ratio = t.blasUs / t.oursUs;
  const double nic = t.nodes > 1 ? microseconds(t.nicBytes, t.nicGBps) : 0;
  const double copy = std::max(microseconds(t.nvlinkBytes, kCopyEngineGBps), nic);
  const double store = std::max(microseconds(t.nvlinkBytes, kStoreGBps), nic);
  f.idealUs = (std::isfinite(t.blasUs) ? t.blasUs : t.oursUs) + copy;
  f.speedup = t.unfusedUs / t.fusedUs;
  f.idealSpeedup = f.idealUs / t.fusedUs;
  f.copyRoof = most(f.aloneUs, copy) / t.fusedUs;
  f.storeRoof = most(f.aloneUs, store) / t.fusedUs;
  return f;
}

std::string timingHeader(const std::string& baseline, double nicGBps, int nodes) {
  char text[2600];
  std::string links = "390 (copy engine) and 363 GB/s (stores) on NVLink";
  if (nodes > 1) {
    snprintf(text, sizeof(text), ", %g GB/s per network card", nicGBps);
    links += text;
  }
  snprintf(
      text, sizeof(text),
      "# compared with: %s\n"
      "# Times are microseconds on the slowest rank; TFLOP/s and GB/s are of one GPU.  cuBLAS, ours: the product "
      "alone, on all SMs; ratio: the first over the second.\n"
      "# unfused: cuBLAS and NCCL; ideal: cuBLAS and the links at full rate, one after the other; x: of each over "
      "fused.\n"
      "# roof%%: the longer of the faster product alone and the bytes at %s, over fused.\n"
      "# wrong: 'all' elements were checked, or 'part': a sample of rows; the ranks' bits are compared everywhere.\n"
      "#\n"
      "# %6s %6s %7s %6s %5s |%9s %7s %7s %6s |%9s%9s %5s |%9s%9s %5s %6s | %6s %6s | %9s %5s | %8s %11s %4s\n",
      baseline.c_str(), links.c_str(), "M", "N", "K", "K/rank", "mode", "fused", "TFLOP/s", "NVLink", "NIC", "cuBLAS",
      "ours", "ratio", "unfused", "ideal", "x", "xideal", "roof%", "roof%", "tile", "split", "of bound", "wrong",
      "same");
  std::string result = text;
  snprintf(text, sizeof(text), "# %6s %6s %7s %6s %5s |%9s %7s %7s %6s |%9s%9s %5s |%9s%9s %5s %6s | %6s %6s |\n", "",
           "", "", "", "", "us", "", "GB/s", "GB/s", "us", "us", "", "us", "us", "", "", "390", "363");
  return result + text;
}

std::string verdictCells(const TimingVerdict& verdict) {
  const std::string wrong =
      verdict.checked ? std::to_string(verdict.wrong) + (verdict.allRows ? " of all" : " of part") : "unchecked";
  char text[64];
  snprintf(text, sizeof(text), "%8s %11s %4s",
           !verdict.checked      ? "-"
           : verdict.share > 999 ? ">999"
                                 : cell(verdict.share, 0, 3).c_str(),
           wrong.c_str(),
           !verdict.checked || !verdict.compared ? "-"
           : verdict.identical                   ? "yes"
                                                 : "NO");
  return text;
}

std::string timingLine(const Timing& t, const TimingVerdict& verdict) {
  const Figures f = figures(t);
  char text[240];
  snprintf(text, sizeof(text), "  %6" PRId64 " %6" PRId64 " %7" PRId64 " %6" PRId64 " %5s |", t.m, t.n, t.k,
           static_cast<int64_t>(t.kOfRank), t.mode.c_str());
  std::string line = text;
  line += timeCell(t.fusedUs) + " " + cell(f.tflops, 7, 1) + " " + cell(f.nvlinkGBps, 7, 1) + " " +
          cell(t.nodes > 1 ? f.nicGBps : NAN, 6, 1) + " |";
  line += timeCell(t.blasUs) + timeCell(t.oursUs) + " " + cell(f.ratio, 5, 3) + " |" + timeCell(t.unfusedUs) +
          timeCell(f.idealUs) + " " + cell(f.speedup, 5, 2) + " " + cell(f.idealSpeedup, 6, 2) + " | ";
  line += cell(100 * f.copyRoof, 6, 1) + " " + cell(100 * f.storeRoof, 6, 1) + " | ";
  const std::string tile = std::to_string(t.tileM) + "x" + std::to_string(t.tileN);
  const std::string split = std::to_string(t.computeAgents) + "/" + std::to_string(t.receiveAgents);
  snprintf(text, sizeof(text), "%9s %5s | ", tile.c_str(), split.c_str());
  return line + text + verdictCells(verdict);
}

JsonObject timingJson(const Timing& t) {
  const Figures f = figures(t);
  JsonObject json;
  json.add("mode", t.mode).add("ranks", t.ranks).add("rounds", t.rounds).add("launchesPerRound", t.launches);
  json.add("fusedUs", t.fusedUs).add("fastestUs", t.fastestUs).add("slowestUs", t.slowestUs);
  json.add("cublasUs", t.blasUs).add("oursUs", t.oursUs).add("unfusedUs", t.unfusedUs).add("idealUs", f.idealUs);
  json.add("tflops", f.tflops).add("nvlinkBytes", t.nvlinkBytes).add("nvlinkGBps", f.nvlinkGBps);
  json.add("nicBytes", t.nicBytes).add("nicGBps", f.nicGBps).add("nicRateGBps", t.nicGBps);
  json.add("speedup", f.speedup).add("idealSpeedup", f.idealSpeedup).add("cublasOverOurs", f.ratio);
  json.add("copyRoof", f.copyRoof).add("storeRoof", f.storeRoof);
  return json;
}

}  // namespace mk::perf
