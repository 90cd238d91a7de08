// The whole conformance suite within a test case.
#pragma once

#include "conformance.h"
#include "support/catch_compat.h"

namespace test {

inline void runAll(const Setup& setup, Mode mode) {
  for (const Check& check : conformanceChecks()) {
    if (check.processesOnly && mode == Mode::threads) continue;
    INFO(check.name);
    CHECK_NOTHROW(check.run(setup, mode));
  }
}

}  // namespace test
