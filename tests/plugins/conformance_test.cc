// The conformance suite over the loopback transport: both contracts, with the model of the card off and at its worst, between
// threads and between processes; and over a plugin with known faults, every one of which the suite must find.
#include <string>

#include "suite.h"

namespace test {
namespace {

const char* const kLoopback = MK_TEST_LOOPBACK;
const char* const kFaulty = MK_TEST_FAULTY;

Params withContract(const char* contract, Params params = {}) {
  params["MKERNEL_LOOPBACK_CONTRACT"] = contract;
  return params;
}

const Params kAdversary = {
    {"MKERNEL_LOOPBACK_GBPS", "3"},      {"MKERNEL_LOOPBACK_LATENCY_US", "100"}, {"MKERNEL_LOOPBACK_JITTER_US", "300"},
    {"MKERNEL_LOOPBACK_REORDER", "0.5"}, {"MKERNEL_LOOPBACK_REPEAT", "0.5"},     {"MKERNEL_LOOPBACK_SEED", "42"},
};

void runBoth(const char* contract, const Params& params) {
  const Setup setup{kLoopback, withContract(contract, params)};
  SECTION("threads") { runAll(setup, Mode::threads); }
  SECTION("processes") { runAll(setup, Mode::processes); }
}

TEST_CASE("conformance: ordered", "[ordered]") { runBoth("ordered", {}); }
TEST_CASE("conformance: completion", "[completion]") { runBoth("completion", {}); }
TEST_CASE("conformance: ordered, adversarial", "[adversarial]") { runBoth("ordered", kAdversary); }
TEST_CASE("conformance: completion, adversarial", "[adversarial]") { runBoth("completion", kAdversary); }
TEST_CASE("conformance: ordered, few outstanding", "[ordered]") {
  runBoth("ordered", {{"MKERNEL_LOOPBACK_OUTSTANDING", "3"}, {"MKERNEL_LOOPBACK_LATENCY_US", "20"}});
}

// Which check has failed, and how; "" if none has.
std::string firstFailure(const char* contract, const std::string& fault) {
  Setup setup{kFaulty, withContract(contract, {{"FAULTY_INNER", kLoopback}, {"FAULTY_FAULT", fault}})};
  if (fault == "lost") setup.waitMs = 1000;  // the only one that is found by waiting
  // Between processes: between threads the faults would be races too, and ThreadSanitizer end the test.
  for (const Check& check : {Check{"stream", checkStream}, Check{"sizes", checkSizes}}) {
    try {
      check.run(setup, Mode::processes);
    } catch (const CheckFailed& failure) {
      return failure.what();
    }
  }
  return "";
}

TEST_CASE("conformance: faults are found", "[faults]") {
  struct Fault {
    const char* name;
    const char* words;
    const char* orWords;
  };
  const Fault faults[] = {
      {"early", "at its notification", "at its notification"},
      {"lost", "lost:", "lost:"},
      {"long", "guard before write", "guard before write"},
      // The source has been reused by then; under the completion contract the second arrival shows it first.
      {"late", "after completion", "at its notification"},
      {"twice", "completed twice", "completed twice"},
      {"altered", "was never sent", "was never sent"},
  };
  for (const char* contract : {"ordered", "completion"}) {
    CHECK(firstFailure(contract, "none") == "");
    for (const Fault& fault : faults) {
      INFO(contract << ", fault " << fault.name);
      const std::string failure = firstFailure(contract, fault.name);
      INFO("the suite says: " << failure);
      CHECK((failure.find(fault.words) != failure.npos || failure.find(fault.orWords) != failure.npos));
    }
  }
}

}  // namespace
}  // namespace test
