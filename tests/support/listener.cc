// Prints the number of test cases at the end of every Catch2 run, in the form tests/support/summary.py adds up.
#include <cstdio>

#include "support/catch_compat.h"

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/interfaces/catch_interfaces_reporter.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

namespace {

class CountListener : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void testRunEnded(const Catch::TestRunStats& stats) override {
    const Catch::Counts& cases = stats.totals.testCases;
    std::printf("CASES: %llu passed, %llu failed\n", static_cast<unsigned long long>(cases.passed + cases.failedButOk),
                static_cast<unsigned long long>(cases.failed));
    std::fflush(stdout);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(CountListener)
