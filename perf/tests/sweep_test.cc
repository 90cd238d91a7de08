// What of a sweep needs no world: what a split asks for, which are the same launch, which is the best, and their text.
#include "common/sweep.h"

#include <cmath>
#include <cstdio>

namespace {

using namespace mk::perf;

int failures = 0;

void expect(bool condition, const char* what, int line) {
  if (condition) return;
  printf("line %d: %s\n", line, what);
  ++failures;
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Split of(uint32_t asked, uint32_t communicate, uint32_t compute) {
  return {asked, SplitOf::receivers, communicate, compute};
}

void asks() {
  for (const SplitOf kind : {SplitOf::receivers, SplitOf::movers, SplitOf::idle}) {
    const SplitAgents own = agentsFor(0, kind, 132);
    EXPECT(own.compute == 0 && own.receive == 0);
  }
  EXPECT(agentsFor(16, SplitOf::receivers, 132).receive == 16 && agentsFor(16, SplitOf::receivers, 132).compute == 0);
  EXPECT(agentsFor(16, SplitOf::movers, 132).receive == 16 && agentsFor(16, SplitOf::movers, 132).compute == 0);
  EXPECT(agentsFor(16, SplitOf::idle, 132).receive == 0 && agentsFor(16, SplitOf::idle, 132).compute == 116);
  // No agents at all would be the library's own choice.
  EXPECT(whyNotAsked(131, SplitOf::idle, 132).empty());
  EXPECT(!whyNotAsked(132, SplitOf::idle, 132).empty() && !whyNotAsked(133, SplitOf::idle, 132).empty());
  EXPECT(whyNotAsked(132, SplitOf::receivers, 132).empty());  // the library says so itself
  EXPECT(splitChosen(1, SplitOf::receivers, 132, {130, 2}).communicate == 2);
  EXPECT(splitChosen(8, SplitOf::idle, 132, {124, 0}).communicate == 8);
  EXPECT(splitChosen(0, SplitOf::movers, 132, {132, 48}).communicate == 48);
}

void repeats() {
  // As on a GPU, where a cluster has two: 1 gets 2, and 16 is what is chosen anyway.
  const std::vector<Split> splits = {of(0, 16, 116),  of(1, 2, 130),   of(2, 2, 130), of(3, 4, 128), of(5, 4, 128),
                                     of(16, 16, 116), of(17, 16, 114), of(64, 0, 0),  of(65, 0, 0)};
  std::vector<std::string> refused(splits.size());
  refused[7] = refused[8] = "refused";
  const std::vector<std::string> why = sameLaunches(splits, refused);
  EXPECT(why[0].empty());
  EXPECT(has(why[1], "as split 2:"));  // the one that gets what it asks for
  EXPECT(why[2].empty());
  EXPECT(why[3].empty());  // else the first
  EXPECT(has(why[4], "as split 3:"));
  EXPECT(has(why[5], "as split auto:"));
  EXPECT(why[6].empty());  // others compute
  EXPECT(why[7].empty() && why[8].empty());
  // Where nothing can be chosen, the automatic split alone is run.
  const std::vector<std::string> none = sameLaunches({of(0, 2, 130), of(2, 2, 130), of(1, 2, 130)}, {"", "", ""});
  EXPECT(none[0].empty() && has(none[1], "auto") && has(none[2], "auto"));
}

void judges() {
  const std::vector<Split> splits = {of(0, 16, 116), of(8, 8, 124), of(32, 32, 100)};
  SweepVerdict v = judgeSweep(splits, {103, 100, 110});
  EXPECT(v.automatic == 0 && v.best == 1 && std::fabs(v.behind - 3) < 1e-9);
  v = judgeSweep(splits, {100, 103, NAN});
  EXPECT(v.automatic == 0 && v.best == 0 && v.behind == 0);
  v = judgeSweep(splits, {NAN, 103, 101});
  EXPECT(v.automatic == -1 && v.best == 2 && std::isnan(v.behind));
  v = judgeSweep(splits, {NAN, NAN, NAN});
  EXPECT(v.automatic == -1 && v.best == -1 && std::isnan(v.behind));
}

void shows() {
  const SweptShape shape = {8192, 4096, 2048, "eager"};
  const std::vector<Split> splits = {of(0, 16, 116), of(8, 8, 124)};
  Timing t;
  t.m = shape.m, t.n = shape.n, t.k = shape.k, t.kOfRank = 1024;
  t.fusedUs = 110, t.fastestUs = 108, t.slowestUs = 112;
  TimingVerdict checked;
  checked.checked = true;
  const std::string line = sweepLine(shape, splits[0], &t, 100, checked);
  EXPECT(has(line, " auto receive    16     116 |   110.00   108.00   112.00   624.7  10.0% |"));
  EXPECT(!has(line, "no timing"));
  const std::string untimed = sweepLine(shape, splits[1], nullptr, NAN, checked);
  EXPECT(has(untimed, "    8 receive     8     124 |        -") && has(untimed, "CPU: no timing"));
  EXPECT(has(notRunLine(shape, splits[1], "why not"), "NOT RUN: why not"));
  const std::vector<double> us = {110, 100};
  const std::string verdict = verdictLine(shape, splits, us, judgeSweep(splits, us));
  EXPECT(has(verdict, "best split 8 (8 receive, 100.00 us); automatic auto (16 receive, 110.00 us), 10.00% behind"));
  const std::vector<double> none = {NAN, NAN};
  EXPECT(has(verdictLine(shape, splits, none, judgeSweep(splits, none)), "no timing"));
  EXPECT(has(splitJson(splits[1]).text(), "\"automatic\": false, \"asked\": 8, \"what\": \"receive\""));
  // The columns of the table stand under their names.
  const std::string header = sweepHeader({1, 8}, true);
  const std::string names = header.substr(header.rfind("# ", header.size() - 2));
  EXPECT(has(header, "splits: 1, 8, and auto"));
  for (size_t i = 0; i < names.size(); ++i) EXPECT(names[i] != '|' || line[i] == '|');
}

}  // namespace

int main() {
  asks();
  repeats();
  judges();
  shows();
  if (failures) printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
