// What every transport plugin must do, as checks against its table alone.  Each throws CheckFailed at the first breach; each
// wait has a deadline.
#pragma once

#include <vector>

#include "world.h"

namespace test {

struct Check {
  const char* name;
  void (*run)(const Setup& setup, Mode mode);
  bool processesOnly = false;
};

const std::vector<Check>& conformanceChecks();

// The parts of the list.
void checkSizes(const Setup& setup, Mode mode);
void checkStream(const Setup& setup, Mode mode);
void checkBatches(const Setup& setup, Mode mode);
void checkCounters(const Setup& setup, Mode mode);
void checkFar(const Setup& setup, Mode mode);
void checkBackPressure(const Setup& setup, Mode mode);
void checkRefusals(const Setup& setup, Mode mode);
void checkRegistrations(const Setup& setup, Mode mode);
void checkOrderlyClose(const Setup& setup, Mode mode);
void checkCloseWithWork(const Setup& setup, Mode mode);
void checkCycles(const Setup& setup, Mode mode);
void checkPeerLoss(const Setup& setup, Mode mode);

}  // namespace test
