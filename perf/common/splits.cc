// What the library makes of each split of a sweep; see splits.h.
#include "splits.h"

namespace mk::perf {
namespace {

// All ranks have the same numbers, unless their devices differ.
SplitAgents agreed(World& world, const Row& row) {
  return {static_cast<uint32_t>(world.max(uint64_t{row.computeAgents})),
          static_cast<uint32_t>(world.max(uint64_t{row.receiveAgents}))};
}

}  // namespace

void useSplit(Session& session, const RunInfo& run, const Split& split) {
  session.setAgents(agentsFor(split.asked, split.of, run.smCount));
}

std::vector<Row> chooseSplits(World& world, const Options& options, Session& session, const RunInfo& run,
                              const Row& blank, const std::function<void(Row*)>& choose) {
  std::vector<Row> rows = {blank};
  session.setAgents({});
  choose(&rows[0]);
  const SplitAgents own = agreed(world, rows[0]);
  const SplitOf of = own.receive == 0                                ? SplitOf::idle
                     : options.operation == Operation::allGatherGemm ? SplitOf::movers
                                                                     : SplitOf::receivers;
  rows[0].split = splitChosen(0, of, run.smCount, own);
  for (const uint32_t asked : options.sweepSplits) {
    Row row = blank;
    Split split;
    split.asked = asked;
    split.of = of;
    row.skipped = whyNotAsked(asked, of, run.smCount);
    if (row.skipped.empty()) {
      useSplit(session, run, split);
      choose(&row);
    }
    row.split = row.skipped.empty() ? splitChosen(asked, of, run.smCount, agreed(world, row)) : split;
    rows.push_back(row);
  }
  session.setAgents({});

  std::vector<Split> splits;
  std::vector<std::string> refused;
  for (const Row& row : rows) {
    splits.push_back(*row.split);
    refused.push_back(row.skipped);
  }
  const std::vector<std::string> repeated = sameLaunches(splits, refused);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].skipped.empty()) rows[i].skipped = repeated[i];
  }
  return rows;
}

}  // namespace mk::perf
