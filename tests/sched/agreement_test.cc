// The plan is the same on all ranks, and its hash tells plans apart; automatic choices; roles.
#include <algorithm>
#include <cmath>

#include "must.h"

namespace mk::sched::test {
namespace {

struct Input {
  GemmArShape shape;
  GemmChoice choice;
  uint32_t hash() const { return planGemmAr(shape, choice, 8).hash().value(); }
};

Input twoByThree() {
  Input in;
  in.shape = shapeOfTiles({2, 3, 0, 0}, 20, 10, false);
  in.choice = choiceOf(2, Exchange::swap);
  return in;
}

TEST_CASE("the hash is the same on every rank of a world, whatever its number of agents") {
  forWorlds([](const World& world) {
    for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
      const auto planOf = [&](uint32_t rank, uint32_t agents) {
        return planGemmAr(shapeOfTiles(world.place(rank), 9, 5, true), choiceOf(2, exchange), agents);
      };
      const uint32_t first = planOf(0, 8).hash().value();
      for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
        MUST(planOf(rank, 8).hash().value() == first, describe(planOf(rank, 8)));
        MUST(planOf(rank, 3).hash().value() == first, describe(planOf(rank, 3)));
      }
    }
  });
}

TEST_CASE("the hash differs when any one input differs") {
  const Input base = twoByThree();
  std::vector<std::pair<const char*, Input>> variants(11, {"", base});
  size_t i = 0;
  const auto vary = [&](const char* what) -> Input& {
    variants[i].first = what;
    return variants[i++].second;
  };
  vary("m").shape.m += 1;
  vary("n").shape.n += 8;
  vary("outBytes").shape.outBytes = 4;
  vary("wireBytes").shape.wireBytes = 4;
  vary("staged").shape.staged = true;
  vary("nodes").shape.place.nodes = 3;
  vary("locals").shape.place.locals = 2;
  vary("tileM").choice.tileM = 4;
  vary("tileN").choice.tileN = 32;
  vary("chunkTiles").choice.chunkTiles = 3;
  vary("exchange").choice.exchange = static_cast<uint32_t>(Exchange::home);
  REQUIRE(i == variants.size());
  for (const auto& [what, input] : variants) {
    INFO(what);
    CHECK(input.hash() != base.hash());
  }
  // And m, n swapped, as for transposed arguments.
  Input swapped = base;
  std::swap(swapped.shape.m, swapped.shape.n);
  CHECK(swapped.hash() != base.hash());
}

TEST_CASE("the hash depends on all bits of a word and on the order of words") {
  const uint32_t zero = PlanHash{}.add(0).value();
  for (int bit = 0; bit < 64; ++bit) CHECK(PlanHash{}.add(uint64_t{1} << bit).value() != zero);
  CHECK(PlanHash{}.add(1).add(2).value() != PlanHash{}.add(2).add(1).value());
  CHECK(PlanHash{}.add(0).value() != PlanHash{}.add(0).add(0).value());
  // FNV-1a, 64 bits, of "foobar00", folded: from the definition.
  uint64_t state = 0xcbf29ce484222325ull, word = 0;
  const char text[] = "foobar00";
  for (int i = 0; i < 8; ++i) {
    state = (state ^ static_cast<uint8_t>(text[i])) * 0x100000001b3ull;
    word |= static_cast<uint64_t>(static_cast<uint8_t>(text[i])) << (8 * i);
  }
  CHECK(PlanHash{}.add(word).value() == static_cast<uint32_t>((state >> 32) ^ (state & 0xffffffffu)));
}

// About n^2 / 2^33 = 0.2 collisions are expected of 40,000 good 32-bit hashes; plans are close to each other, so this is where
// a weak one would show.
TEST_CASE("hashes of 40,000 neighbouring plans do not collide more than by chance") {
  std::vector<uint32_t> hashes;
  for (uint64_t m = 1; m <= 200; ++m) {
    for (uint64_t n = 1; n <= 200; ++n) {
      Input in = twoByThree();
      in.shape.m = m;
      in.shape.n = n * 8;
      hashes.push_back(in.hash());
    }
  }
  std::sort(hashes.begin(), hashes.end());
  const auto distinct = std::unique(hashes.begin(), hashes.end()) - hashes.begin();
  CHECK(distinct >= 40000 - 2);
}

TEST_CASE("the entered word holds the low half of the epoch and the hash") {
  for (uint64_t epoch : {1ull, 2ull, 0xffffffffull, 0x100000000ull, 0x123456789abcdefull}) {
    for (uint32_t hash : {0u, 1u, 0x80000000u, 0xffffffffu}) {
      CHECK(enteredEpoch(enteredWord(epoch, hash)) == static_cast<uint32_t>(epoch));
      CHECK(enteredHash(enteredWord(epoch, hash)) == hash);
    }
  }
}

