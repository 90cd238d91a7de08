// AllGather+GEMM where shards have few rows: when tiles span shards, what is moved in which order, and what a GPU kernel chooses.
#include <algorithm>
#include <vector>

#include "ag_worlds.h"
#include "sched/kernel_choice.h"

namespace mk::sched::test {
namespace {

TEST_CASE("allgather: tiles span shards where those of one each would be half as many again, on one node") {
  uint64_t spanning = 0, not_ = 0;
  for (const World world : {World{1, 1}, World{1, 2}, World{1, 3}, World{1, 8}, World{2, 1}, World{2, 4}}) {
    for (const uint32_t tileM : {1u, 16u, 64u, 256u}) {
      for (uint64_t m = 0; m < 700; ++m) {
        AgGemmShape shape;
        shape.m = m;
        shape.n = 16;
        shape.k = 8;
        shape.place = world.place(world.ranks() - 1);
        shape.ranks.locals = world.locals;
        GemmChoice choice;
        choice.tileM = tileM;
        const AgGemmPlan p = planAgGemm(shape, choice, 8);
        // Counted shard by shard, and over all rows.
        uint64_t byShard = 0, whole = 0;
        for (uint32_t r = 0; r < world.ranks(); ++r) {
          for (uint64_t row = 0; row < p.shards.rows(r); row += tileM) ++byShard;
        }
        for (uint64_t row = 0; row < m; row += tileM) ++whole;
        MUST(p.shards.rowsOfTiles(tileM) == byShard, describe(p));
        MUST(p.spanning == (world.nodes == 1 && m != 0 && 2 * byShard >= 3 * whole), describe(p));
        if (p.spanning) MUST(p.positions() == whole, describe(p));
        // A rank alone has nobody's rows beside its own.
        if (world.ranks() == 1) MUST(!p.spanning, describe(p));
        ++(p.spanning ? spanning : not_);
      }
    }
  }
  CHECK(spanning > 1000);
  CHECK(not_ > 1000);
}

TEST_CASE("allgather: where tiles span shards every slice goes to every local rank once, the first of all rows first") {
  uint64_t seen = 0, announced = 0;
  forSpanningPlans([&](const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) {
      MUST(p.spanning, describe(p));
      const Shard mine = p.mine();
      const uint32_t locals = p.place().locals;
      // By local rank, chunk and slice: how often; and whole chunks to the own `gathered`.
      std::vector<uint32_t> moved(locals * p.mostChunks() * p.slices()), copied(p.mostChunks());
      uint64_t slice = 0;
      for (uint64_t i = 0; i < p.moves(); ++i) {
        const AgGemmPlan::Move t = p.move(i);
        MUST(t.exists == (t.chunk < p.chunks(mine)), describe(p) << ", move " << i);
        if (!t.exists) continue;
        ++seen;
        MUST(t.from.rank == mine.rank && t.distance == 0, describe(p) << ", move " << i);
        MUST((t.target == AgGemmPlan::Target::peer) == (t.peer != p.place().local), describe(p) << ", move " << i);
        if (t.target == AgGemmPlan::Target::self && !p.selfAnnounced()) {
          MUST(p.shape.gathered == Gathered::memory && t.slice == 0, describe(p) << ", move " << i);
          ++copied[t.chunk];
          continue;
        }
        // To the own bank, or with a window into that: nobody reads them elsewhere.
        if (t.peer == p.place().local)
          MUST((t.target == AgGemmPlan::Target::bank) == !p.windowed(), describe(p) << ", move " << i);
        MUST(t.slice >= slice && t.slice < p.slices(), describe(p) << ", move " << i);
        slice = t.slice;
        ++moved[(t.peer * p.mostChunks() + t.chunk) * p.slices() + t.slice];
        ++announced;
      }
      for (uint32_t l = 0; l < locals; ++l) {
        for (uint64_t c = 0; c < p.mostChunks(); ++c) {
          for (uint64_t s = 0; s < p.slices(); ++s)
            MUST(moved[(l * p.mostChunks() + c) * p.slices() + s] == (c < p.chunks(mine) ? 1 : 0), describe(p));
        }
      }
      const uint32_t wanted = p.shape.gathered == Gathered::memory ? 1 : 0;
      for (uint64_t c = 0; c < p.chunks(mine); ++c) MUST(copied[c] == wanted, describe(p) << ", chunk " << c);
      // What peers count is what goes to them.
      MUST(p.movesToPeer(p.place().local) == p.chunks(mine) * p.slices(), describe(p));
    }
  });
  CHECK(seen > 20000);
  CHECK(announced > 15000);
  CHECK(announced < seen);
}

TEST_CASE("allgather: whether tiles span shards is each rank's own affair") {
  AgGemmShape shape;
  shape.m = 40;
  shape.n = 64;
  shape.k = 64;
  shape.place = World{1, 2}.place(0);
  shape.ranks.locals = 2;
  GemmChoice low, high;
  low.tileM = 8;
  high.tileM = 64;
  const AgGemmPlan single = planAgGemm(shape, low, 8), spanning = planAgGemm(shape, high, 8);
  REQUIRE(!single.spanning);
  REQUIRE(spanning.spanning);
  CHECK(single.hash().value() == spanning.hash().value());
  CHECK(single.workspace() == spanning.workspace());
  CHECK(single.movesToPeer(0) == spanning.movesToPeer(0));
  const Shard other = single.shard(0, 1);
  for (uint64_t c = 0; c < single.mostChunks(); ++c) CHECK(single.chunkFlag(other, c) == spanning.chunkFlag(other, c));
  CHECK(single.outFlag(1) == spanning.outFlag(1));
}

KernelShape gatherShape(uint64_t m, uint64_t n, uint64_t k, uint32_t locals) {
  KernelShape s;
  s.operation = Operation::agGemm;
  s.spannable = true;
  s.m = m;
  s.n = n;
  s.k = k;
  s.locals = locals;
  return s;
}

TEST_CASE("of few rows a shard, moves are of some 32 KiB, and begin the first step early") {
  const auto choice = [](uint64_t m, uint64_t k, uint32_t locals) {
    return chooseKernel(gatherShape(m, 4096, k, locals));
  };
  CHECK(choice(256, 8192, 2).chunkRows == 32);
  CHECK(choice(256, 8192, 2).sliceCols == 512);
  CHECK(choice(1024, 8192, 8).sliceCols == 512);
  // Low slices are long.
  CHECK(choice(8, 8192, 2).chunkRows == 4);
  CHECK(choice(8, 8192, 2).sliceCols == 4096);
  CHECK(choice(2, 8192, 2).chunkRows == 2);
  CHECK(choice(2, 8192, 2).sliceCols == 0);
  // Whole rows where they are short; slices of one length.
  CHECK(choice(256, 128, 2).chunkRows == 128);
  CHECK(choice(256, 128, 2).sliceCols == 0);
  CHECK(choice(256, 640, 2).chunkRows == 32);
  CHECK(choice(256, 640, 2).sliceCols == 384);
  // More rows: tiles of one shard each, as ever.
  CHECK(choice(1024, 8192, 2).chunkRows == 4);
  CHECK(choice(1024, 8192, 2).sliceCols == 0);
  // A tile for every 256 rows of all shards, where shards alone had one each.
  KernelShape s = gatherShape(1024, 2048, 64, 8);
  const KernelChoice spanning = chooseKernel(s);
  s.m = 8 * 256;
  CHECK(spanning.tileN == 128);
  CHECK(chooseKernel(s).tileN == 256);
  uint64_t spanned = 0, turned = 0;
  for (const uint32_t locals : {2u, 4u, 8u}) {
    for (const uint64_t m : {2u, 8u, 17u, 64u, 256u, 600u, 1024u, 1100u, 2500u, 4096u}) {
      for (const uint64_t k : {0u, 8u, 520u, 4096u, 28672u, 1u << 20}) {
        s = gatherShape(m, 4096, k, locals);
        const KernelChoice c = chooseKernel(s);
        AgGemmShape shape;
        shape.m = m;
        shape.k = k;
        shape.place = World{1, locals}.place(0);
        GemmChoice asked;
        asked.tileM = kClusterRows;
        asked.chunkRows = c.chunkRows;
        asked.sliceCols = c.sliceCols;
        const AgGemmPlan p = planAgGemm(shape, asked, 132);
        // What all ranks must have alike does not depend on what they need not.
        for (const uint64_t n : {uint64_t{0}, uint64_t{128}, uint64_t{100000}}) {
          for (const uint32_t tileN : {0u, kSlimCols, 128u, kMediumCols, 256u}) {
            for (const bool turnable : {false, true}) {
              s.n = n;
              s.tileN = tileN;
              s.turnable = s.mediumToo = turnable;
              s.turned = turnable && m <= mostTurnedRows(s.operation) && n == 128;
              KernelChoice other = chooseKernel(s);
              if (n != 0) limitClusters(s, 7, &other);
              MUST(other.chunkRows == c.chunkRows && other.sliceCols == c.sliceCols, describe(p) << ", n " << n);
              turned += other.turned;
            }
          }
        }
        MUST((c.chunkRows & (c.chunkRows - 1)) == 0 && c.chunkRows <= 128 && c.sliceCols % stepK(true) == 0,
             describe(p));
        if (!p.spanning) continue;
        ++spanned;
        MUST(c.paceNs == 0, describe(p));
        const uint64_t moveBytes = c.chunkRows * (c.sliceCols != 0 ? c.sliceCols : k) * 2;
        // One row that is longer is cut too; slices are of whole steps of K.
        MUST(moveBytes <= (32u << 10) + c.chunkRows * 128, describe(p));
        // Nor shorter than need be: two of them would be more.
        if (c.sliceCols != 0) MUST(p.slices() == 1 || moveBytes > (16u << 10), describe(p));
      }
    }
  }
  CHECK(spanned > 80);
  CHECK(turned > 200);
}

}  // namespace
}  // namespace mk::sched::test
