// Properties of AgGemmPlan: every element of C in one tile, which waits for the chunks under it; places and flags of a bank;
// what is sent is what is expected; bytes per link.
#include <algorithm>
#include <set>

#include "ag_worlds.h"
#include "sched/ag_order.h"

namespace mk::sched::test {
namespace {

TEST_CASE("allgather: chunks of a shard are its rows, once each") {
  forAgPlans([](const World&, const std::vector<AgGemmPlan>& plans) {
    const AgGemmPlan& p = plans[0];
    uint64_t row = 0;
    std::vector<uint32_t> byRank(plans.size());
    for (uint32_t i = 0; i < plans.size(); ++i) byRank[plans[i].mine().rank] = i;
    for (const uint32_t i : byRank) {
      const Shard s = plans[i].mine();
      MUST(p.shards.first(s.rank) == std::min(p.shape.m, s.rank * p.shards.height()), describe(p));
      MUST(p.shards.first(s.rank) == row, describe(p) << ", rank " << s.rank);
      row += p.shards.rows(s.rank);
      uint64_t rows = 0;
      for (uint64_t c = 0; c < p.chunks(s); ++c) {
        MUST(p.chunkRow(c) == rows, describe(p) << ", chunk " << c);
        MUST(p.rowsIn(s, c) >= 1 && p.rowsIn(s, c) <= p.chunkRows, describe(p) << ", chunk " << c);
        MUST(p.chunkBytes(s, c) == p.rowsIn(s, c) * p.shape.k * 2, describe(p) << ", chunk " << c);
        rows += p.rowsIn(s, c);
      }
      MUST(rows == (p.shape.k == 0 ? 0 : p.shards.rows(s.rank)), describe(p) << ", rank " << s.rank);
      MUST(p.chunks(s) <= p.mostChunks(), describe(p) << ", rank " << s.rank);
    }
    MUST(row == p.shape.m, describe(p));
  });
}

TEST_CASE("allgather: every element of C is in one tile, of one shard or of all, that waits for the chunks under it") {
  uint64_t spanning = 0, single = 0;
  forAgPlans([&](const World&, const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) {
      std::vector<uint32_t> covered(p.shape.m * p.shape.n, 0);
      for (uint64_t position = 0; position < p.positions(); ++position) {
        const AgGemmPlan::TileTask t = p.tileAt(position);
        if (!t.exists) continue;
        MUST(t.shape.rows >= 1 && t.shape.rows <= p.tileM && t.shape.cols >= 1 && t.shape.cols <= p.tileN,
             describe(p) << ", position " << position);
        MUST(p.spanning == p.isWholeA(t.from), describe(p) << ", position " << position);
        MUST(t.shape.row == (p.spanning ? 0 : p.shards.first(t.from.rank)) + t.shardRow,
             describe(p) << ", position " << position);
        if (!p.spanning)
          MUST(t.shardRow + t.shape.rows <= p.shards.rows(t.from.rank), describe(p) << ", position " << position);
        ++(p.spanning ? spanning : single);
        for (uint64_t r = t.shape.row; r < t.shape.row + t.shape.rows; ++r) {
          for (uint64_t c = t.shape.col; c < t.shape.col + t.shape.cols; ++c) ++covered[r * p.shape.n + c];
        }
        // Every chunk of anybody's, by its number where tiles span shards: it has rows of the tile, or is not waited for.
        uint64_t awaited = 0;
        for (const AgGemmPlan& other : plans) {
          const Shard s = other.mine();
          if (!p.spanning && s.rank != t.from.rank) continue;
          for (uint64_t c = 0; c < p.chunks(s); ++c) {
            const uint64_t first = p.shards.first(s.rank) + p.chunkRow(c);
            const bool under = first < t.shape.row + t.shape.rows && first + p.rowsIn(s, c) > t.shape.row;
            const uint64_t number = p.spanning ? s.rank * p.mostChunks() + c : c;
            MUST(under == (number >= t.firstChunk && number < t.endChunk), describe(p) << ", position " << position);
            if (!under) continue;
            ++awaited;
            MUST(p.chunkFlag(t.from, number) == p.chunkFlag(s, c), describe(p) << ", position " << position);
            if (p.spanning) MUST(p.rankOfChunk(number) == s.rank, describe(p) << ", position " << position);
            // Where the tile's rows are loaded from is where the chunk's are put.
            if (p.spanning && !p.windowed())
              MUST(p.packed(s, p.chunkRow(c)) == p.packed(t.from, first), describe(p) << ", position " << position);
          }
        }
        MUST(awaited == t.endChunk - t.firstChunk, describe(p) << ", position " << position);
      }
      MUST(std::all_of(covered.begin(), covered.end(), [](uint32_t n) { return n == 1; }), describe(p));
    }
  });
  CHECK(spanning > 400);
  CHECK(single > 10000);
}

TEST_CASE("allgather: tiles follow the order in which rows come") {
  forAgPlans([](const World& world, const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) {
      const Place& at = p.place();
      uint32_t lastDistance = 0, lastBefore = 0;
      for (uint64_t position = 0; position < p.positions(); ++position) {
        const AgGemmPlan::TileTask t = p.tileAt(position);
        if (!t.exists) continue;
        const uint32_t distance = (at.node + world.nodes - t.from.node) % world.nodes;
        const uint32_t before = (at.local + world.locals - t.from.local) % world.locals;
        MUST(distance >= lastDistance, describe(p) << ", position " << position);
        MUST(p.distanceTo(t.from.node) == distance && p.nodeBefore(distance) == t.from.node, describe(p));
        if (distance == 0) MUST(before >= lastBefore, describe(p) << ", position " << position);
        lastDistance = distance;
        lastBefore = before;
      }
    }
  });
  // Of another node's shards, the first row of tiles of each before the second of any.
  AgCase c;
  c.m = 4 * 64;
  const World world{2, 2};
  const RankTable table(world, false);
  const AgGemmPlan p = agPlan(world, table, 0, c);
  REQUIRE(p.positions() == 64);
  for (uint64_t i = 0; i < 32; ++i) {
    const AgGemmPlan::TileTask t = p.tileAt(32 + i);
    CHECK(t.shardRow == i / 2 * 4);
    CHECK(t.from.rank == (i % 2 == 0 ? 2 : 3));
  }
}

