// TileOrder, the 32-bit order of the GPU kernels, agrees with the plan at every position; the choice of kernels stays within
// what the device holds.
#include "must.h"
#include "protocol/tile_cursor.h"
#include "sched/kernel_choice.h"
#include "sched/tile_order.h"

namespace mk::sched::test {
namespace {

TEST_CASE("division by a factor is exact") {
  uint64_t state = 88172645463325252ull;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
  };
  for (int i = 0; i < 200000; ++i) {
    const uint32_t d = i < 70000 ? static_cast<uint32_t>(i + 1) : (next() >> next() % 32) | 1u;
    const FastDivision by(d);
    for (const uint32_t n : {next(), next() >> 16, d - 1, d, d + 1, 0u, 0xffffffffu})
      MUST(by.divide(n) == n / d, n << " / " << d << " is given as " << by.divide(n));
  }
}

TEST_CASE("the order of tiles in 32 bits is the plan's") {
  uint64_t positions = 0;
  forWorlds([&](const World& world) {
    for (const uint64_t m : {0, 1, 256, 300, 2048, 4611}) {
      for (const uint64_t n : {8, 256, 1000, 3072}) {
        for (const uint32_t chunkTiles : {0u, 1u, 3u}) {
          for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
            GemmArShape shape;
            shape.m = m;
            shape.n = n;
            shape.place = world.place(rank);
            GemmChoice choice;
            choice.tileM = kClusterRows;
            choice.tileN = 128;
            choice.chunkTiles = chunkTiles;
            choice.parts = kClusterBlocks;
            const GemmArPlan plan = planGemmAr(shape, choice, 8);
            const TileOrder order(plan);
            MUST(order.positions == plan.chunks.tiles, describe(plan));
            for (uint32_t i = 0; i < order.positions; ++i, ++positions) {
              const TileStep got = order.at(i);
              const protocol::TileTask want = protocol::taskAt(plan, i);
              MUST(got.tile == want.tile && got.row == want.shape.row && got.col == want.shape.col &&
                       got.rows == want.shape.rows && got.cols == want.shape.cols && got.owner == want.owner &&
                       got.ownedTile == want.ownedTile && got.ownedChunk == want.ownedChunk,
                   describe(plan) << ", position " << i << ": tile " << got.tile << ", the plan's " << want.tile);
            }
          }
        }
      }
    }
  });
  CHECK(positions > 100000);
}

TEST_CASE("flags of a tile's parts have a word each") {
  GemmArShape shape;
  shape.m = 2000;
  shape.n = 1000;
  shape.staged = true;
  shape.place = Place{1, 4, 0, 1};
  GemmChoice choice;
  choice.tileM = 256;
  choice.tileN = 128;
  choice.parts = 2;
  const GemmArPlan plan = planGemmAr(shape, choice, 8);
  std::vector<int> taken(plan.flagWords(), 0);
  for (uint32_t part = 0; part < 2; ++part) {
    for (uint64_t t = 0; t < plan.ownedTiles(); ++t) {
      for (uint32_t from = 0; from < 4; ++from)
        if (from != 1) ++taken.at(plan.partialFlag(t, from, 1, part));
    }
    for (uint64_t t = 0; t < plan.grid.count(); ++t) ++taken.at(plan.stagedFlag(t, part));
  }
  for (uint32_t from = 0; from < 4; ++from) ++taken.at(plan.outFlag(from));
  for (const int count : taken) MUST(count <= 1, "a word with two uses");
}

TEST_CASE("chosen clusters fit and leave one to compute") {
  for (const uint64_t m : {0, 1, 256, 2048, 16384}) {
    for (const uint32_t nodes : {1u, 2u, 8u}) {
      for (const uint32_t locals : {1u, 2u, 8u}) {
        for (const uint32_t device : {2u, 3u, 16u, 66u}) {
          for (const bool staged : {false, true}) {
            KernelShape s;
            s.m = m;
            s.n = 4096;
            s.k = 1024;
            s.nodes = nodes;
            s.locals = locals;
            s.deviceClusters = device;
            s.staged = staged;
            const KernelChoice c = chooseKernel(s);
            MUST(c.tileN == 128 || c.tileN == 256, c.tileN);
            MUST(c.clusters >= 1, "nobody computes");
            MUST((c.receiveClusters >= 1) == (nodes > 1), c.receiveClusters);
            MUST((c.copyClusters >= 1) == (staged && locals > 1), c.copyClusters);
            if (device >= 3)
              MUST(c.clusters + c.receiveClusters + c.copyClusters <= device, device << " clusters are too few");
          }
        }
      }
    }
  }
}

