// Whole operations between processes over the efa transport, on libfabric providers that need no NIC; a rank that is stopped
// for a while, and one that dies.
#include <csignal>
#include <thread>

#include "plugins/fabric/wire.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Note;
using test::wireProvider;
using test::World;

namespace {

// Several chunks per rank; every destination type and both wire types.
const Case kCases[] = {
    {.m = 200, .n = 136, .k = 96},
    {.m = 512, .n = 520, .k = 64, .out = mkFloat32, .wireF32 = true, .beta = 0.5f},
    {.m = 129, .n = 1000, .k = 80, .bias = true},
};

struct Network {
  std::string provider;
  std::string model;  // of the test's libfabric, "": the real one itself
  std::string inner;
};

std::vector<std::string> settingsOf(const Network& network) {
  std::vector<std::string> settings = {"MKERNEL_NET=efa", "MKERNEL_EFA_PROVIDER=" + network.provider};
  if (network.model.empty()) return settings;
  settings.push_back("MKERNEL_EFA_LIBRARY=" MK_TEST_FABRIC);
  settings.push_back("MK_TEST_FABRIC=" + network.model);
  settings.push_back("MK_TEST_FABRIC_INNER=" + network.inner);
  return settings;
}

std::string textOf(const Network& network) { return network.provider + " " + network.model + " " + network.inner; }

// The heap grows after it has been registered once.
void reserve(test::Rank& rank, mkComm_t comm) {
  rank.call("reserve", [&] { return mkCommReserve(comm, 16 << 20); });
}

}  // namespace

MK_ROLE(operations) {
  mkComm_t comm = rank.join();
  rank.operation("early", comm, rank.world(), rank.rank(), kCases[0]);
  reserve(rank, comm);
  for (int i = 0; i < 6; ++i) rank.operation("op " + std::to_string(i), comm, rank.world(), rank.rank(), kCases[i % 3]);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("fabric: operations between processes") {
  const World world = GENERATE(World{2, 1}, World{2, 2}, World{3, 1});
  const Network network =
      GENERATE(Network{wireProvider(), "", ""}, Network{"tcp;ofi_rxm", "", ""}, Network{"shm", "", ""},
               Network{wireProvider(), "shuffle,again", ""}, Network{"efa", "efa,shuffle,queue=256", wireProvider()});
  if (!test::kPlain && world.ranks() != 2) return;
  Crew crew("operations", world, {}, settingsOf(network));
  const bool finished = crew.finish(60);
  INFO(textOf(network) << ", " << world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    for (int i = 0; i < 6; ++i) MK_CHECK_NOTE(crew, r, "op " + std::to_string(i) + " check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", 0);
  }
}

// A rank does not run for longer than anything waits but its peers' deadlines: what is under way to it stays so.
MK_ROLE(stopped) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.timeoutMs = 60000; });
  reserve(rank, comm);
  rank.operation("first", comm, rank.world(), rank.rank(), kCases[0]);
  if (rank.rank() == 1) test::hookOnce(1, 2, mk::emu::Point::multiply, test::kAnyTile, [] { raise(SIGSTOP); });
  rank.operation("second", comm, rank.world(), rank.rank(), kCases[1]);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("fabric: a rank stands still") {
  const Network network = GENERATE(Network{wireProvider(), "", ""}, Network{"efa", "efa,queue=128", wireProvider()});
  const World world{2, 1};
  Crew crew("stopped", world, {}, settingsOf(network));
  const bool stopped = crew.untilStopped(1, 30);
  INFO(textOf(network) << "\n" << crew.story());
  REQUIRE(stopped);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  kill(crew.pid(1), SIGCONT);
  const bool finished = crew.finish(60);
  INFO(crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "second check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", 0);
  }
}

MK_ROLE(dies) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 2000 * test::kSlow; });
  reserve(rank, comm);
  rank.operation("first", comm, rank.world(), rank.rank(), kCases[0]);
  if (rank.rank() == 1) test::hookOnce(1, 2, mk::emu::Point::multiply, test::kAnyTile, [&] { test::dieNow(rank); });
  rank.operation("second", comm, rank.world(), rank.rank(), kCases[1]);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("fabric: a rank dies") {
  const Network network = GENERATE(Network{wireProvider(), "", ""}, Network{"tcp;ofi_rxm", "", ""});
  const World world{3, 1};
  Crew crew("dies", world, {}, settingsOf(network));
  const bool finished = crew.finish(60);
  INFO(textOf(network) << "\n" << crew.story());
  REQUIRE(finished);
  for (const int r : {0, 2}) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "second", mkErrorRemote);
    CHECK(test::namesRank(crew.note(r, "second").text, 1));
    CHECK(crew.note(r, "destroy").there);
  }
}
