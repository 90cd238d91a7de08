// GEMM+ReduceScatter: tiles cover each rank's rows and no other's, no task waits for a later one, and what travels is what has to.
#include <algorithm>

#include "rs_worlds.h"
#include "sched/rs_order.h"

namespace mk::sched::test {
namespace {

TEST_CASE("a rank's order has every tile of every rank's rows once") {
  uint64_t tiles = 0;
  forScatters([&](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) {
      std::vector<uint32_t> covered(p.shape.m * p.shape.n, 0);
      for (uint64_t position = 0; position < p.positions(); ++position) {
        const GemmRsTile t = p.at(position);
        if (!t.exists) continue;
        ++tiles;
        const uint32_t rank =
            s.table.empty() ? t.node * p.place().locals + t.local : s.table[t.node * p.place().locals + t.local];
        const uint32_t ranks = p.place().nodes * p.place().locals;
        const uint64_t first = Scatter::firstRow(p.shape.m, ranks, rank);
        MUST(t.firstRow == first, describe(p) << ", position " << position);
        MUST(t.shape.rows > 0 && t.shape.cols > 0, describe(p) << ", position " << position);
        MUST(t.shape.row >= first && t.shape.row + t.shape.rows <= Scatter::firstRow(p.shape.m, ranks, rank + 1),
             describe(p) << ", position " << position << " straddles");
        MUST(t.mine == (t.local == p.place().local), describe(p) << ", position " << position);
        MUST(t.chunk == t.index / p.chunkTiles, describe(p) << ", position " << position);
        for (uint64_t r = t.shape.row; r < t.shape.row + t.shape.rows; ++r)
          for (uint64_t c = t.shape.col; c < t.shape.col + t.shape.cols; ++c) ++covered[r * p.shape.n + c];
      }
      MUST(std::all_of(covered.begin(), covered.end(), [](uint32_t n) { return n == 1; }), describe(p));
    }
  });
  CHECK(tiles > 100000);
}

TEST_CASE("the order of a reduce-scatter in 32 bits is the plan's") {
  uint64_t positions = 0;
  const auto compare = [&](const GemmRsPlan& p) {
    const RsOrder order(p);
    MUST(order.positions == p.positions(), describe(p));
    for (uint32_t i = 0; i < order.positions; ++i, ++positions) {
      const RsStep got = order.at(i);
      const GemmRsTile want = p.at(i);
      MUST(got.exists == want.exists && got.node == want.node && got.owner == want.local, describe(p)
                                                                                              << ", position " << i);
      if (!want.exists) continue;
      MUST(got.tile == want.tile && got.row == want.shape.row && got.col == want.shape.col &&
               got.rows == want.shape.rows && got.cols == want.shape.cols && got.firstRow == want.firstRow &&
               got.ownedTile == p.railTile(want) && got.ownedChunk == p.railChunk(want.node, want.chunk),
           describe(p) << ", position " << i << ": tile " << got.tile << ", the plan's " << want.tile);
    }
  };
  forScatters([&](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) compare(p);
  });
  // As on a GPU, with more rows of tiles than a group has, and shards that end within one.
  for (const uint64_t m : {9 * 4 * 256, 9 * 4 * 256 - 700, 9 * 4 * 256 - 2600, 8 * 256, 300}) {
    GemmChoice choice;
    choice.tileM = 256;
    choice.tileN = 128;
    choice.parts = 2;
    choice.ownUnit = static_cast<uint32_t>(m % 5 * 7);
    choice.ownLag = static_cast<uint32_t>(m % 4);
    for (const World world : {World{1, 4}, World{2, 2}, World{4, 1}}) {
      const Scatter s = scatterOf(world, m, 1000, choice, world.nodes == 2);
      for (const GemmRsPlan& p : s.plans) compare(p);
    }
  }
  CHECK(positions > 100000);
}

TEST_CASE("whatever the units, peers' tiles come before the own one with the same number") {
  uint64_t own = 0;
  for (const World world : {World{1, 2}, World{1, 5}, World{2, 3}}) {
    for (const uint32_t variant : {0u, 1u, 2u, 7u, 30u, 1000u, 1001u, 2003u, 3007u, 50002u}) {
      const uint32_t window = variant % 1000;
      GemmChoice choice;
      choice.tileM = 4;
      choice.tileN = 16;
      choice.ownUnit = window;
      choice.ownLag = variant / 1000;
      const Scatter s = scatterOf(world, 23 * world.ranks() - 9, 60, choice, false);
      for (const GemmRsPlan& p : s.plans) {
        const RsOrder order(p);
        // Of the own node's rows: tiles of each local rank so far.
        std::vector<uint64_t> done(p.place().locals);
        for (uint64_t i = 0; i < p.positions(); ++i) {
          const GemmRsTile t = p.at(i);
          if (t.node != p.place().node) continue;
          const RsStep step = order.at(static_cast<uint32_t>(i));
          MUST(step.owner == t.local && (!t.exists || step.ownedTile == p.railTile(t)), describe(p)
                                                                                            << ", variant " << variant);
          MUST(t.index == done[t.local], describe(p) << ", variant " << variant << ", position " << i);
          ++done[t.local];
          if (!t.mine) continue;
          ++own;
          for (const uint64_t peers : done) MUST(peers >= t.index + 1, describe(p) << ", variant " << variant);
        }
        for (const uint64_t all : done) MUST(all == p.shardTiles, describe(p) << ", variant " << variant);
      }
    }
  }
  CHECK(own > 1000);
}

