// A rank is killed in the middle of an operation, or between two: every survivor learns within seconds who died, gets rid of
// the communicator, and goes on with a new one.
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::World;

namespace {

const Case kCase{.m = 200, .n = 136, .k = 96};
constexpr uint64_t kTiles = 4 * 3;

mk::emu::Point pointOf(const std::string& name) {
  if (name == "launch") return mk::emu::Point::launch;
  if (name == "entered") return mk::emu::Point::entered;
  if (name == "post") return mk::emu::Point::post;
  return mk::emu::Point::multiply;
}

}  // namespace

MK_ROLE(death) {
  const int victim = rank.number("victim");
  const std::string point = rank.option("point");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 3000 * test::kSlow; });
  rank.operation("first", comm, rank.world(), rank.rank(), kCase);
  rank.meet("first");  // or its death could still break somebody's first operation
  if (point == "idle") {
    if (rank.rank() == victim) test::dieNow(rank);
  } else {
    test::hookOnce(victim, 2, pointOf(point), kTiles / 2, [&] { test::dieNow(rank); });
  }
  rank.operation("second", comm, rank.world(), rank.rank(), kCase);
  rank.operation("third", comm, rank.world(), rank.rank(), kCase);
  rank.call("ending", [&] { return rank.rank() % 2 == 0 ? mkCommDestroy(comm) : mkCommAbort(comm); });

  // The survivors, each on a node of its own if there were several.
  const int survivors = rank.ranks() - 1;
  const World after = rank.world().nodes > 1 ? World{survivors, 1} : World{1, survivors};
  const int index = rank.rank() - (rank.rank() > victim ? 1 : 0);
  mkComm_t next = nullptr;
  if (rank.join("after", after, index, &next) != mkSuccess) return;
  rank.operation("again", next, after, index, kCase);
  rank.call("destroy", [&] { return mkCommDestroy(next); });
}

TEST_CASE("a rank dies") {
  const World world = GENERATE(World{1, 4}, World{2, 2}, World{3, 2}, World{8, 1});
  const std::string point = GENERATE("launch", "entered", "multiply", "post", "idle");
  const bool first = GENERATE(true, false);
  if (point == "post" && world.nodes == 1) return;  // there are none
  // The sanitizers' builds are there for the code, which a few places show as well as all.
  if (!test::kPlain && (world.nodes == 8 || (world.nodes == 3 && point != "multiply"))) return;
  const int victim = first ? 0 : world.ranks() - 1;
  Crew crew("death", world, {{"victim", std::to_string(victim)}, {"point", point}});
  const bool finished = crew.finish(20);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << " dies at " << point << "\n"
                   << crew.story());
  REQUIRE(finished);
  CHECK(crew.status(victim) == 128 + 9);
  const test::Note death = crew.note(victim, "death");
  REQUIRE(death.there);
  for (int r = 0; r < world.ranks(); ++r) {
    if (r == victim) continue;
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "first check", 0);
    for (const std::string name : {"second", "third"}) {
      const test::Note note = crew.note(r, name);
      // Where it had done its part by then, the others may have finished.
      if (name == "second" && point == "entered" && note.code == mkSuccess) {
        MK_CHECK_NOTE(crew, r, "second check", 0);
        continue;
      }
      MK_CHECK_NOTE(crew, r, name, mkErrorRemote);
      INFO("rank " << r << ", " << name << ": " << note.text);
      CHECK(test::namesRank(note.text, victim));
      CHECK(static_cast<double>(note.endNs - death.endNs) * 1e-9 < 5.0 * test::kSlow);
    }
    const test::Note ending = crew.note(r, "ending");
    CHECK(ending.there);
    CHECK(ending.seconds() < 4.0 * test::kSlow);
    // A rank whose hub has died cannot hear who has let go; else all have.
    if (victim != 0) CHECK(ending.code == mkSuccess);
    MK_CHECK_NOTE(crew, r, "again check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}
