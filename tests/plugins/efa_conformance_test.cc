// The conformance suite over the efa transport, on providers of libfabric that need no NIC.
#include <string>

#include "conformance.h"
#include "support/catch_compat.h"

namespace test {
namespace {

void runAll(const Setup& setup, Mode mode) {
  for (const Check& check : conformanceChecks()) {
    if (check.processesOnly && mode == Mode::threads) continue;
    INFO(check.name);
    CHECK_NOTHROW(check.run(setup, mode));
  }
}

Setup over(const std::string& provider) {
  Setup setup{MK_TEST_EFA, {{"MKERNEL_EFA_PROVIDER", provider}}};
  return setup;
}

TEST_CASE("efa conformance: net", "[net]") { runAll(over("net"), Mode::processes); }
TEST_CASE("efa conformance: shm", "[shm]") { runAll(over("shm"), Mode::processes); }
TEST_CASE("efa conformance: rxm", "[rxm]") { runAll(over("tcp;ofi_rxm"), Mode::processes); }

}  // namespace
}  // namespace test
