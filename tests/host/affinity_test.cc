#include "host/affinity.h"

#include <pthread.h>
#include <sched.h>

#include <thread>

#include "support/catch_compat.h"

using mk::chooseCpus;
using mk::parseCpuList;
using Cpus = std::vector<uint32_t>;

TEST_CASE("lists of processors") {
  CHECK(parseCpuList("0-3,8\n") == Cpus{0, 1, 2, 3, 8});
  CHECK(parseCpuList("7") == Cpus{7});
  CHECK(parseCpuList("0,2,4-5") == Cpus{0, 2, 4, 5});
  for (const char* wrong : {"", "\n", "a", "1-", "3-1", "1,", ",1", "1;2", "-1", "99999", "0-99999"}) {
    INFO(wrong);
    CHECK(parseCpuList(wrong).empty());
  }
}

TEST_CASE("a thread stays in what its process has been given, unless that is a single core") {
  CHECK(chooseCpus({0, 1, 2, 3}, {2, 3, 4, 5}) == Cpus{2, 3});
  CHECK(chooseCpus({0, 1, 2, 3}, {2}) == Cpus{0, 1, 2, 3});
  CHECK(chooseCpus({0, 1, 2, 3}, {8, 9}) == Cpus{0, 1, 2, 3});
  CHECK(chooseCpus({}, {0, 1}).empty());
}

TEST_CASE("a device that is not there moves nothing") {
  std::thread([] {
    cpu_set_t before, after;
    REQUIRE(pthread_getaffinity_np(pthread_self(), sizeof(before), &before) == 0);
    mk::moveNear("");
    mk::moveNear("ffff:ff:1f.7");
    mk::moveNear("../../../../proc");
    REQUIRE(pthread_getaffinity_np(pthread_self(), sizeof(after), &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
  }).join();
}
