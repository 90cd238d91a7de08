// Communicators made and destroyed again and again, with ranks as threads: nothing of the process grows.
#include <malloc.h>

#include <fstream>
#include <thread>

#include "host/hub.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::expect;
using test::World;

namespace {

struct Footprint {
  int descriptors = 0, threads = 0, mappings = 0, segments = 0, shm = 0;
  long residentKb = 0;
};

Footprint footprint() {
  Footprint f;
  f.descriptors = test::countEntries("/proc/self/fd");
  f.threads = test::countEntries("/proc/self/task");
  f.mappings = test::mappings("");
  f.segments = test::mappings("/memfd:");
  f.shm = test::countEntries("/dev/shm");
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) f.residentKb = std::stol(line.substr(6));
  return f;
}

// Once the hubs of what is gone have ended, and other threads have let go of the last references.
Footprint settled() {
  Footprint now = footprint();
  int same = 0;
  for (int i = 0; i < 500 && same < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const bool quiet = mk::reapHubs() == 0;
    const Footprint then = now;
    now = footprint();
    malloc_trim(0);  // what has been freed goes back to the system, or the resident memory would say little
    same = quiet && now.descriptors == then.descriptors && now.threads == then.threads ? same + 1 : 0;
  }
  return now;
}

void checkSame(const Footprint& before, const Footprint& after) {
  INFO("resident memory " << before.residentKb << " kB, then " << after.residentKb << " kB");
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
  CHECK(after.shm == before.shm);
  CHECK(after.segments == before.segments);
  // A sanitizer keeps what has been freed, and maps as it likes.
  if (!test::kPlain) return;
  CHECK(after.mappings <= before.mappings + 8);
  CHECK(after.residentKb < before.residentKb + 4 * 1024);
}

std::string oneCycle(const World& world, const std::function<void(mkComm_t, int)>& body) {
  std::string all;
  for (const auto& e : test::runWorld(world, body, [](mkConfig_t&c, int) { c.heapBytes = 1 << 20; })) all += e + "\n";
  return all;
}

void progressLine(int done, int count) {
  std::printf("%d of %d cycles, resident memory %ld kB\n", done, count, footprint().residentKb);
  std::fflush(stdout);
}

void cycles(int count, const std::function<std::string(int)>& cycle) {
  mallopt(M_ARENA_MAX, 1);  // or memory and mappings grow until every arena has held a communicator
  std::string trouble;
  for (int i = 0; i < 10 && trouble.empty(); ++i) trouble = cycle(i);  // the first ones build what stays
  const Footprint before = settled();
  int done = 0;
  for (; done < count && trouble.empty(); ++done) {
    trouble = cycle(done);
    if (test::longRun() && done % 200 == 199) progressLine(done + 1, count);
  }
  INFO("after " << done << " of " << count << " cycles: " << trouble);
  CHECK(trouble.empty());
  checkSame(before, settled());
}

int cycleCount() { return test::longRun() ? 1000 : test::kPlain ? 100 : 40; }

}  // namespace

TEST_CASE("initialise and one operation and destroy") {
  const World world = GENERATE(World{1, 2}, World{2, 1});
  cycles(cycleCount(), [&](int i) {
    return oneCycle(world, [&](mkComm_t comm, int rank) {
      Case c{.m = 40, .n = 64, .k = 16, .window = i % 4 == 0};
      c.seed = static_cast<uint64_t>(i) + 1;
      test::runCase(c, world, rank, comm);
    });
  });
}

TEST_CASE("initialise and revoke with an operation in flight") {
  const World world = GENERATE(World{1, 2}, World{2, 1});
  test::slowTiles(-1, 2);
  cycles(cycleCount() / 4, [&](int) {
    return oneCycle(world, [&](mkComm_t comm, int rank) {
      const test::Operands operands({.m = 200, .n = 136, .k = 16}, world, rank, comm);
      const mkGemmAllReduceArgs_t args = operands.args();
      mkStream_t stream = nullptr;
      expect(mkCpuStreamCreate(&stream), "stream");
      const mkResult_t launched = mkGemmAllReduce(comm, &args, stream);
      if (rank == 0 || launched != mkErrorRemote) expect(launched, "launch", comm);  // rank 0 may have been faster
      if (rank == 0) expect(mkCommRevoke(comm), "revoke");
      expect(mkCpuStreamDestroy(stream), "stream");
    });
  });
  test::slowTiles(-1, 0);
}

TEST_CASE("initialisation that fails") {
  const bool late = GENERATE(false, true);  // when joining, or when the network is set up
  cycles(cycleCount() / 4, [&](int) {
    mkUniqueId_t id;
    if (mkGetUniqueId(&id) != mkSuccess) return std::string(mkGetLastError(nullptr));
    std::string trouble[2];
    std::thread threads[2];
    for (int r = 0; r < 2; ++r) {
      threads[r] = std::thread([&, r] {
        const std::string host = std::to_string(r);
        mkConfig_t config;
        MK_INIT(&config, MK_ID_CONFIG);
        config.hostId = host.c_str();
        config.initTimeoutMs = 30000;
        if (late)
          config.transport = r == 0 ? "loopback" : "nosuch";
        else
          config.heapBytes = static_cast<uint64_t>(1 + r) << 20;
        mkComm_t comm = nullptr;
        const mkResult_t result = mkCommInitRankConfig(&comm, 2, id, r, &config);
        if (result != (late ? mkErrorTransport : mkErrorInvalidUsage))
          trouble[r] = std::string(mkGetErrorString(result)) + ": " + mkGetLastError(nullptr);
        if (comm != nullptr) trouble[r] += " and a communicator";
      });
    }
    for (auto& t : threads) t.join();
    return trouble[0] + trouble[1];
  });
}