TEST_CASE("allgather: the order in 32 bits is the plan's") {
  uint64_t seen = 0;
  const auto compare = [&](const AgGemmPlan& p) {
    const AgOrder order(p);
    MUST(order.positions == p.positions(), describe(p));
    for (uint32_t i = 0; i < order.positions; ++i) {
      const AgStep got = order.at(i);
      const AgGemmPlan::TileTask want = p.tileAt(i);
      MUST(got.exists == want.exists && got.node == want.from.node && got.local == want.from.local &&
               got.rank == want.from.rank && got.shardRow == want.shardRow,
           describe(p) << ", position " << i);
      if (!want.exists) continue;
      ++seen;
      MUST(got.row == want.shape.row && got.col == want.shape.col && got.rows == want.shape.rows &&
               got.cols == want.shape.cols && got.firstChunk == want.firstChunk && got.endChunk == want.endChunk,
           describe(p) << ", position " << i << ": row " << got.row << ", the plan's " << want.shape.row);
    }
  };
  forAgPlans([&](const World&, const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) compare(p);
  });
  // As on a GPU, with more rows of tiles than a group has, and shards that end within one.
  for (const uint64_t m : {9 * 4 * 256, 9 * 4 * 256 - 700, 9 * 4 * 256 - 2600, 8 * 256, 300}) {
    for (const World world : {World{1, 4}, World{2, 2}, World{4, 1}}) {
      AgCase c;
      c.m = m;
      c.n = 1000;
      c.tileM = 256;
      const RankTable table(world, world.nodes == 2);
      for (const AgGemmPlan& p : agPlans(world, table, c)) compare(p);
    }
  }
  // Few rows a shard, with more rows of tiles than a group has.
  for (const uint64_t m : {2, 8, 100, 256, 300, 8 * 40, 32 * 70, 32 * 70 - 5}) {
    for (const World world : {World{1, 2}, World{1, 8}, World{1, 32}}) {
      AgCase c;
      c.m = m;
      c.n = 1000;
      c.tileM = world.locals == 32 ? 64 : 256;
      c.chunkRows = m % 3 == 0 ? 32 : 0;
      const RankTable table(world, false);
      for (const AgGemmPlan& p : agPlans(world, table, c)) compare(p);
    }
  }
  CHECK(seen > 20000);
}

