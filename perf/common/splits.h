// Asks the library what it makes of each split of a sweep (sweep.h).  Called by cpu_run.cc and gpu_run.cc.
#pragma once

#include <functional>
#include <vector>

#include "options.h"
#include "report.h"
#include "session.h"
#include "world.h"

namespace mk::perf {

// A row for the library's own choice, which comes first, and for each split of the options, with what is chosen for it; `skipped`
// says of those that are not run why.  The same on all ranks; collective.  blank: has the shape.  choose(row): calls
// Session::choose.  Leaves the session with the library's own choice.
std::vector<Row> chooseSplits(World& world, const Options& options, Session& session, const RunInfo& run,
                              const Row& blank, const std::function<void(Row*)>& choose);
// From now on, the session's arguments ask for this split.
void useSplit(Session& session, const RunInfo& run, const Split& split);

}  // namespace mk::perf
