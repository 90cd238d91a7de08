// Parts of a tile's K: each step in one of them, in the order of tiles, and how many the choice makes; which tiles are chosen
// by their times.
#include <set>

#include "ag_worlds.h"
#include "must.h"
#include "sched/ag_order.h"
#include "sched/kernel_choice.h"

namespace mk::sched::test {
namespace {

void checkSplit(uint32_t steps, uint32_t parts) {
  const KSplit split(steps, parts);
  const auto what = [&] { return std::to_string(steps) + " steps in " + std::to_string(parts) + " parts"; };
  std::vector<uint32_t> seen(steps);
  for (uint32_t part = 0; part < split.parts; ++part) {
    const KSteps s = split.of(part);
    MUST(s.count > 0, what() << ": part " << part << " has nothing");
    for (uint32_t i = 0; i < s.count; ++i) {
      MUST(s.at(i) < steps, what() << ": step " << s.at(i) << " of part " << part);
      MUST(i == 0 || s.at(i) > s.at(i - 1), what());
      ++seen[s.at(i)];
    }
  }
  for (uint32_t step = 0; step < steps; ++step)
    MUST(seen[step] == 1, what() << ": step " << step << " is in " << seen[step] << " parts");
}

KernelShape shapeOf(uint64_t m, uint64_t n, uint64_t k, uint32_t locals, bool turnable) {
  KernelShape s;
  s.operation = Operation::agGemm;
  s.m = m;
  s.n = n;
  s.k = k;
  s.locals = locals;
  s.spannable = true;
  s.turnable = turnable;
  return s;
}

uint64_t tilesOfPlan(const KernelShape& s, const KernelChoice& c) {
  AgGemmShape shape;
  shape.m = s.m;
  shape.n = s.n;
  shape.k = s.k;
  shape.place.nodes = s.nodes;
  shape.place.locals = shape.ranks.locals = s.locals;
  GemmChoice choice;
  choice.tileM = c.tileM();
  choice.tileN = c.tileN;
  choice.spanning = c.spanning ? Spanning::always : Spanning::never;
  choice.turned = c.turned;
  return planAgGemm(shape, choice, 132).positions();
}

}  // namespace

TEST_CASE("split K: each step is in one part") {
  for (uint32_t steps = 1; steps <= 130; ++steps) {
    for (uint32_t parts = 1; parts <= kMostParts && parts <= steps; ++parts) checkSplit(steps, parts);
  }
  // Parts that are alike go along K together.
  const KSplit even(10, 4);
  for (uint32_t part = 0; part < 4; ++part) {
    for (uint32_t i = 0; i < even.of(part).count; ++i) CHECK(even.of(part).at(i) / 4 == i);
  }
}

TEST_CASE("split K: parts have places of their own within the memory for so many") {
  constexpr uint32_t kSlots = 66;
  const SplitMemory memory{kSlots};
  // Warpgroups of a block that leave some, and the columns of what each has 64 rows of: narrow and turned tiles.
  for (const auto& [groups, cols] : {std::pair{2u, 128u}, std::pair{1u, kTurnedCols}}) {
    const uint64_t each = uint64_t{64} * cols * sizeof(float);
    for (uint32_t parts = 2; parts <= kMostParts; ++parts) {
      const KSplit split(parts, parts);
      std::set<uint64_t> places, counts;
      for (uint32_t tile = 0; tile < kSlots / parts; ++tile) {
        for (uint32_t block = 0; block < kClusterBlocks; ++block) {
          for (uint32_t group = 0; group < groups; ++group) {
            const uint64_t count = KSplit::count(tile, block, group);
            MUST(counts.insert(count).second, "tile " << tile);
            MUST((count + 1) * sizeof(uint64_t) <= memory.countBytes(), "tile " << tile);
            for (uint32_t part = 0; part < parts; ++part) {
              const uint64_t place = split.place(tile, part, block, group, groups);
              MUST(places.insert(place).second, "tile " << tile << ", part " << part);
              MUST(memory.countBytes() + (place + 1) * each <= memory.bytes(), "tile " << tile << ", part " << part);
            }
          }
        }
      }
      CHECK(places.size() == kSlots / parts * parts * kClusterBlocks * groups);
    }
  }
}

TEST_CASE("chunks cover a tile's columns, and none reaches beyond it") {
  for (const uint32_t tileCols : {64u, kSlimCols, 128u, kMediumCols, 256u}) {
    for (const uint32_t chunkCols : {32u, 64u}) {
      uint32_t covered = 0;
      for (uint32_t i = 0; i < ceilDiv(tileCols, chunkCols); ++i) {
        const uint32_t first = chunkCol(i, chunkCols, tileCols);
        CHECK(first <= covered);
        CHECK((first == covered || i + 1 == ceilDiv(tileCols, chunkCols)));
        covered = first + chunkCols;
      }
      CHECK(covered == tileCols);
    }
  }
}

// Chunks are made of 64 columns, each one of them or two, and stored by number.
TEST_CASE("as many chunks as a tile's columns need have all of them, and no more are made than stored") {
  for (const uint32_t tileCols : {64u, kSlimCols, 128u, kMediumCols, 256u}) {
    for (const uint32_t chunkCols : {32u, 64u}) {
      if (tileCols % 64 != 0 && chunkCols != 64) continue;  // results of four bytes have no such tiles
      for (uint32_t cols = 1; cols <= tileCols; ++cols) {
        const uint32_t stored = static_cast<uint32_t>(ceilDiv(cols, chunkCols));
        uint32_t made = 0, covered = 0;
        for (uint32_t band = 0; band < ceilDiv(tileCols, 64); ++band) {
          for (uint32_t at = band * 64; at < (band + 1) * 64 && at < cols; at += chunkCols) ++made;
        }
        for (uint32_t i = 0; i < stored; ++i) {
          MUST(chunkCol(i, chunkCols, tileCols) <= covered, cols << " of " << tileCols);
          covered = chunkCol(i, chunkCols, tileCols) + chunkCols;
        }
        MUST(made == stored && covered >= cols && covered <= tileCols, cols << " of " << tileCols);
      }
    }
  }
}

TEST_CASE("split K: all first parts in the order of tiles, then all second ones") {
  uint64_t seen = 0;
  for (const uint64_t m : {64, 300, 1000}) {
    for (const uint32_t parts : {1u, 2u, 5u, kMostParts}) {
      AgCase c;
      c.m = m;
      c.n = 1000;
      c.tileM = 256;
      const World world{1, 2};
      const RankTable table(world, false);
      for (const AgGemmPlan& p : agPlans(world, table, c)) {
        const AgOrder tiles(p);
        AgOrder order(p);
        order.split(parts);
        REQUIRE(order.positions == parts * p.positions());
        for (uint32_t i = 0; i < order.positions; ++i) {
          const AgStep got = order.at(i);
          const AgStep want = tiles.at(i % tiles.positions);
          CHECK(got.part == i / tiles.positions);
          CHECK(got.tile == i % tiles.positions);
          CHECK(got.exists == want.exists);
          CHECK((got.row == want.row && got.col == want.col && got.rank == want.rank && got.rows == want.rows));
          ++seen;
        }
      }
    }
  }
  CHECK(seen > 500);
}

TEST_CASE("split K: parts have clusters that would be idle") {
  uint64_t split = 0, whole = 0;
  for (const uint64_t m : {1, 8, 64, 100, 256, 300, 1024, 2048, 4096}) {
    for (const uint64_t n : {8, 100, 1024, 2048, 3584, 4096, 7168, 14336, 28672}) {
      for (const uint64_t k : {0, 64, 640, 2048, 8192, 28672}) {
        for (const uint32_t locals : {1u, 2u, 8u}) {
          for (const bool turnable : {false, true}) {
            for (const uint32_t clusters : {1u, 8u, 66u}) {
              KernelShape s = shapeOf(m, n, k, locals, turnable);
              s.deviceClusters = clusters;
              const KernelChoice c = chooseKernel(s);
              const uint64_t tiles = tilesOfPlan(s, c), steps = larger(1, ceilDiv(k, stepK(c.turned)));
              const auto what = [&] {
                return std::to_string(m) + " x " + std::to_string(n) + ", K " + std::to_string(k) + ", " +
                       std::to_string(locals) + " ranks, " + std::to_string(clusters) + " clusters";
              };
              MUST(tilesOf(s, c) == tiles, what());
              MUST(c.parts >= 1 && c.parts <= kMostParts && c.parts <= steps, what());
              MUST(c.parts == 1 || tiles < c.clusters, what());
              checkSplit(static_cast<uint32_t>(steps), c.parts);
              if (c.parts == 1) {
                ++whole;
              } else {
                ++split;
                MUST(tiles * c.parts <= c.clusters, what());
                if (locals == 1) MUST(c.clusters == tiles * c.parts, what());
              }
            }
          }
        }
      }
    }
  }
  CHECK(split > 300);
  CHECK(whole > 1000);
}

// Tiles by name, as the GPU's host side takes them, and as many computing blocks as the caller says.
TEST_CASE(
    "split K: parts fit the clusters and the memory whatever the caller chooses, and what is chosen may be asked for") {
  uint64_t split = 0, medium = 0;
  const auto check = [&](const KernelShape& s, const KernelChoice& c) {
    const auto what = [&] {
      return std::to_string(s.m) + " x " + std::to_string(s.n) + ", K " + std::to_string(s.k) + ", " +
             std::to_string(s.nodes) + " x " + std::to_string(s.locals) + " ranks, tileN " + std::to_string(s.tileN) +
             ", " + std::to_string(c.clusters) + " of " + std::to_string(s.deviceClusters) + " clusters, parts " +
             std::to_string(c.parts);
    };
    const uint64_t tiles = tilesOfPlan(s, c), steps = larger(1, ceilDiv(s.k, stepK(c.turned)));
    MUST(tilesOf(s, c) == tiles, what());
    MUST(c.clusters >= 1 && c.clusters + c.receiveClusters <= s.deviceClusters, what());
    MUST((c.tileN != kSlimCols && c.tileN != kMediumCols) || s.mediumToo, what());
    medium += c.tileN == kMediumCols;
    MUST(c.parts >= 1 && c.parts <= steps, what());
    if (c.parts == 1) return;
    ++split;
    // Each cluster has one part at most; there is memory for as many as the device has clusters, of narrow and turned tiles.
    MUST(s.nodes == 1 && c.tileN <= 128 && tiles * c.parts <= c.clusters, what());
    const SplitMemory memory{s.deviceClusters};
    const uint32_t groups = c.turned ? 1 : 2;
    const KSplit parts(static_cast<uint32_t>(steps), c.parts);
    const uint64_t last = parts.place(static_cast<uint32_t>(tiles - 1), c.parts - 1, 1, groups - 1, groups);
    MUST(memory.countBytes() + (last + 1) * 64 * c.tileN * sizeof(float) <= memory.bytes(), what());
  };
  for (const uint64_t m : {0, 1, 40, 200, 256, 300, 1100}) {
    for (const uint64_t n : {0, 8, 264, 1024, 3584, 8192}) {
      for (const uint64_t k : {0, 72, 8192}) {
        for (const World world : {World{1, 1}, World{1, 2}, World{1, 8}, World{2, 1}, World{2, 4}}) {
          for (const uint32_t tileN : {0u, kSlimCols, 128u, kMediumCols, 256u}) {
            for (const uint32_t clusters : {2u, 16u, 66u}) {
              KernelShape s = shapeOf(m, n, k, world.locals, world.nodes == 1);
              s.nodes = world.nodes;
              s.mediumToo = s.turnable;
              if ((tileN == kSlimCols || tileN == kMediumCols) && !s.mediumToo) continue;
              s.tileN = tileN;
              s.deviceClusters = clusters;
              const KernelChoice chosen = chooseKernel(s);
              check(s, chosen);
              for (const uint32_t agents : {1u, 2u, 5u, 7u, 32u, 131u, 2 * chosen.clusters}) {
                KernelChoice c = chosen;
                limitClusters(s, agents, &c);
                check(s, c);
                if (agents != 2 * chosen.clusters) continue;
                KernelShape named = s;
                named.turned = chosen.turned;
                named.turnable = chosen.turned;
                if (chosen.turned) named.turnedRows = chosen.turnedRows;
                if (!chosen.turned) named.tileN = chosen.tileN;
                KernelChoice again = chooseKernel(named);
                limitClusters(named, agents, &again);
                for (const KernelChoice& o : {c, again})
                  MUST(o.tileN == chosen.tileN && o.turned == chosen.turned && o.turnedRows == chosen.turnedRows &&
                           o.clusters == chosen.clusters && o.parts == chosen.parts && o.movers == chosen.movers &&
                           o.paceNs == chosen.paceNs && o.chunkRows == chosen.chunkRows &&
                           o.sliceCols == chosen.sliceCols && o.groupChunks == chosen.groupChunks,
                       m << " x " << n << ", K " << k);
              }
            }
          }
        }
      }
    }
  }
  CHECK(split > 1000);
  CHECK(medium > 1000);
}

TEST_CASE("allgather: tiles of the width whose rounds are the fullest") {
  const auto tileN = [](uint64_t m, uint64_t n, bool mediumToo = true, uint32_t locals = 1) {
    KernelShape s = shapeOf(m, n, 8192, locals, true);
    s.mediumToo = mediumToo;
    return chooseKernel(s).tileN;
  };
  CHECK(tileN(1024, 3584) ==
        kMediumCols);  // 56 of 256 columns and 112 of 128 leave a sixth of 66 clusters idle, 64 of 224 do not
  CHECK(tileN(256, 14336) == kMediumCols);
  CHECK(tileN(1024, 14336) == kMediumCols);
  CHECK(tileN(1024, 3584, true, 2) == kMediumCols);
  CHECK(tileN(1024, 3584, false) != kMediumCols);
  CHECK(tileN(256, 7168) == kSlimCols);  // 64 instead of 56
  CHECK(tileN(256, 3584) == kSlimCols);  // with two parts of K each
  CHECK(tileN(256, 7168, false) == 128);
  CHECK(tileN(256, 8192) == 128);
  CHECK(tileN(256, 4096) == 128);
  CHECK(tileN(4096, 4096) == 256);
  CHECK(tileN(16384, 14336) == 256);
  // Nor where it is the caller's, or results travel.
  KernelShape s = shapeOf(1024, 3584, 8192, 1, true);
  s.mediumToo = true;
  s.tileN = 256;
  CHECK(chooseKernel(s).tileN == 256);
  for (const uint32_t locals : {1u, 2u}) {
    s = shapeOf(1024, 3584, 8192, locals, true);
    s.operation = Operation::gemmRs;
    s.mediumToo = true;
    CHECK((chooseKernel(s).tileN == 128 || chooseKernel(s).tileN == 256));
  }
}

TEST_CASE("where results travel tiles do not depend on K, which is each rank's own") {
  uint64_t seen = 0;
  for (const Operation operation : {Operation::gemmAr, Operation::gemmRs}) {
    for (const uint64_t m : {1, 8, 64, 256, 1024, 4096}) {
      for (const uint64_t n : {8, 1024, 3584, 8192}) {
        for (const World world : {World{1, 1}, World{1, 2}, World{2, 1}, World{2, 2}}) {
          for (const bool turnable : {false, true}) {
            KernelShape s = shapeOf(m, n, 8192, world.locals, turnable && world.nodes == 1);
            s.nodes = world.nodes;
            s.spannable = world.nodes == 1;
            s.operation = operation;
            const KernelChoice c = chooseKernel(s);
            for (const uint64_t k : {0, 8, 64, 1000, 28672}) {
              s.k = k;
              const KernelChoice other = chooseKernel(s);
              MUST(other.tileN == c.tileN && other.turned == c.turned && other.spanning == c.spanning &&
                       other.flagBands == c.flagBands && other.receiveClusters == c.receiveClusters,
                   m << " x " << n << ", K " << k);
              ++seen;
            }
          }
        }
      }
    }
  }
  CHECK(seen > 1000);
}

TEST_CASE("split K: where results travel, on several nodes and with few clusters it is not") {
  KernelShape s = shapeOf(256, 1024, 8192, 2, true);
  REQUIRE(chooseKernel(s).parts > 1);
  s.nodes = 2;
  CHECK(chooseKernel(s).parts == 1);
  s.nodes = 1;
  s.operation = Operation::gemmRs;
  CHECK(chooseKernel(s).parts == 1);
  s.operation = Operation::gemmAr;
  CHECK(chooseKernel(s).parts == 1);
  // The caller leaves fewer clusters than there are tiles.
  s.operation = Operation::agGemm;
  KernelChoice c = chooseKernel(s);
  c.clusters = 2;
  splitK(s, &c);
  CHECK(c.parts == 1);
}

}  // namespace mk::sched::test
