// Whole operations over verbs: ranks are processes, node 0 has the soft-RoCE device rxe0 and node 1 rxe1.  For the virtual
// machine of tests/rxe.
#include <csignal>

#include "process/crew.h"
#include "rxe/interface.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Note;
using test::World;

namespace {

constexpr int kSeconds = 120;  // emulated, and slow
constexpr int kRepeated = 8;

std::vector<std::string> environmentOf(const World& world, const std::vector<std::string>& more = {}) {
  std::vector<std::string> lines = {"MKERNEL_NET=ibverbs", "MKERNEL_IB_TIMEOUT=16", "MKERNEL_DEBUG=INFO",
                                    "MKERNEL_DEBUG_SUBSYS=INIT,NET"};
  for (int r = 0; r < world.ranks(); ++r)
    lines.push_back(std::to_string(r) + ":MKERNEL_IB_HCA=" + (r / world.locals == 0 ? "=rxe0:1" : "=rxe1"));
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

const Case kSmall{.m = 72, .n = 136, .k = 32};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.m = 64, .n = 64, .k = 64},
      {.m = 200, .n = 136, .k = 96},
      {.m = 133, .n = 264, .k = 67, .in = mkFloat16, .out = mkFloat32},
      {.m = 256, .n = 384, .k = 16, .wireF32 = true, .seed = 5},
  };
  return all;
}

}  // namespace

MK_ROLE(verbs) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.initTimeoutMs = 60000; });
  for (size_t i = 0; i < cases().size(); ++i) {
    rank.attempt("case " + std::to_string(i), [&] { test::runCase(cases()[i], rank.world(), rank.rank(), comm); });
  }
  for (int i = 0; i < kRepeated; ++i)
    rank.operation("repeated " + std::to_string(i), comm, rank.world(), rank.rank(), kSmall);
  rank.call("finalize", [&] { return mkCommFinalize(comm); });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("ibverbs: GEMM+AllReduce between processes") {
  if (!test::inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  const World world = GENERATE(World{2, 1}, World{2, 2});
  const std::string connections = world.locals == 1 ? "1" : "4";
  Crew crew("verbs", world, {}, environmentOf(world, {"MKERNEL_IB_CONNECTIONS=" + connections}));
  const bool finished = crew.finish(kSeconds);
  INFO(world.nodes << " nodes x " << world.locals << ", " << connections << " connections\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    for (size_t i = 0; i < cases().size(); ++i) MK_CHECK_NOTE(crew, r, "case " + std::to_string(i), 0);
    for (int i = 0; i < kRepeated; ++i) {
      MK_CHECK_NOTE(crew, r, "repeated " + std::to_string(i), mkSuccess);
      MK_CHECK_NOTE(crew, r, "repeated " + std::to_string(i) + " check", 0);
    }
    MK_CHECK_NOTE(crew, r, "finalize", mkSuccess);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
  // That it was this network and nothing else.
  const std::string story = crew.story();
  for (const char* words : {"using transport ibverbs (ordered contract, asked for)", "rxe0:1: RoCE v2 at 10.99.0.1",
                            "rxe1:1: RoCE v2 at 10.99.0.2"})
    CHECK(story.find(words) != std::string::npos);
}

MK_ROLE(endless) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.initTimeoutMs = 60000; });
  mkResult_t result = mkSuccess;
  for (int i = 0; result == mkSuccess; ++i) {
    result = rank.operation("op", comm, rank.world(), rank.rank(), kSmall);
    if (i == 2) rank.note("busy");
  }
  rank.operation("next", comm, rank.world(), rank.rank(), kSmall);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("ibverbs: a rank that dies") {
  if (!test::inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  const World world{2, 1};
  Crew crew("endless", world, {}, environmentOf(world));
  REQUIRE(crew.untilNoted(1, "busy", kSeconds));
  kill(crew.pid(1), SIGKILL);
  const bool finished = crew.finish(kSeconds);
  INFO(crew.story());
  REQUIRE(finished);
  CHECK(crew.note(0, "op").code == mkErrorRemote);
  CHECK(test::namesRank(crew.note(0, "op").text, 1));
  CHECK(crew.note(0, "destroy").there);
}

// Last: the interface gets its addresses back, but not at once.
TEST_CASE("ibverbs: a port that goes down") {
  if (!test::inVirtualMachine()) MK_SKIP_TEST("there is no virtual machine with soft-RoCE here");
  const World world{2, 2};
  Crew crew("endless", world, {}, environmentOf(world));
  for (int r = 0; r < world.ranks(); ++r) REQUIRE(crew.untilNoted(r, "busy", kSeconds));
  REQUIRE(test::setInterface("eth1", false));
  const bool finished = crew.finish(kSeconds);
  CHECK(test::setInterface("eth1", true));
  INFO(crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    const Note op = crew.note(r, "op");
    INFO("rank " << r << ": " << op.text);
    CHECK(op.code == mkErrorTransport);
    CHECK(op.text.find("transport ibverbs: ") != std::string::npos);
    // Where the guest takes long over it, the connections' end is reported before the port's.
    CHECK((op.text.find("has gone down (") != std::string::npos ||
           op.text.find("is broken: peer ") != std::string::npos));
    MK_CHECK_NOTE(crew, r, "next", mkErrorTransport);
    CHECK(crew.note(r, "destroy").there);
    CHECK(crew.status(r) == 0);
  }
  CHECK(crew.story().find("rxe1:1 has gone down") != std::string::npos);
}