TEST_CASE("allgather: slices of chunks are moved to each peer once, group by group, and have a flag each") {
  uint64_t seen = 0;
  for (const uint32_t locals : {2u, 3u, 8u}) {
    for (const uint64_t m : {1, 40, 41, 100}) {
      for (const uint64_t k : {8, 64, 200, 1024}) {
        for (const uint32_t group : {1u, 2u, 5u, 1000u}) {
          const World world{1, locals};
          AgGemmShape shape;
          shape.m = m;
          shape.n = 16;
          shape.k = k;
          GemmChoice choice;
          choice.tileM = 1;  // of one shard
          choice.chunkRows = 4;
          choice.sliceCols = 64;
          choice.groupChunks = group;
          for (uint32_t i = 0; i < locals; ++i) {
            shape.place = world.place(i);
            const AgGemmPlan p = planAgGemm(shape, choice, 8);
            MUST(!p.spanning, describe(p));
            MUST(p.slices() == (k + 63) / 64, describe(p));
            uint64_t cols = 0;
            for (uint64_t slice = 0; slice < p.slices(); ++slice) cols += p.colsIn(slice);
            MUST(cols == k, describe(p));
            std::set<uint64_t> flags;
            std::vector<uint64_t> toPeer(locals), newest(locals);
            for (uint64_t x = 0; x < p.moves(); ++x) {
              const AgGemmPlan::Move t = p.move(x);
              if (!t.exists) continue;
              if (t.target != AgGemmPlan::Target::peer) {
                MUST(t.peer == i && t.slice == 0, describe(p));
                continue;
              }
              MUST(t.peer != i && t.peer < locals && t.slice < p.slices(), describe(p));
              ++toPeer[t.peer];
              MUST(flags.insert(t.peer * p.flagWords() + p.chunkFlag(t.from, t.chunk, t.slice)).second, describe(p));
              MUST(p.chunkFlag(t.from, t.chunk, t.slice) < p.outFlagBase(), describe(p));
              // Groups in order, and in each slices in order.
              const uint64_t place = (t.chunk / group * p.slices() + t.slice) * p.mostChunks() + t.chunk;
              MUST(place >= newest[t.peer], describe(p) << ", move " << x);
              newest[t.peer] = place;
              ++seen;
            }
            for (uint32_t l = 0; l < locals; ++l)
              MUST(toPeer[l] == (l == i ? 0 : p.movesToPeer(i)), describe(p) << ", to " << l);
          }
        }
      }
    }
  }
  CHECK(seen > 10000);
}

TEST_CASE("allgather: places of a bank are disjoint, aligned, below dataBytes, and the same on all who use them") {
  uint64_t places = 0;
  forAgPlans([&](const World&, const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) {
      struct Range {
        uint64_t begin, end;
      };
      std::vector<Range> ranges;
      for (const AgGemmPlan& other : plans) {
        const Shard s = other.mine();
        // With a window, only the rail's shards come into the heap; a rank alone needs no heap.
        if ((p.windowed() && !p.onMyRail(s)) || !(plans.size() > 1)) continue;
        if (p.windowed() && !p.multiNode()) continue;
        for (uint64_t c = 0; c < p.chunks(s); ++c) {
          const uint64_t begin = p.packed(s, p.chunkRow(c));
          ranges.push_back({begin, begin + p.chunkBytes(s, c)});
          MUST(begin % 16 == 0, describe(p) << ", rank " << s.rank);
          MUST(ranges.back().end <= p.dataBytes(), describe(p) << ", rank " << s.rank);
          for (const AgGemmPlan& q : plans) {
            const bool uses = !p.windowed() || q.onMyRail(s);
            if (uses) MUST(q.packed(s, p.chunkRow(c)) == begin, describe(q) << ", rank " << s.rank);
          }
        }
      }
      std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
      for (size_t i = 1; i < ranges.size(); ++i) MUST(ranges[i - 1].end <= ranges[i].begin, describe(p));
      places += ranges.size();
      MUST(p.workspace() == plans[0].workspace() && p.dataBytes() == plans[0].dataBytes(), describe(p));
      MUST(HeapLayout::bankFlagBytes(p.workspace()) >= p.flagWords() * 8, describe(p));
      MUST(HeapLayout::bankDataBytes(p.workspace()) >= p.dataBytes(), describe(p));
    }
  });
  CHECK(places > 100000);
}