TEST_CASE("B is let go first by the cache where few rows read it once, and it is too large to stay") {
  for (const Operation op : {Operation::gemmAr, Operation::gemmRs, Operation::agGemm}) {
    for (const bool turnable : {false, true}) {
      KernelShape s;
      s.operation = op;
      s.turnable = turnable;
      s.m = 64;
      s.n = 14336;
      s.k = 8192;
      CHECK(chooseKernel(s).streamsB);
      s.cacheBytes = 400u << 20;
      CHECK(!chooseKernel(s).streamsB);
      s.cacheBytes = 60u << 20;
      s.n = 3584;
      CHECK(chooseKernel(s).streamsB);
      s.n = 2048;  // 34 MB
      CHECK(!chooseKernel(s).streamsB);
      s.n = 14336;
      s.m = 256;
      CHECK(chooseKernel(s).streamsB);
      s.m = 257;  // another row of tiles reads it again, later
      CHECK(!chooseKernel(s).streamsB);
    }
  }
  // Where tiles have rows of one shard each, every shard's read it again.
  KernelShape s;
  s.m = 256;
  s.n = 14336;
  s.k = 8192;
  s.locals = 2;
  CHECK(chooseKernel(s).streamsB);
  s.operation = Operation::gemmRs;
  CHECK(!chooseKernel(s).streamsB);
  s.spannable = true;
  CHECK(chooseKernel(s).streamsB);
  s.operation = Operation::agGemm;
  CHECK(chooseKernel(s).streamsB);
  s.locals = 1;
  s.nodes = 2;
  CHECK(!chooseKernel(s).streamsB);
}

