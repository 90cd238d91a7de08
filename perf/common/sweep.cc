// The sweep of the SM split; see sweep.h.
#include "sweep.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace mk::perf {
namespace {

std::string splitName(const Split& split) { return split.automatic() ? "auto" : std::to_string(split.asked); }

std::string shapeCells(const SweptShape& shape) {
  char text[96];
  snprintf(text, sizeof(text), "  %6" PRId64 " %6" PRId64 " %7" PRId64 " %5s", shape.m, shape.n, shape.k,
           shape.mode.c_str());
  return text;
}

std::string shapeName(const SweptShape& shape) {
  return "M " + std::to_string(shape.m) + ", N " + std::to_string(shape.n) + ", K " + std::to_string(shape.k) + ", " +
         shape.mode;
}

bool same(const Split& a, const Split& b) { return a.communicate == b.communicate && a.compute == b.compute; }

}  // namespace

const char* nameOf(SplitOf of) {
  constexpr const char* names[] = {"receive", "move", "idle"};
  return names[static_cast<int>(of)];
}

SplitAgents agentsFor(uint32_t asked, SplitOf of, uint32_t sms) {
  if (asked == 0) return {};
  if (of == SplitOf::idle) return {sms - asked, 0};
  return {0, asked};
}

std::string whyNotAsked(uint32_t asked, SplitOf of, uint32_t sms) {
  if (of != SplitOf::idle || asked < sms) return "";
  return "of " + std::to_string(sms) + " SMs none would compute";
}

Split splitChosen(uint32_t asked, SplitOf of, uint32_t sms, SplitAgents chosen) {
  Split split;
  split.asked = asked;
  split.of = of;
  split.compute = chosen.compute;
  split.communicate = of != SplitOf::idle ? chosen.receive : sms - std::min(sms, chosen.compute);
  return split;
}

std::vector<std::string> sameLaunches(const std::vector<Split>& splits, const std::vector<std::string>& refused) {
  std::vector<std::string> why(splits.size());
  // The first of equals is run, but one that gets what it asks for rather than one that does not.
  const auto before = [&](size_t a, size_t b) {
    const auto rank = [&](size_t i) {
      if (splits[i].automatic()) return 0;
      return splits[i].asked == splits[i].communicate ? 1 : 2;
    };
    return rank(a) != rank(b) ? rank(a) < rank(b) : a < b;
  };
  for (size_t i = 0; i < splits.size(); ++i) {
    if (!refused[i].empty()) continue;
    size_t first = i;
    for (size_t j = 0; j < splits.size(); ++j) {
      if (refused[j].empty() && same(splits[i], splits[j]) && before(j, first)) first = j;
    }
    if (first == i) continue;
    why[i] = "the same launch as split " + splitName(splits[first]) + ": " + std::to_string(splits[i].communicate) +
             " " + nameOf(splits[i].of) + ", " + std::to_string(splits[i].compute) + " compute";
  }
  return why;
}

SweepVerdict judgeSweep(const std::vector<Split>& splits, const std::vector<double>& us) {
  SweepVerdict verdict;
  for (size_t i = 0; i < splits.size(); ++i) {
    if (!std::isfinite(us[i])) continue;
    if (splits[i].automatic()) verdict.automatic = static_cast<int>(i);
    if (verdict.best < 0 || us[i] < us[static_cast<size_t>(verdict.best)]) verdict.best = static_cast<int>(i);
  }
  if (verdict.automatic >= 0) {
    verdict.behind = 100 * (us[static_cast<size_t>(verdict.automatic)] / us[static_cast<size_t>(verdict.best)] - 1);
  }
  return verdict;
}

std::string sweepHeader(const std::vector<uint32_t>& asked, bool gpu) {
  std::string list;
  for (const uint32_t split : asked) list += std::to_string(split) + ", ";
  std::string text = "# splits: " + list + "and auto, the library's own choice\n";
  text +=
      "# SMs: that do as 'what' says, and that compute.  receive: from other nodes, and nothing else; move: copy rows "
      "of A";
  text += gpu ? ", and compute beside that;\n" : ";\n";
  text +=
      "# idle: no SM communicates alone, those that compute store to peers; the split leaves SMs out of the product, "
      "to "
      "copy an ordinary C or to nothing.\n";
  if (gpu) text += "# Times are microseconds on the slowest rank; behind: the best split of the shape, in percent.\n";
  char line[240];
  snprintf(line, sizeof(line), "#\n# %6s %6s %7s %5s | %5s %7s %5s %7s |%9s%9s%9s %7s %6s | %8s %11s %4s\n", "M", "N",
           "K", "mode", "split", "what", "SMs", "compute", "us", "fastest", "slowest", "TFLOP/s", "behind", "of bound",
           "wrong", "same");
  return text + line;
}

std::string sweepLine(const SweptShape& shape, const Split& split, const Timing* timing, double bestUs,
                      const TimingVerdict& verdict) {
  char text[96];
  snprintf(text, sizeof(text), " | %5s %7s %5u %7u |", splitName(split).c_str(), nameOf(split.of), split.communicate,
           split.compute);
  std::string line = shapeCells(shape) + text;
  const double us = timing != nullptr ? timing->fusedUs : NAN;
  line += timeCell(us) + timeCell(timing != nullptr ? timing->fastestUs : NAN) +
          timeCell(timing != nullptr ? timing->slowestUs : NAN) + " " +
          cell(timing != nullptr ? figures(*timing).tflops : NAN, 7, 1) + " " +
          cell(100 * (us / bestUs - 1), 6, 1, "%") + " | " + verdictCells(verdict);
  return timing != nullptr ? line : line + "  CPU: no timing";
}

std::string notRunLine(const SweptShape& shape, const Split& split, const std::string& why) {
  char text[64];
  snprintf(text, sizeof(text), " | %5s %7s NOT RUN: ", splitName(split).c_str(), nameOf(split.of));
  SweptShape all = shape;
  all.mode.clear();
  return shapeCells(all) + text + why;
}

std::string verdictLine(const SweptShape& shape, const std::vector<Split>& splits, const std::vector<double>& us,
                        const SweepVerdict& verdict) {
  const std::string line = "# " + shapeName(shape) + ": ";
  if (verdict.best < 0 || verdict.automatic < 0) return line + "no timing, so no best split";
  const auto text = [&](int which) {
    const Split& split = splits[static_cast<size_t>(which)];
    char time[64];
    snprintf(time, sizeof(time), "%s (%u %s, %.2f us)", splitName(split).c_str(), split.communicate, nameOf(split.of),
             us[static_cast<size_t>(which)]);
    return std::string(time);
  };
  char behind[48];
  snprintf(behind, sizeof(behind), ", %.2f%% behind", verdict.behind);
  return line + "best split " + text(verdict.best) + "; automatic " + text(verdict.automatic) + behind;
}

JsonObject splitJson(const Split& split) {
  JsonObject json;
  json.add("automatic", split.automatic()).add("asked", split.asked).add("what", nameOf(split.of));
  json.add("communicate", split.communicate).add("compute", split.compute);
  return json;
}

}  // namespace mk::perf