// ---- Choices.

TEST_CASE("what is chosen automatically") {
  const auto plan = [](uint32_t nodes, uint32_t locals, uint64_t m, uint64_t n) {
    GemmArShape shape;
    shape.m = m;
    shape.n = n;
    shape.place = {nodes, locals, 0, 0};
    return planGemmAr(shape, {}, 16);
  };
  CHECK(plan(2, 4, 1024, 1024).rail.exchange == Exchange::swap);
  CHECK(plan(3, 4, 1024, 1024).rail.exchange == Exchange::home);
  CHECK(plan(1, 8, 8192, 8192).chunks.chunkTiles == 1);
  CHECK(plan(2, 8, 8192, 8192).chunks.chunkTiles == 8);  // 16,384 tiles
  CHECK(plan(2, 1, 1024, 1024).chunks.chunkTiles == 4);  // 256 tiles: 32 chunks for each of 2 nodes
  CHECK(plan(2, 1, 1536, 1024).chunks.chunkTiles == 6);
  CHECK(plan(2, 8, 64, 64).chunks.chunkTiles == 1);    // one tile
  CHECK(plan(2, 2, 512, 512).chunks.chunkTiles == 4);  // 64 tiles: just four chunks for each of 2 x 2
  CHECK(plan(2, 2, 512, 384).chunks.chunkTiles == 3);
  CHECK(plan(4, 8, 0, 8192).chunks.tiles == 0);
}

TEST_CASE("choices are taken as they are") {
  for (uint32_t chunkTiles : {1u, 3u, 64u}) {
    const GemmArPlan p = planGemmAr(shapeOfTiles({2, 2, 1, 1}, 9, 9, false), choiceOf(chunkTiles, Exchange::home), 8);
    CHECK(p.grid.tileM == 2);
    CHECK(p.grid.tileN == 16);
    CHECK(p.chunks.chunkTiles == chunkTiles);
    CHECK(p.rail.exchange == Exchange::home);
    CHECK(p.place().node == 1);
    CHECK(p.place().local == 1);
  }
}

// ---- Roles.

TEST_CASE("tickets give each role its agents, communication first") {
  for (uint32_t send = 0; send <= 2; ++send) {
    for (uint32_t receive = 0; receive <= 3; ++receive) {
      for (uint32_t copyOut = 0; copyOut <= 2; ++copyOut) {
        for (uint32_t compute = 1; compute <= 4; ++compute) {
          const uint32_t move = (send + compute) % 3;
          const RoleCounts roles{send, receive, move, copyOut, compute};
          std::vector<uint32_t> count(6, 0);
          uint32_t highest = 0;
          for (uint32_t ticket = 0; ticket < roles.total(); ++ticket) {
            const auto role = static_cast<uint32_t>(roles.role(ticket));
            CHECK(role >= highest);
            highest = role;
            ++count[role];
          }
          CHECK(count == std::vector<uint32_t>{1, send, receive, move, copyOut, compute});
          // With the minimum, all of them are there.
          CHECK(roles.minimum() == 1 + send + receive + move + copyOut + 1);
          CHECK(roles.role(roles.minimum() - 1) == Role::compute);
          CHECK(roles.role(roles.minimum() - 2) != Role::compute);
        }
      }
    }
  }
}

TEST_CASE("a plan has the roles its world needs, and the agents it was given") {
  forWorlds([](const World& world) {
    for (const bool staged : {false, true}) {
      for (uint32_t agents : {1u, 4u, 5u, 132u}) {
        GemmArShape shape = shapeOfTiles(world.place(0), 4, 4, false);
        shape.staged = staged;
        const RoleCounts roles = planGemmAr(shape, {}, agents).roles;
        MUST(roles.send == (world.nodes > 1 ? 1 : 0), world.nodes << " nodes");
        MUST(roles.receive == (world.nodes > 1 ? 1 : 0), world.nodes << " nodes");
        MUST(roles.copyOut == (staged && world.locals > 1 ? 1 : 0), world.locals << " local ranks");
        MUST(roles.compute >= 1, agents << " agents");
        MUST(roles.total() == std::max(agents, roles.minimum()), agents << " agents");
        GemmChoice choice;
        choice.computeAgents = 7;
        choice.receiveAgents = 3;
        const RoleCounts chosen = planGemmAr(shape, choice, agents).roles;
        MUST(chosen.compute == 7, agents << " agents");
        MUST(chosen.receive == (world.nodes > 1 ? 3 : 0), world.nodes << " nodes");
      }
    }
  });
}

}  // namespace
}  // namespace mk::sched::test
