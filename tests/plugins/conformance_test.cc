// The conformance suite over the loopback transport: both contracts, with the model of the card off and at its worst, between
// threads and between processes; and over a plugin with known faults, of which every check of the suite must find its own.
#include <set>
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

// What the check says of the faulty plugin; "" if it passes.  Between processes: between threads some of the faults would be
// races too, and ThreadSanitizer end the test.
std::string failureOf(void (*check)(const Setup&, Mode), const char* contract, const std::string& fault, int waitMs) {
  Setup setup{kFaulty, withContract(contract, {{"FAULTY_INNER", kLoopback}, {"FAULTY_FAULT", fault}})};
  setup.waitMs = waitMs;
  try {
    check(setup, Mode::processes);
  } catch (const CheckFailed& failure) {
    return failure.what();
  }
  return "";
}

struct Fault {
  const char* name;  // as faulty.cc has it
  void (*check)(const Setup&, Mode);
  const char* words;
  const char* orWords;        // under the other contract, or where the order of events decides
  bool subtle = true;         // ordinary traffic does not show it
  const char* contract = "";  // "": it is one under both
};

TEST_CASE("conformance: each check finds the fault it is there for", "[faults]") {
  constexpr bool kSubtle = true, kPlain = false;
  const Fault faults[] = {
      {"early", checkStream, "at its notification", "at its notification", kPlain},
      {"hasty", checkStream, "at its notification", "after completion", kPlain},
      {"lost", checkStream, "lost:", "lost:", kPlain},
      {"long", checkStream, "guard before write", "guard before write", kPlain},
      // The source has been reused by then; under the completion contract the second arrival shows it first.
      {"late", checkStream, "after completion", "at its notification", kPlain},
      {"twice", checkStream, "completed twice", "completed twice", kPlain},
      {"altered", checkStream, "was never sent", "was never sent", kPlain},
      {"tail", checkSizes, "(67108864 bytes) is wrong from byte 67108863", "", kSubtle},
      {"batch", checkBatches, "lost:", "", kSubtle},
      {"wrap", checkCounters, "70536 completions and 70535 notifications", "", kSubtle},
      {"offset", checkFar, "payload wrong from byte 0", "", kSubtle},
      {"flag", checkFar, "notification missing", "", kSubtle, "ordered"},
      {"boundless", checkBackPressure, "outstanding, at most", "", kPlain},
      {"stuck", checkBackPressure, "lost:", "", kPlain},
      {"oneimport", checkRegistrations, "two imports have one handle", "", kSubtle},
      {"anykey", checkRegistrations, "can still be imported", "", kSubtle},
      {"anykey", checkRefusals, "is taken for one of peer", "", kSubtle},
      {"unchecked", checkRefusals, "result 0, must be", "", kSubtle},
      {"partial", checkRefusals, "a refused write has written", "", kSubtle, "ordered"},
      {"anykind", checkRefusals, "memory of kind 999 taken", "", kSubtle},
      {"abrupt", checkOrderlyClose, "closed in order, with nothing posted, is an error", "", kSubtle},
      {"zombie", checkOrderlyClose, "which is gone, has succeeded", "", kSubtle},
      {"zombie", checkPeerLoss, "which is gone, has succeeded", "", kSubtle},
      {"deaf", checkPeerLoss, "death of peer 1 is not noticed", "", kSubtle},
      {"lateclose", checkCloseWithWork, "after its writer's close", "a source is read after close", kPlain},
      {"fdleak", checkCycles, "descriptors are open", "", kSubtle},
      {"mapleak", checkCycles, "shared mappings are left", "", kSubtle},
  };
  // Some are found by waiting in vain: for longer than anything that comes takes.
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool kBrief = true;
  constexpr int kWaitMs = 3000;
#else
  constexpr bool kBrief = false;
  constexpr int kWaitMs = 1200;
#endif
  constexpr int kPatientMs = 20000;
  std::set<void (*)(const Setup&, Mode)> proved;
  bool other = false;
  for (const Fault& fault : faults) {
    // One contract each: most of them have nothing to do with it.
    other = !other;
    const char* const contract = *fault.contract != '\0' ? fault.contract : other ? "ordered" : "completion";
    INFO(contract << ", fault " << fault.name);
    if (fault.subtle && !kBrief) CHECK(failureOf(checkStream, contract, fault.name, kPatientMs) == "");
    const std::string failure = failureOf(fault.check, contract, fault.name, kWaitMs);
    INFO("the suite says: " << failure);
    CHECK((failure.find(fault.words) != failure.npos ||
           (*fault.orWords != '\0' && failure.find(fault.orWords) != failure.npos)));
    proved.insert(fault.check);
  }
  for (const Check& check : conformanceChecks()) {
    INFO(check.name);
    CHECK(proved.count(check.run) == 1);
    if (!kBrief) CHECK(failureOf(check.run, other ? "ordered" : "completion", "none", kPatientMs) == "");
  }
}

}  // namespace
}  // namespace test
