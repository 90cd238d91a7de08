// The ibverbs transport over real verbs: the conformance suite, within a device and between two, and what only it has.  Runs
// where there are RDMA devices; the test suite runs it in a virtual machine with two soft-RoCE devices (tests/rxe).
#include <cstdlib>
#include <string>

#include "conformance.h"
#include "support/catch_compat.h"

namespace test {
namespace {

const char* const kPlugin = MK_TEST_IBVERBS;

// A peer that has died is noticed after some two seconds.
const Params kPatience = {{"MKERNEL_IB_TIMEOUT", "16"}};

Setup setupOf(const Params& params, int devices) {
  Setup setup{kPlugin, params};
  setup.waitMs = 40000;
  setup.devices = devices;
  return setup;
}

void runAll(const Setup& setup, Mode mode) {
  for (const Check& check : conformanceChecks()) {
    if (check.processesOnly && mode == Mode::threads) continue;
    INFO(check.name);
    CHECK_NOTHROW(check.run(setup, mode));
  }
}

TEST_CASE("ibverbs: conformance between two devices", "[conformance]") {
  SECTION("threads") { runAll(setupOf(kPatience, 2), Mode::threads); }
  SECTION("processes") { runAll(setupOf(kPatience, 2), Mode::processes); }
}

}  // namespace
}  // namespace test
