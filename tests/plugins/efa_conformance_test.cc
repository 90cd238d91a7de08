// The conformance suite over the efa transport, on providers of libfabric that need no NIC.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "efa_setup.h"
#include "suite.h"

namespace test {
namespace {

// What a killed process leaves of the shm provider's, 16 MiB each.
void sweepSharedMemory() {
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    int process = 0, user = 0, number = 0, length = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "%d:%d:%d%n", &process, &user, &number, &length) == 3 &&
        static_cast<size_t>(length) == name.size() && kill(process, 0) != 0 && errno == ESRCH)
      std::filesystem::remove(entry.path());
  }
}

TEST_CASE("efa conformance: net, between threads", "[threads]") { runAll(over("net"), Mode::threads); }
TEST_CASE("efa conformance: net", "[net]") { runAll(over("net"), Mode::processes); }
TEST_CASE("efa conformance: shm", "[shm]") {
  runAll(over("shm"), Mode::processes);
  sweepSharedMemory();
}
TEST_CASE("efa conformance: rxm", "[rxm]") { runAll(over("tcp;ofi_rxm"), Mode::processes); }

TEST_CASE("efa conformance: shuffled", "[shuffled]") {
  SECTION("net") { runAll(modelled("net", "shuffle,again"), Mode::processes); }
  SECTION("shm") { runAll(modelled("shm", "shuffle"), Mode::processes); }
  sweepSharedMemory();
}

TEST_CASE("efa conformance: EFA's modes", "[modes]") {
  SECTION("net") { runAll(modelled("efa", "efa", "net"), Mode::processes); }
  SECTION("shm, a short queue") {
    runAll(modelled("efa", "efa,endpoint,shuffle,again,queue=200", "shm"), Mode::processes);
  }
  sweepSharedMemory();
}

}  // namespace
}  // namespace test