TEST_CASE("allgather: every chunk of another node's is sent along the rail once, to the flag it is awaited at") {
  uint64_t sent = 0;
  forAgPlans([&](const World& world, const std::vector<AgGemmPlan>& plans) {
    const ControlLayout control{world.nodes, world.locals};
    const HeapLayout heap{control.bytes(), alignUp(plans[0].workspace(), kWorkspaceUnit)};
    std::vector<std::vector<uint32_t>> raised;  // by rank and word of its flags
    for (const AgGemmPlan& p : plans) raised.emplace_back(p.flagWords(), 0);
    for (const AgGemmPlan& p : plans) {
      uint64_t messages = 0, bytes = 0;
      for (uint64_t i = 0; i < p.sends(); ++i) {
        const AgGemmPlan::Send t = p.send(i);
        if (!t.exists) continue;
        ++messages;
        bytes += p.chunkBytes(t.from, t.chunk);
        MUST(t.to != p.place().node && p.onMyRail(t.from), describe(p) << ", " << i);
        MUST((t.from.node + t.distance) % world.nodes == t.to, describe(p) << ", " << i);
        MUST(p.slot(t.distance, t.chunk) < kMaxSlots, describe(p) << ", " << i);
        const AgGemmPlan& receiver = plans[t.to * world.locals + p.place().local];
        MUST(receiver.sender(t.distance) == p.place().node, describe(p) << ", " << i);
        MUST(receiver.slot(t.distance, t.chunk) == p.slot(t.distance, t.chunk), describe(p) << ", " << i);
        const uint64_t flag = arrivalFlag(heap, control, p.slot(t.distance, t.chunk), p.place().node, 4);
        const uint64_t word = (flag - heap.flags(0)) / 8;
        MUST(word < receiver.arrivalWords(), describe(p) << ", " << i);
        ++raised[t.to * world.locals + p.place().local][word];
      }
      MUST(messages == p.netMessagesSent(), describe(p));
      MUST(bytes == p.netBytesSent(), describe(p));
      sent += messages;
    }
    for (uint32_t i = 0; i < plans.size(); ++i) {
      const AgGemmPlan& p = plans[i];
      uint64_t expected = 0;
      for (uint32_t distance = 1; distance < world.nodes; ++distance) {
        const Shard s = p.shard(p.nodeBefore(distance), p.place().local);
        for (uint64_t c = 0; c < p.chunks(s); ++c, ++expected) {
          const uint64_t flag = arrivalFlag(heap, control, p.slot(distance, c), p.sender(distance), 4);
          MUST(raised[i][(flag - heap.flags(0)) / 8] == 1, describe(p) << ", chunk " << c);
        }
      }
      const auto seen = static_cast<uint64_t>(std::count(raised[i].begin(), raised[i].end(), 1u));
      MUST(seen == expected, describe(p));
    }
  });
  CHECK(sent > 10000);
}

TEST_CASE("allgather: flags have a word each, behind the arrivals, below flagWords") {
  forAgPlans([](const World& world, const std::vector<AgGemmPlan>& plans) {
    for (const AgGemmPlan& p : plans) {
      std::vector<bool> taken(p.flagWords(), false);
      const auto take = [&](uint64_t word) {
        MUST(word >= p.arrivalWords() && word < p.flagWords() && !taken[word], describe(p) << ", word " << word);
        taken[word] = true;
      };
      for (const AgGemmPlan& other : plans) {
        for (uint64_t c = 0; c < p.chunks(other.mine()); ++c) {
          take(p.chunkFlag(other.mine(), c));
          MUST(p.chunkFlag(other.mine(), c) == other.chunkFlag(other.mine(), c), describe(p));
        }
      }
      for (uint32_t l = 0; l < world.locals; ++l) take(p.outFlag(l));
      MUST(p.arrivalWords() == p.slots() * world.nodes, describe(p));
    }
  });
}

TEST_CASE("allgather: bytes on the network and between local ranks, counted from who lacks what") {
  forAgPlans([](const World& world, const std::vector<AgGemmPlan>& plans) {
    uint64_t net = 0, nvlink = 0;
    for (const AgGemmPlan& p : plans) {
      net += p.netBytesSent();
      nvlink += p.nvlinkBytesSent();
      // Every NIC sends the same in a world of equal shards: (N - 1) / W of A.
      if (p.shape.m % plans.size() == 0)
        MUST(p.netBytesSent() == p.shape.m / plans.size() * p.shape.k * 2 * (world.nodes - 1), describe(p));
    }
    // Each node lacks what the others have; each rank gets from its node what is not of its rail.
    const uint64_t all = plans[0].shape.m * plans[0].shape.k * 2;
    MUST(net == all * (world.nodes - 1), describe(plans[0]));
    MUST(nvlink == all * (world.locals - 1) * world.nodes, describe(plans[0]));
  });
}

