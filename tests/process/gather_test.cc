// AllGather+GEMM between processes: the whole A in windows of other processes, and a rank that dies while its rows are awaited,
// by ranks that get them from itself, by way of a third, or along a ring.
#include <csignal>

#include "ops/ag_world.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::AgCase;
using test::AgOperands;
using test::Crew;
using test::World;

namespace {

mk::emu::Point pointOf(const std::string& name) {
  if (name == "entered") return mk::emu::Point::entered;
  return name == "post" ? mk::emu::Point::post : mk::emu::Point::multiply;
}

}  // namespace

MK_ROLE(gather) {
  const int victim = rank.number("victim");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 3000 * test::kSlow; });
  AgCase c{.m = 203, .n = 72, .k = 96, .gather = test::Gather::window};
  c.tune.chunkRows = 12;
  c.tune.exchange = static_cast<uint32_t>(rank.number("exchange"));
  {
    AgOperands o(c, rank.world(), rank.rank(), comm);
    test::reserveFor(comm, o.args());
    rank.attempt("first", [&] {
      launch(comm, o);
      o.check();
    });
    rank.meet("first");  // or its death could still break somebody's first operation
    // Of what it posts: after the words by which it enters, in the middle of its rows.
    const mk::emu::Point point = pointOf(rank.option("point"));
    int seen = 0;
    const int before = point == mk::emu::Point::post ? rank.world().nodes + 1 : 0;
    test::hookOnce(
        victim, 2, point, point == mk::emu::Point::multiply ? test::kAnyTile : 0, [&] { test::dieNow(rank); },
        [&] { return seen++ >= before; });
    const mkAllGatherGemmArgs_t args = o.args();
    for (const char* const name : {"second", "third"})
      rank.call(name, [&] { return mkAllGatherGemm(comm, &args, nullptr); });
  }
  rank.call("ending", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("allgather: a rank dies") {
  const World world = GENERATE(World{1, 3}, World{2, 2}, World{3, 2});
  const std::string point = GENERATE("entered", "post", "multiply");
  const uint32_t exchange = GENERATE(MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING);
  if (world.nodes == 1 && (point == "post" || exchange == MK_EXCHANGE_RING)) return;
  if (!test::kPlain && world.nodes == 3) return;
  const int victim = world.ranks() - 1;
  Crew crew("gather", world,
            {{"victim", std::to_string(victim)}, {"point", point}, {"exchange", std::to_string(exchange)}});
  const bool finished = crew.finish(20);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << " dies at " << point << ", exchange "
                   << exchange << "\n"
                   << crew.story());
  REQUIRE(finished);
  CHECK(crew.status(victim) == 128 + SIGKILL);
  for (int r = 0; r < victim; ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "first", 0);
    for (const char* const name : {"second", "third"}) {
      // Once its rows are with the others they can finish without it.
      if (name == std::string("second") && crew.note(r, name).code == mkSuccess) continue;
      const test::Note note = crew.note(r, name);
      INFO("rank " << r << ", " << name << ": " << note.text);
      CHECK(note.code == mkErrorRemote);
      CHECK(test::namesRank(note.text, victim));
      CHECK(static_cast<double>(note.endNs - crew.note(victim, "death").endNs) * 1e-9 < 5.0 * test::kSlow);
    }
    MK_CHECK_NOTE(crew, r, "ending", mkSuccess);
    CHECK(crew.note(r, "ending").seconds() < 4.0 * test::kSlow);
  }
}
