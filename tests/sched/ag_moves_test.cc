// The moves of AllGather+GEMM in 32-bit arithmetic, against the plan's.
#include "sched/ag_moves.h"

#include "ag_worlds.h"

namespace mk::sched::test {

namespace {

// How many moves and copies there were.
uint64_t compare(const AgGemmPlan& p) {
  uint64_t seen = 0;
  const AgMoves q(p);
  const auto same = [](const Shard& a, const Shard& b) {
    return a.node == b.node && a.local == b.local && a.rank == b.rank;
  };
  // What is asked of a chunk of anybody's.
  const auto compareChunk = [&](const Shard& s, uint64_t chunk, uint64_t slice, const std::string& where) {
    MUST(q.rowsIn(s.rank, static_cast<uint32_t>(chunk)) == p.rowsIn(s, chunk), where);
    MUST(q.packed(s, p.chunkRow(chunk)) == p.packed(s, p.chunkRow(chunk)), where);
    MUST(q.chunkFlag(s.rank, chunk, slice) == p.chunkFlag(s, chunk, slice), where);
    const uint32_t distance = p.distanceTo(s.node);
    MUST(q.distanceTo(s.node) == distance, where);
    if (distance == 0) return;
    MUST(q.slot(distance, chunk) == p.slot(distance, chunk) && q.sender(distance) == p.sender(distance), where);
  };
  MUST(q.moves == p.moves() && q.copies == p.copies() && q.slices == p.slices() && q.outFlags == p.outFlagBase(),
       describe(p));
  for (uint32_t i = 0; i < q.moves; ++i) {
    const std::string where = describe(p) + ", move " + std::to_string(i);
    const AgMoves::Move got = q.move(i);
    const AgGemmPlan::Move want = p.move(i);
    MUST(got.exists == want.exists && same(got.from, want.from) && got.chunk == want.chunk, where);
    MUST(got.distance == want.distance && got.target == want.target && got.peer == want.peer, where);
    MUST(got.slice == want.slice && q.colsIn(static_cast<uint32_t>(got.slice)) == p.colsIn(want.slice), where);
    if (!want.exists) continue;
    compareChunk(want.from, want.chunk, want.slice, where);
    ++seen;
  }
  for (uint32_t i = 0; i < q.copies; ++i) {
    const std::string where = describe(p) + ", copy " + std::to_string(i);
    const AgMoves::Copy got = q.copy(i);
    const AgGemmPlan::Copy want = p.copy(i);
    MUST(got.exists == want.exists && same(got.from, want.from) && got.chunk == want.chunk, where);
    if (!want.exists) continue;
    compareChunk(want.from, want.chunk, 0, where);
    ++seen;
  }
  MUST(q.toPeers == p.movesToPeer(p.place().local) * (p.place().locals - 1), describe(p));
  for (uint32_t l = 0; l < p.place().locals; ++l)
    MUST((q.senders >> l & 1) == (p.movesToPeer(l) != 0 ? 1 : 0), describe(p));
  return seen;
}

}  // namespace

TEST_CASE("allgather: the moves in 32 bits are the plan's") {
  uint64_t seen = 0;
  forAgPlans([&](const World&, const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) seen += compare(p);
  });
  CHECK(seen > 20000);
}

TEST_CASE("allgather: the moves in 32 bits are the plan's, in slices too") {
  uint64_t seen = 0;
  for (const uint32_t locals : {2u, 3u, 8u}) {
    const World world{1, locals};
    for (const uint64_t m : {1, 40, 41, 100, 517}) {
      for (const uint64_t k : {0, 8, 64, 200, 1024}) {
        for (const uint32_t group : {1u, 2u, 5u, 1000u}) {
          GemmChoice choice;
          choice.tileM = 1;  // of one shard
          choice.chunkRows = 4;
          choice.sliceCols = 64;
          choice.groupChunks = group;
          AgGemmShape shape;
          shape.m = m;
          shape.n = 16;
          shape.k = k;
          for (uint32_t i = 0; i < locals; ++i) {
            shape.place = world.place(i);
            shape.ranks.locals = locals;
            seen += compare(planAgGemm(shape, choice, 8));
          }
        }
      }
    }
  }
  CHECK(seen > 20000);
}

TEST_CASE("allgather: the moves in 32 bits are the plan's, where tiles span shards too") {
  uint64_t seen = 0;
  forSpanningPlans([&](const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) {
      seen += compare(p);
      const AgMoves q(p);
      MUST(q.spanning && q.spanned == p.spannedMoves() && q.selfAnnounced == p.selfAnnounced(), describe(p));
    }
  });
  CHECK(seen > 20000);
}

}  // namespace mk::sched::test
