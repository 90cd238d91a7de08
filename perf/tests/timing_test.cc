// Figures of the tables on GPUs that need none: from given times to rates, roofs and speed-ups, and their line of the table.
#include "common/timing.h"

#include <cmath>
#include <cstdio>

namespace {

int failures = 0;

void near(double value, double expected, const char* what, int line) {
  if (std::fabs(value - expected) <= 1e-9 * std::fabs(expected)) return;
  printf("line %d: %s is %.12g, not %.12g\n", line, what, value, expected);
  ++failures;
}
#define NEAR(value, expected) near((value), (expected), #value, __LINE__)

void expect(bool condition, const char* what, int line) {
  if (condition) return;
  printf("line %d: %s\n", line, what);
  ++failures;
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

mk::perf::Timing square(double b, double part, int ranks) {
  mk::perf::Timing t;
  t.mode = "eager";
  t.m = t.n = static_cast<int64_t>(b);
  t.k = static_cast<int64_t>(part) * ranks;
  t.kOfRank = part;
  t.ranks = t.ranksPerNode = ranks;
  t.nvlinkBytes = mk::perf::nvlinkBytes(t.m, t.n, t.ranksPerNode, 2, 2);
  return t;
}

// Two ranks: half of C goes to its owner, the other half comes out of the own sums.
void boundByProduct() {
  mk::perf::Timing t = square(8192, 4096, 2);
  NEAR(t.nvlinkBytes, 8192.0 * 8192 * 2);
  t.fusedUs = 800;
  t.blasUs = 780;
  t.oursUs = 760;
  t.unfusedUs = 1200;
  const mk::perf::Figures f = mk::perf::figures(t);
  NEAR(f.tflops, 2 * 8192.0 * 8192 * 4096 / 800e-6 / 1e12);
  NEAR(f.nvlinkGBps, 8192.0 * 8192 * 2 / 800e-6 / 1e9);
  NEAR(f.aloneUs, 760);
  NEAR(f.ratio, 780.0 / 760);
  NEAR(f.copyRoof, 0.95);
  NEAR(f.storeRoof, 0.95);
  NEAR(f.speedup, 1.5);
  NEAR(f.idealUs, 780 + 8192.0 * 8192 * 2 / 390e3);
  NEAR(f.idealSpeedup, f.idealUs / 800);
}

void boundByLink() {
  mk::perf::Timing t = square(4096, 256, 8);
  NEAR(t.nvlinkBytes, 4096.0 * 4096 * 4 * 7 / 8);
  t.fusedUs = 200;
  t.blasUs = 20;
  const mk::perf::Figures f = mk::perf::figures(t);
  NEAR(f.aloneUs, 20);
  NEAR(f.copyRoof, t.nvlinkBytes / 390e3 / 200);
  NEAR(f.storeRoof, t.nvlinkBytes / 363e3 / 200);
  EXPECT(f.copyRoof < f.storeRoof);
  EXPECT(std::isnan(f.speedup));
}

// Two nodes of one rank: nothing inside a node, and the network decides.
void boundByNetwork() {
  mk::perf::Timing t = square(4096, 256, 2);
  t.nodes = 2;
  t.ranksPerNode = 1;
  t.nvlinkBytes = mk::perf::nvlinkBytes(t.m, t.n, 1, 2, 2);
  t.nicBytes = 4096.0 * 4096 * 2;
  t.nicGBps = 50;
  NEAR(t.nvlinkBytes, 0.0);
  t.fusedUs = 1000;
  t.oursUs = 30;
  const mk::perf::Figures f = mk::perf::figures(t);
  NEAR(f.nicGBps, t.nicBytes / 1e6);
  NEAR(f.copyRoof, t.nicBytes / 50e3 / 1000);
  NEAR(f.storeRoof, f.copyRoof);
  NEAR(f.idealUs, 30 + t.nicBytes / 50e3);
}

void lines() {
  mk::perf::Timing t = square(8192, 4096, 2);
  t.fusedUs = 849.9;
  t.oursUs = 811.9;
  t.tileM = t.tileN = 256;
  t.computeAgents = 132;
  mk::perf::TimingVerdict verdict;
  verdict.checked = true;
  verdict.share = INFINITY;
  verdict.wrong = 3;
  verdict.identical = false;
  const std::string bad = mk::perf::timingLine(t, verdict);
  printf("%s\n%s\n", mk::perf::timingHeader("nothing", 50, 2).c_str(), bad.c_str());
  EXPECT(bad.find("849.90") != std::string::npos && bad.find("646.8") != std::string::npos);
  EXPECT(bad.find("256x256 132/0") != std::string::npos);
  EXPECT(bad.find("3 of part") != std::string::npos && bad.find("NO") != std::string::npos);
  EXPECT(bad.find("nan") == std::string::npos && bad.find("inf") == std::string::npos);
  const std::string json = mk::perf::timingJson(t).text();
  EXPECT(json.find("\"unfusedUs\": null") != std::string::npos &&
         json.find("\"mode\": \"eager\"") != std::string::npos);
}

}  // namespace

int main() {
  boundByProduct();
  boundByLink();
  boundByNetwork();
  lines();
  if (failures == 0) printf("good\n");
  return failures ? 1 : 0;
}
