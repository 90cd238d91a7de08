// Includes Catch2, 2.13 (Debian 12) or 3 (Ubuntu 24.04), so that tests read the same with both.  Every unit test includes
// this and no Catch2 header; the executables get main() and the listener from catch_dep (tests/support/meson.build).
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>

// Leaves a test case that cannot run here.  tests/run.sh counts these lines as skipped and shows the reasons.
#define MK_SKIP_TEST(...)       \
  do {                          \
    std::printf("SKIP CASE: "); \
    std::printf(__VA_ARGS__);   \
    std::printf("\n");          \
    std::fflush(stdout);        \
    return;                     \
  } while (0)