TEST_CASE("other nodes' rows come first, and within a node's those that peers collect") {
  forScatters([](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) {
      uint64_t position = 0;
      for (uint32_t step = 0; step < p.place().nodes; ++step) {
        const uint32_t node = (p.place().node + 1 + step) % p.place().nodes;  // this one last
        uint64_t own = 0;
        for (uint64_t i = 0; i < p.place().locals * p.shardTiles; ++i, ++position) {
          const GemmRsTile t = p.at(position);
          MUST(t.node == node, describe(p) << ", position " << position);
          own += t.mine ? 1 : 0;
          // One chunk at a time for the network; of the own node's rows, all peers' before the first own one.
          if (p.place().locals == 1) continue;
          const uint64_t behind = node == p.place().node ? 0 : p.chunkTiles;
          MUST(own <= behind + (i + 1) / p.place().locals || i + 1 > (p.place().locals - 1) * p.shardTiles,
               describe(p) << ", position " << position);
        }
        MUST(own == p.shardTiles, describe(p));
      }
      MUST(position == p.positions(), describe(p));
    }
  });
}

// The schedule of all ranks with agents that take their tasks in order and wait, as the role loops do.  What an agent waits for,
// once there, stays there, so whether all finish does not depend on who runs when.
class Simulation {
 public:
  using Order = GemmRsTile (*)(const GemmRsPlan&, uint64_t);

  Simulation(const Scatter& s, uint32_t agents, Order order) : s_(s), order_(order) {
    for (const GemmRsPlan& p : s.plans) {
      Rank r;
      r.computed.resize(s.plans.size() * p.shardTiles);
      r.summed.resize(p.place().nodes * p.shardChunks);
      r.arrived.resize(p.shardChunks * p.place().nodes);
      r.computing.assign(agents, kNone);
      r.receiving.assign(agents, kNone);
      ranks_.push_back(std::move(r));
    }
  }

  // True if every agent has come to its end.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        const GemmRsPlan& p = s_.plans[i];
        Rank& r = ranks_[i];
        for (uint64_t& task : r.computing)
          moved |= work(&r.nextTile, p.positions(), &task, [&](uint64_t n) { return compute(p, &r, n); });
        if (!p.multiNode()) continue;
        moved |= work(&r.nextSend, sends(p), &r.sending, [&](uint64_t n) { return send(p, r, n); });
        for (uint64_t& task : r.receiving)
          moved |= work(&r.nextReceive, p.chunksOf(p.place().node, p.place().local), &task,
                        [&](uint64_t n) { return receive(p, r, n); });
      }
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) {
      const auto idle = [](uint64_t task) { return task == kNone; };
      return std::all_of(r.computing.begin(), r.computing.end(), idle) && idle(r.sending) &&
             std::all_of(r.receiving.begin(), r.receiving.end(), idle);
    });
  }
  // Of a rank: rows finished, and network messages.
  uint64_t finished(size_t rank) const { return ranks_[rank].finished; }
  uint64_t messages(size_t rank) const { return ranks_[rank].messages; }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  struct Rank {
    std::vector<bool> computed;    // by tile: my partial result is there
    std::vector<uint64_t> summed;  // by rail chunk: tiles of the node sum
    std::vector<uint32_t> arrived;
    uint64_t finished = 0, messages = 0;
    uint64_t nextTile = 0, nextSend = 0, nextReceive = 0;
    std::vector<uint64_t> computing, receiving;
    uint64_t sending = kNone;
  };

  template <typename Do>
  static bool work(uint64_t* next, uint64_t end, uint64_t* task, const Do& attempt) {
    for (bool moved = false;; moved = true) {
      if (*task == kNone) {
        if (*next == end) return moved;
        *task = (*next)++;
      }
      if (!attempt(*task)) return moved;
      *task = kNone;
    }
  }
  Rank& rank(uint32_t node, uint32_t local) { return ranks_[node * s_.plans[0].place().locals + local]; }

  bool compute(const GemmRsPlan& p, Rank* r, uint64_t position) {
    const GemmRsTile t = order_(p, position);
    if (!t.exists) return true;
    if (t.mine) {
      for (uint32_t l = 0; l < p.place().locals; ++l)
        if (l != p.place().local && !rank(p.place().node, l).computed[t.tile]) return false;
      ++r->summed[p.railChunk(t.node, t.chunk)];
      if (!p.multiNode()) ++r->finished;
    }
    r->computed[t.tile] = true;
    return true;
  }
  static bool complete(const GemmRsPlan& p, const Rank& r, uint32_t node, uint64_t chunk) {
    return r.summed[p.railChunk(node, chunk)] == p.tilesIn(node, p.place().local, chunk);
  }
  // The sender's tasks in its order.
  static uint64_t sends(const GemmRsPlan& p) { return p.netMessagesSent(); }
  bool send(const GemmRsPlan& p, Rank& r, uint64_t number) {
    uint32_t step = 0;
    while (number >= p.chunksOf(p.target(step), p.place().local))
      number -= p.chunksOf(p.target(step++), p.place().local);
    const uint32_t node = p.target(step);
    if (!complete(p, r, node, number)) return false;
    ++rank(node, p.place().local).arrived[number * p.place().nodes + p.place().node];
    ++r.messages;
    return true;
  }
  bool receive(const GemmRsPlan& p, Rank& r, uint64_t chunk) {
    if (!complete(p, r, p.place().node, chunk)) return false;
    for (uint32_t n = 0; n < p.place().nodes; ++n) {
      const uint32_t times = r.arrived[chunk * p.place().nodes + n];
      MUST(times <= (n == p.place().node ? 0 : 1), describe(p) << ", chunk " << chunk);
      if (n != p.place().node && times == 0) return false;
    }
    r.finished += p.tilesIn(p.place().node, p.place().local, chunk);
    return true;
  }

  const Scatter& s_;
  const Order order_;
  std::vector<Rank> ranks_;
};

