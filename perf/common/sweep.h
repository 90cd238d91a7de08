// The sweep of the SM split: how many SMs (CPU platform: agents) communicate, and whether the library's own choice is the best
// of them.  Pure, so that it can be tested without a world; splits.h asks the library.  Called by report.cc and splits.cc.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "json.h"
#include "timing.h"

namespace mk::perf {

// What the SMs of a split do.
enum class SplitOf {
  receivers,  // sum and pass on what arrives from other nodes, and nothing else
  movers,     // copy rows of A, and on GPUs compute beside that
  idle        // no SM communicates alone, computing SMs store to peers; the split leaves so many out of the product
};
const char* nameOf(SplitOf of);

struct Split {
  uint32_t asked = 0;  // 0: the library's choice
  SplitOf of = SplitOf::idle;
  uint32_t communicate = 0, compute = 0;  // what the library makes of it
  bool automatic() const { return asked == 0; }
};

// What mkTune_t is given for a split; zeros: the library's choice.
struct SplitAgents {
  uint32_t compute = 0, receive = 0;
};
SplitAgents agentsFor(uint32_t asked, SplitOf of, uint32_t sms);
// Why a split cannot even be asked for, of so many SMs; empty if it can.
std::string whyNotAsked(uint32_t asked, SplitOf of, uint32_t sms);
// What the library has chosen, from its numbers of agents (mkTune_t).
Split splitChosen(uint32_t asked, SplitOf of, uint32_t sms, SplitAgents chosen);

// For each split, why it is not run beside the others: it would be the same launch as one of them; empty: it is run.  Those that
// `refused` says something of are not run anyway, and nobody is the same as they.  The library's own choice is always run.
std::vector<std::string> sameLaunches(const std::vector<Split>& splits, const std::vector<std::string>& refused);

// Of one shape, launched in one way.
struct SweepVerdict {
  int automatic = -1, best = -1;  // in the list; -1: not timed
  double behind = NAN;            // how much longer the automatic split takes than the best, in percent
};
// us: NaN for what was not run.
SweepVerdict judgeSweep(const std::vector<Split>& splits, const std::vector<double>& us);

std::string sweepHeader(const std::vector<uint32_t>& asked, bool gpu);
struct SweptShape {
  int64_t m = 0, n = 0, k = 0;
  std::string mode;
};
// bestUs: of the shape.  NaN, and no timing: nothing was timed.
std::string sweepLine(const SweptShape& shape, const Split& split, const Timing* timing, double bestUs,
                      const TimingVerdict& verdict);
std::string notRunLine(const SweptShape& shape, const Split& split, const std::string& why);
std::string verdictLine(const SweptShape& shape, const std::vector<Split>& splits, const std::vector<double>& us,
                        const SweepVerdict& verdict);
JsonObject splitJson(const Split& split);

}  // namespace mk::perf
