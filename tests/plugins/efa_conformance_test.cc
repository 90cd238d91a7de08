// The conformance suite over the efa transport, on providers of libfabric that need no NIC.
#include <cstdlib>
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

Setup over(const std::string& provider, Params params = {}) {
  params["MKERNEL_EFA_PROVIDER"] = provider;
  return {MK_TEST_EFA, params};
}

// The test's libfabric, set to do this (fabric/fabric.h).
Setup modelled(const std::string& provider, const char* what, const char* inner = "", Params params = {}) {
  setenv("MK_TEST_FABRIC", what, 1);
  setenv("MK_TEST_FABRIC_INNER", inner, 1);
  params["MKERNEL_EFA_LIBRARY"] = MK_TEST_FABRIC;
  return over(provider, params);
}

TEST_CASE("efa conformance: net, between threads", "[threads]") { runAll(over("net"), Mode::threads); }
TEST_CASE("efa conformance: net", "[net]") { runAll(over("net"), Mode::processes); }
TEST_CASE("efa conformance: shm", "[shm]") { runAll(over("shm"), Mode::processes); }
TEST_CASE("efa conformance: rxm", "[rxm]") { runAll(over("tcp;ofi_rxm"), Mode::processes); }

TEST_CASE("efa conformance: shuffled", "[shuffled]") {
  SECTION("net") { runAll(modelled("net", "shuffle,again"), Mode::processes); }
  SECTION("shm") { runAll(modelled("shm", "shuffle"), Mode::processes); }
}

TEST_CASE("efa conformance: EFA's modes", "[modes]") {
  SECTION("net") { runAll(modelled("efa", "efa", "net"), Mode::processes); }
  SECTION("shm, a short queue") { runAll(modelled("efa", "efa,shuffle,again,queue=200", "shm"), Mode::processes); }
}

}  // namespace
}  // namespace test
