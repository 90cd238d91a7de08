// The conformance suite over the ibgda plugin on the software network card.  Its peers are threads: the card is this process's.
#include "plugins/conformance.h"
#include "support/catch_compat.h"

namespace test {
namespace {

void runAll(const Params& params) {
  Setup setup{MK_TEST_IBGDA, params};
  setup.knowsEndedKeys = false;
  for (const Check& check : conformanceChecks()) {
    if (check.processesOnly) continue;
    INFO(check.name);
    CHECK_NOTHROW(check.run(setup, Mode::threads));
  }
}

TEST_CASE("conformance: ibgda") { runAll({}); }
TEST_CASE("conformance: ibgda, short queues") {
  runAll({{"MKERNEL_IBGDA_ENTRIES", "16"}, {"MKERNEL_IBGDA_PEERS", "8"}});
}

}  // namespace
}  // namespace test
