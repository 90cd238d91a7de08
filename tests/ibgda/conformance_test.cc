// The conformance suite over the ibgda plugin on software network cards: one for all ranks, or one in each rank's process.
#include "plugins/suite.h"

namespace test {
namespace {

Setup over(const Params& params) {
  Setup setup{MK_TEST_IBGDA, params};
  // Nobody but the card knows, and it says so when something is written.
  setup.knowsEndedKeys = setup.knowsDeaths = false;
  return setup;
}

TEST_CASE("conformance: ibgda, between threads", "[threads]") {
  runAll(over({}), Mode::threads);
#if !defined(__SANITIZE_THREAD__)  // the same threads, and slow
  runAll(over({{"MKERNEL_IBGDA_ENTRIES", "16"}, {"MKERNEL_IBGDA_PEERS", "8"}}), Mode::threads);
#endif
}
TEST_CASE("conformance: ibgda", "[processes]") { runAll(over({}), Mode::processes); }

}  // namespace
}  // namespace test