TEST_CASE("two rounds of narrow tiles are shared evenly, announced in bands and paced; more rounds are not") {
  KernelShape s;
  s.locals = 2;
  s.m = s.n = 2048;
  s.k = 128;
  const KernelChoice two = chooseKernel(s);  // 128 narrow tiles
  CHECK(two.tileN == 128);
  CHECK(two.clusters == 64);
  CHECK(two.flagBands == 2);
  CHECK(two.paceNs == linkPaceNs(64));
  s.m = s.n = 4096;
  s.k = 256;
  const KernelChoice many = chooseKernel(s);
  CHECK(many.tileN == 128);
  CHECK(many.flagBands == 1);
  CHECK(many.paceNs == 0);
  s.k = 2048;
  CHECK(chooseKernel(s).paceNs == linkPaceNs(64));
  // Rows that are gathered are moved beside computing, and nothing of the result travels; a node's card is fed by a cluster.
  s.operation = Operation::agGemm;
  const KernelChoice gather = chooseKernel(s);
  CHECK(gather.movers == kClusterBlocks * gather.clusters);
  CHECK(gather.paceNs == 0);
  CHECK(gather.receiveClusters == 0);
  // Small shards travel in whole rows; larger ones in slices, of rows of as many tiles as are under way.
  CHECK(gather.sliceCols == 0);
  CHECK(gather.chunkRows == 16);
  s.k = 4096;
  const KernelChoice sliced = chooseKernel(s);
  CHECK(sliced.chunkRows == 128);
  CHECK(sliced.sliceCols == 256);
  CHECK(sliced.paceNs == movePaceNs(sliced.movers));
  CHECK(sliced.groupChunks * sliced.chunkRows * (4096 / sliced.tileN) >= sliced.clusters * kClusterRows);
  s.m = 65536;
  CHECK(chooseKernel(s).sliceCols == 512);
  s.m = 4096;
  s.n = 512;
  CHECK(chooseKernel(s).sliceCols != 0);
  CHECK(chooseKernel(s).paceNs == 0);
  s.n = 4096;
  s.nodes = 2;
  CHECK(chooseKernel(s).receiveClusters == 1);
  CHECK(chooseKernel(s).sliceCols == 0);
  s.receiveAgents = 7;
  CHECK(chooseKernel(s).movers == 7);
  s = {};
  // No tile has rows of two shards: 4 x 16 tiles of 100 rows of 256 each.
  s.operation = Operation::gemmRs;
  s.locals = 4;
  s.m = 400;
  s.n = 2048;
  CHECK(chooseKernel(s).clusters == 64);
  // Of few rows tiles are turned, where the kernel can do it and nobody has asked for others.
  s = {};
  s.turnable = true;
  s.locals = 2;
  s.m = kTurnedCols;
  s.n = 5000;
  s.k = 4096;
  const KernelChoice turned = chooseKernel(s);
  CHECK(turned.turned);
  CHECK(turned.tileN == kTurnedCols);
  CHECK(turned.tileM() == kTurnedRows);
  CHECK(turned.clusters == 40);  // a tile each
  CHECK(turned.flagBands == 1);
  s.n = 14336;
  CHECK(chooseKernel(s).clusters == s.deviceClusters);
  s.n = 0;
  CHECK(chooseKernel(s).clusters == 1);
  s.n = 5000;
  s.m = kTurnedCols + 1;
  CHECK_FALSE(chooseKernel(s).turned);
  CHECK(chooseKernel(s).tileM() == kClusterRows);
  // More rows: of AllGather where that is quicker, or by name.
  s.n = 1024;
  CHECK_FALSE(chooseKernel(s).turned);
  s.operation = Operation::agGemm;
  CHECK(chooseKernel(s).turned);
  s.locals = 1;
  CHECK(chooseKernel(s).parts == 4);
  CHECK(chooseKernel(s).clusters == 64);
  s.n = 2048;
  CHECK_FALSE(chooseKernel(s).turned);
  s.m = mostTurnedRows(s.operation);
  s.n = 4096;
  CHECK_FALSE(chooseKernel(s).turned);
  s.turned = true;
  CHECK(chooseKernel(s).turned);
  CHECK(chooseKernel(s).clusters == s.deviceClusters);
  s.turned = false;
  s.n = 640;
  CHECK(chooseKernel(s).turned);
  s.m = mostTurnedRows(s.operation) + 1;
  CHECK_FALSE(chooseKernel(s).turned);
  s.operation = Operation::gemmAr;
  s.n = 5000;
  s.m = 1;
  s.tileN = 128;
  CHECK_FALSE(chooseKernel(s).turned);
  s.tileN = 0;
  s.turnable = false;
  CHECK_FALSE(chooseKernel(s).turned);
  // Of AllGather lower ones where they divide N and share it more evenly: 64 tiles instead of 40, 56, or 28 for two clusters each;
  // two rounds of 64 instead of 40 or 56.
  s = {};
  s.operation = Operation::agGemm;
  s.turnable = true;
  s.m = kTurnedCols;
  s.k = 8192;
  for (const auto& [n, rows] :
       {std::pair{3584u, 112u}, {5120, 80}, {7168, 112}, {10240, 80}, {12288, 96}, {14336, 112}, {28672, 112}}) {
    s.n = n;
    const KernelChoice low = chooseKernel(s);
    CHECK(low.tileM() == rows);
    CHECK(low.clusters == (n > 7168 ? s.deviceClusters : 64));
    CHECK(low.parts == (n == 3584 ? 2 : 1));
  }
  s.turnedRows = kTurnedRows;
  CHECK(chooseKernel(s).tileM() == kTurnedRows);
  s.turnedRows = 0;
  // They do not divide it; tiles are as even as they are; K has more parts; it would take another round.
  for (const uint64_t n : {0, 7160, 7176, 4096, 8192, 560, 1792, 2560, 13824}) {
    s.n = n;
    CHECK(chooseKernel(s).tileM() == kTurnedRows);
  }
  s.n = 7168;
  s.locals = 2;
  CHECK(chooseKernel(s).tileM() == 112);
  CHECK(chooseKernel(s).spanning);
  // Partial results have places by the plan, which has one height.
  for (const Operation o : {Operation::gemmAr, Operation::gemmRs}) {
    s.operation = o;
    CHECK(chooseKernel(s).turned);
    CHECK(chooseKernel(s).tileM() == kTurnedRows);
    CHECK_FALSE(mayTurnBy(s, 112));
  }
  s.operation = Operation::agGemm;
  for (const uint32_t rows : {80u, 96u, 112u, 128u}) {
    s.n = rows;
    CHECK(mayTurnBy(s, rows));
    s.n = rows + 8;
    CHECK(mayTurnBy(s, rows) == (rows == kTurnedRows));
  }
  s.n = 128 * 3 * 5 * 7;
  for (const uint32_t rows : {0u, 8u, 16u, 64u, 88u, 120u, 144u, 160u, 256u}) CHECK_FALSE(mayTurnBy(s, rows));
  // Without peers nothing is announced; wide tiles make one round of 2048 x 2048, narrow ones two of half the length and more.
  s = {};
  s.m = s.n = 2048;
  s.k = 2048;
  const KernelChoice alone = chooseKernel(s);
  CHECK(alone.tileN == 256);
  CHECK(alone.flagBands == 1);
  CHECK(alone.paceNs == 0);
}

}  // namespace
}  // namespace mk::sched::test