TEST_CASE("reduce-scatters come to their end in every world, with every tile finished by its rank") {
  uint64_t runs = 0;
  forScatters([&](const Scatter& s) {
    for (const uint32_t agents : {1u, 3u}) {
      Simulation simulation(s, agents, [](const GemmRsPlan& p, uint64_t n) { return p.at(n); });
      MUST(simulation.run(), describe(s.plans[0]) << ", " << agents << " agents");
      for (size_t i = 0; i < s.plans.size(); ++i) {
        const GemmRsPlan& p = s.plans[i];
        MUST(simulation.finished(i) == p.tilesOf(p.place().node, p.place().local), describe(p));
        MUST(simulation.messages(i) == p.netMessagesSent(), describe(p));
      }
      ++runs;
    }
  });
  CHECK(runs > 2000);
}

TEST_CASE("the simulation sees a deadlock: own rows first") {
  const Simulation::Order wrong = [](const GemmRsPlan& p, uint64_t n) { return p.at(p.positions() - 1 - n); };
  for (uint32_t locals = 2; locals <= 8; ++locals) {
    for (uint32_t nodes = 1; nodes <= 3; ++nodes) {
      const World world{nodes, locals};
      const Scatter s = scatterOf(world, 8 * world.ranks(), 64, choiceOf(2, Exchange::swap), false);
      CHECK_FALSE(Simulation(s, 1, wrong).run());
    }
  }
}

TEST_CASE("a reduce-scatter's bytes and messages equal a count over all tiles") {
  uint64_t plans = 0;
  forScatters([&](const Scatter& s) {
    uint64_t sent = 0;
    for (const GemmRsPlan& p : s.plans) {
      uint64_t net = 0, nvlink = 0;
      std::vector<bool> chunks(s.plans.size() * p.shardChunks, false);
      for (uint64_t position = 0; position < p.positions(); ++position) {
        const GemmRsTile t = p.at(position);
        if (!t.exists) continue;
        const uint64_t bytes = uint64_t{t.shape.rows} * t.shape.cols * p.shape.wireBytes;
        if (!t.mine) {
          nvlink += bytes;
        } else if (t.node != p.place().node) {
          net += bytes;
          chunks[p.railChunk(t.node, t.chunk)] = true;
        }
      }
      MUST(p.netBytesSent() == net, describe(p));
      MUST(p.nvlinkBytesSent() == nvlink, describe(p));
      MUST(p.netMessagesSent() == uint64_t(std::count(chunks.begin(), chunks.end(), true)), describe(p));
      sent += net;
      ++plans;
    }
    // Of the whole world: each of the N nodes sends all rows but its own ranks'.
    const GemmRsPlan& p = s.plans[0];
    MUST(sent == (p.place().nodes - 1) * p.shape.m * p.shape.n * p.shape.wireBytes, describe(p) << ": " << sent);
  });
  CHECK(plans > 10000);
}

TEST_CASE("with whole shards every NIC sends (N-1)/N of its rail's share of the result") {
  forWorlds([](const World& world) {
    const uint64_t m = 32 * world.ranks();
    const Scatter s = scatterOf(world, m, 64, {}, false);
    for (const GemmRsPlan& p : s.plans)
      MUST(p.netBytesSent() * world.nodes * world.locals == (world.nodes - 1) * m * 64 * 2, describe(p));
  });
}

}  // namespace
}  // namespace mk::sched::test