TEST_CASE("allgather: what must agree is in the hash, what may differ is not") {
  const World world{3, 2};
  const RankTable table(world, false);
  const AgCase base{.m = 1000, .n = 64, .k = 64, .chunkRows = 16};
  const auto hash = [&](const AgCase& c, uint32_t i = 0) { return agPlan(world, table, i, c).hash().value(); };
  for (uint32_t i = 1; i < world.ranks(); ++i) CHECK(hash(base, i) == hash(base));
  AgCase c = base;
  c.n = 128;
  c.tileM = 64;
  CHECK(hash(c) == hash(base));
  c.gathered = Gathered::memory;
  CHECK(hash(c) == hash(base));
  c.gathered = Gathered::window;
  CHECK(hash(c) != hash(base));
  for (uint64_t AgCase::*const field : {&AgCase::m, &AgCase::k, &AgCase::chunkRows}) {
    c = base;
    c.*field += 8;
    CHECK(hash(c) != hash(base));
  }
  c = base;
  c.exchange = Exchange::ring;
  CHECK(hash(c) != hash(base));
}

TEST_CASE(
    "allgather: chunks are about 256 KiB, smaller for small shards, and depend on nothing a rank chooses for itself") {
  const auto plan = [](uint64_t m, uint64_t k, uint64_t n = 64, uint32_t tileM = 0) {
    AgGemmShape shape;
    shape.m = m;
    shape.k = k;
    shape.n = n;
    shape.place = {2, 4, 0, 0};
    shape.ranks.locals = 4;
    GemmChoice choice;
    choice.tileM = tileM;
    return planAgGemm(shape, choice, 132);
  };
  CHECK(plan(65536, 8192).chunkRows == 16);  // of 16 KiB each
  CHECK(plan(65536, 8192).mostChunks() == 512);
  CHECK(plan(65536, 1024).chunkRows == 128);
  CHECK(plan(2048, 1024).chunkRows == 64);  // a shard of 256 rows in four
  CHECK(plan(64, 1024).chunkRows == 8);     // 16 KiB
  CHECK(plan(1, 1 << 20).chunkRows == 1);   // a row of 2 MiB
  CHECK(plan(2048, 1024, 8, 256).chunkRows == 64);
  CHECK(plan(0, 64).mostChunks() == 0);
  CHECK(plan(64, 0).mostChunks() == 0);
}

TEST_CASE(
    "allgather: large shards: chunks grow until their slots fit a notification; the last tile ends at the corner") {
  for (const Exchange exchange : {Exchange::direct, Exchange::ring}) {
    AgGemmShape shape;
    shape.m = (1ull << 31) - 1;
    shape.k = 1 << 13;
    shape.n = (1ull << 31) - 8;
    shape.place = {4, 2, 3, 1};
    shape.ranks.locals = 2;
    GemmChoice choice;
    choice.chunkRows = 1;
    choice.exchange = static_cast<uint32_t>(exchange);
    const AgGemmPlan p = planAgGemm(shape, choice, 132);
    INFO(describe(p));
    CHECK(p.slots() <= kMaxSlots - kControlSlots);
    CHECK(p.slots() > (kMaxSlots - kControlSlots) / 2);
    CHECK(p.dataBytes() == shape.m * shape.k * 2);
    // Rank 7 stands here: its own tiles come first.
    const uint64_t perShard = p.tileRows() * p.tileCols();
    const AgGemmPlan::TileTask t = p.tileAt(perShard - 1);
    CHECK(t.from.rank == 7);
    CHECK(t.shape.row + t.shape.rows == shape.m);
    CHECK(t.shape.col + t.shape.cols == shape.n);
    CHECK(p.netBytesSent() ==
          (exchange == Exchange::ring ? p.shards.rows(7) + p.shards.rows(5) + p.shards.rows(3) : 3 * p.shards.rows(7)) *
              p.rowBytes());
  }
}

TEST_CASE("allgather: a plan has the roles its world needs") {
  for (const World world : {World{1, 1}, World{1, 4}, World{3, 1}, World{2, 2}}) {
    const RankTable table(world, false);
    for (const Gathered gathered : {Gathered::none, Gathered::memory, Gathered::window}) {
      const RoleCounts roles = agPlan(world, table, 0, {.m = 100, .gathered = gathered}).roles;
      CHECK(roles.send == (world.nodes > 1 ? 1 : 0));
      CHECK(roles.receive == 0);
      CHECK(roles.move == (world.ranks() > 1 || gathered != Gathered::none ? 1 : 0));
      CHECK(roles.copyOut == (gathered == Gathered::memory && world.locals > 1 ? 1 : 0));
      CHECK(roles.total() == 8);
    }
  }
}

}  // namespace
}  // namespace mk::sched::test
