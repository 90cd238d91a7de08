// Networks that cannot reach the memory agents use: everything goes through host memory, and the results are the same to the bit.
#include <sys/stat.h>

#include <string>
#include <vector>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Operands;
using test::World;

namespace {

// The second in chunks of several fragments, the last of any size.
const Case kCases[] = {
    {.m = 200, .n = 136, .k = 96},
    {.m = 700, .n = 1000, .k = 64, .out = mkFloat32, .wireF32 = true, .beta = 0.5f},
    {.m = 129, .n = 1000, .k = 80, .window = true, .bias = true},
};

struct Network {
  const char* name;
  std::vector<std::string> settings;
  uint32_t path;
};

std::vector<Network> networks() {
  std::vector<Network> all = {
      {"loopback", {}, MK_NET_PATH_DIRECT},
      {"loopback, staged", {"MKERNEL_NET_STAGING=1"}, MK_NET_PATH_STAGED},
      {"loopback, staged for rank 1", {"1:MKERNEL_NET_STAGING=1"}, MK_NET_PATH_STAGED},
      {"loopback, staged, unordered",
       {"MKERNEL_NET_STAGING=1", "MKERNEL_LOOPBACK_CONTRACT=completion", "MKERNEL_LOOPBACK_JITTER_US=100",
        "MKERNEL_LOOPBACK_REORDER=0.5", "MKERNEL_LOOPBACK_REPEAT=0.5", "MKERNEL_LOOPBACK_OUTSTANDING=3"},
       MK_NET_PATH_STAGED},
      {"blind", {"MKERNEL_NET=blind", "MKERNEL_PLUGIN_PATH=" MK_TEST_BLIND}, MK_NET_PATH_STAGED},
  };
#ifdef MK_TEST_EFA_DIR
  all.push_back({"efa over tcp, staged",
                 {"MKERNEL_NET=efa", "MKERNEL_PLUGIN_PATH=" MK_TEST_EFA_DIR, "MKERNEL_EFA_PROVIDER=tcp;ofi_rxm",
                  "MKERNEL_NET_STAGING=1"},
                 MK_NET_PATH_STAGED});
#endif
#ifdef MK_TEST_IBGDA
  // Cards made of software, one in each process.
  all.push_back({"ibgda", {"MKERNEL_NET=ibgda", "MKERNEL_PLUGIN_PATH=" MK_TEST_IBGDA}, MK_NET_PATH_DIRECT});
  all.push_back({"ibgda, staged",
                 {"MKERNEL_NET=ibgda", "MKERNEL_PLUGIN_PATH=" MK_TEST_IBGDA, "MKERNEL_NET_STAGING=1"},
                 MK_NET_PATH_STAGED});
#endif
  return all;
}

std::string hashOf(const std::vector<uint16_t>& bits) {
  uint64_t hash = 14695981039346656037u;
  for (const uint16_t b : bits) hash = (hash ^ b) * 1099511628211u;
  return std::to_string(hash);
}

}  // namespace

MK_ROLE(staged) {
  mkComm_t comm = rank.join();
  mkCommInfo_t info;
  MK_INIT(&info, MK_ID_COMM_INFO);
  rank.call("query", [&] { return mkCommQuery(comm, &info); });
  rank.note("path", static_cast<int>(info.netPath));
  rank.call("reserve", [&] { return mkCommReserve(comm, 32 << 20); });
  for (int i = 0; i < 9; ++i) {
    Case c = kCases[i % 3];
    c.seed = static_cast<uint64_t>(i) + 1;
    c.tune.chunkTiles = i % 3 == 1 ? 64 : 0;
    const Operands operands(c, rank.world(), rank.rank(), comm);
    const mkGemmAllReduceArgs_t args = operands.args();
    const std::string name = "op " + std::to_string(i);
    rank.call(name, [&] { return mkGemmAllReduce(comm, &args, nullptr); });
    rank.attempt(name + " check", [&] { operands.check(); });
    rank.note(name + " bits", 0, hashOf(operands.outputBits()));
  }
  MK_INIT(&info, MK_ID_COMM_INFO);
  rank.call("query", [&] { return mkCommQuery(comm, &info); });
  rank.note("bytes", 0, std::to_string(info.netBytesSent) + " in " + std::to_string(info.netMessagesSent));
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("staging: the same bits by every network") {
  for (const World world : {World{2, 1}, World{2, 2}, World{3, 1}}) {
    if (!test::kPlain && world.ranks() != 2) continue;
    std::vector<std::string> first;  // what the network that reaches the heap has made
    for (const Network& network : networks()) {
      Crew crew("staged", world, {}, network.settings);
      const bool finished = crew.finish(40 * test::kSlow);
      INFO(network.name << ", " << world.nodes << " nodes x " << world.locals << "\n" << crew.story());
      REQUIRE(finished);
      std::vector<std::string> bits;
      for (int r = 0; r < world.ranks(); ++r) {
        CHECK(crew.status(r) == 0);
        CHECK(crew.note(r, "path").code == static_cast<int>(network.path));
        for (int i = 0; i < 9; ++i) {
          MK_CHECK_NOTE(crew, r, "op " + std::to_string(i) + " check", 0);
          bits.push_back(crew.note(r, "op " + std::to_string(i) + " bits").text);
          CHECK(!bits.back().empty());
        }
        bits.push_back(crew.note(r, "bytes").text);
        MK_CHECK_NOTE(crew, r, "destroy", 0);
      }
      if (first.empty()) first = bits;
      CHECK(bits == first);
    }
  }
}

MK_ROLE(dies) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 2000 * test::kSlow; });
  rank.call("reserve", [&] { return mkCommReserve(comm, 16 << 20); });
  rank.operation("first", comm, rank.world(), rank.rank(), kCases[0]);
  if (rank.rank() == 1) test::hookOnce(1, 2, mk::emu::Point::multiply, test::kAnyTile, [&] { test::dieNow(rank); });
  rank.operation("second", comm, rank.world(), rank.rank(), kCases[1]);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("staging: a rank dies") {
  const World world{3, 1};
  Crew crew("dies", world, {}, {"MKERNEL_NET_STAGING=1"});
  const bool finished = crew.finish(30 * test::kSlow);
  INFO(crew.story());
  REQUIRE(finished);
  for (const int r : {0, 2}) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "second", mkErrorRemote);
    CHECK(test::namesRank(crew.note(r, "second").text, 1));
    CHECK(crew.note(r, "destroy").there);
  }
}
