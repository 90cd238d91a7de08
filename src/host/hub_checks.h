// What the hub decides from what the ranks say: do they fit together, who is on which node, whose report is the root of a
// failure.  Functions without state; called by hub_session.cc and hub_failure.cc.
#pragma once

#include <vector>

#include "host/wire.h"

namespace mk {

std::string rankName(const Hello& hello);

// Ranks that have joined, any number, ascending.  Throws Error(mkErrorInvalidUsage) where settings differ or two ranks of a
// host use one GPU.
void compareRanks(const std::vector<const Hello*>& present);

// All ranks, by rank.  Nodes are numbered by their lowest rank, local ranks ascend with the rank; the ranks of a node need
// not be consecutive.  Throws Error(mkErrorInvalidUsage) where nodes have different numbers of ranks.
Welcome arrangeRanks(const std::vector<const Hello*>& all);

struct RankReport {
  int rank = 0;
  FailureReport report;
};
// The report (its index) that names the root of a timeout.  reports: not empty.
size_t chooseReport(const std::vector<RankReport>& reports);

}  // namespace mk
