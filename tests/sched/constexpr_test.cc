// The schedule is usable at compile time: a plan as a constant, and its functions on it.
#include "must.h"
#include "sched/gemm_rs.h"

namespace mk::sched::test {
namespace {

constexpr GemmArShape shapeAt(uint32_t node, uint32_t local, bool staged) {
  return GemmArShape{1000, 520, 2, 4, staged, Place{3, 2, node, local}};
}
constexpr GemmArPlan kPlan = planGemmAr(shapeAt(2, 1, true), GemmChoice{}, 16);
constexpr GemmArPlan kOther = planGemmAr(shapeAt(0, 0, true), GemmChoice{}, 16);

static_assert(kPlan.grid.count() == 16 * 9);
static_assert(kPlan.rail.exchange == Exchange::home);
static_assert(kPlan.chunks.chunkTiles == 4);
static_assert(kPlan.owned() == 18 && kPlan.maxOwned() == 18 && kPlan.ownedTiles() == 72);
static_assert(kPlan.chunks.tileAt(1, kPlan.chunks.positionOf(1, 77)) == 77);
static_assert(kPlan.grid.index(7, 3) == 7 + 3 * 8 && kPlan.grid.tile(31).row == 7 * 64 &&
              kPlan.grid.tile(31).col == 192);
static_assert(kPlan.hash().value() == kOther.hash().value());
static_assert(kPlan.hash().value() != planGemmAr(shapeAt(2, 1, false), GemmChoice{}, 16).hash().value());
static_assert(kPlan.dataBytes() == kOther.dataBytes() && kPlan.workspace() % kWorkspaceUnit == 0);
static_assert(kPlan.netBytesSent() > 0 && kPlan.netMessagesSent() == 6 * 2 + 12);
static_assert(kPlan.nvlinkBytesSent() > 0);
static_assert(kPlan.roles.role(0) == Role::control && kPlan.roles.total() == 16);
static_assert(kPlan.rail.task(0, 18, 1, 2).finish && kPlan.rail.task(0, 18, 1, 2).index == 1);
static_assert(arrivalFlag(HeapLayout{4096, 32 * kWorkspaceUnit}, ControlLayout{3, 2}, kPlan.slot(2), 1, 5) ==
              4096 + kWorkspaceUnit + (2 * 3 + 1) * 8);
static_assert(ceilDiv(0, 3) == 0 && ceilDiv(7, 3) == 3 && ceilDiv(UINT64_MAX, 2) == 1ull << 63);
static_assert(alignUp(0, 8) == 0 && alignUp(8, 8) == 8 && alignUp(9, 8) == 16);
static_assert(gemmFlops(1, 2, 3) > 11.9 && gemmFlops(1, 2, 3) < 12.1);

constexpr GemmRsPlan kScatter =
    planGemmRs(GemmRsShape{1000, 520, 2, 4, Place{3, 2, 2, 1}, RankMap{2, nullptr}}, GemmChoice{}, 16);
static_assert(kScatter.shardTiles == 3 * 9 && kScatter.chunkTiles == 4 && kScatter.shardChunks == 7);
static_assert(kScatter.tilesOf(2, 1) == 3 * 9 && kScatter.gridOf(2, 1).m == 1000 - 5 * 167);
static_assert(kScatter.at(0).node == 0 && kScatter.at(0).local == 0 && !kScatter.at(0).mine && kScatter.at(4).mine);
static_assert(kScatter.netBytesSent() == 2 * 167 * 520 * 4 && kScatter.netMessagesSent() == 2 * 7);

TEST_CASE("members of a group without one of them are numbered without gap") {
  for (uint32_t members = 1; members <= 9; ++members) {
    for (uint32_t self = 0; self < members; ++self) {
      uint32_t next = 0;
      for (uint32_t other = 0; other < members; ++other) {
        if (other == self) continue;
        CHECK(skipSelf(other, self) == next);
        CHECK(unskipSelf(next, self) == other);
        ++next;
      }
    }
  }
}

// The values at compile time and at run time are the same.
TEST_CASE("a plan made at run time equals the constant") {
  GemmArShape shape = shapeAt(2, 1, true);
  volatile uint64_t m = shape.m;
  shape.m = m;
  const GemmArPlan p = planGemmAr(shape, GemmChoice{}, 16);
  CHECK(p.hash().value() == kPlan.hash().value());
  CHECK(p.dataBytes() == kPlan.dataBytes());
  CHECK(p.flagWords() == kPlan.flagWords());
  CHECK(p.netBytesSent() == kPlan.netBytesSent());
}

}  // namespace
}  // namespace mk::sched::test
