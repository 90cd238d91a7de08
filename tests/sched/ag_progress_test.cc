// AllGather+GEMM: no task waits for a later one.  All roles of all ranks in their orders come to their end in every small world,
// with one agent per role or several, and every rank then has every chunk; orders that are wrong are seen to be.
#include <functional>

#include "ag_worlds.h"

namespace mk::sched::test {
namespace {

struct Orders {
  std::function<AgGemmPlan::Send(const AgGemmPlan&, uint64_t)> send = [](const AgGemmPlan& p, uint64_t i) {
    return p.send(i);
  };
  std::function<AgGemmPlan::Move(const AgGemmPlan&, uint64_t)> move = [](const AgGemmPlan& p, uint64_t i) {
    return p.move(i);
  };
};

// What an agent waits for, once there, stays there, so whether all finish does not depend on who runs when.
class Simulation {
 public:
  Simulation(const std::vector<AgGemmPlan>& plans, uint32_t agents, Orders orders = {})
      : orders_(std::move(orders)), world_{plans[0].place().nodes, plans[0].place().locals} {
    for (const AgGemmPlan& p : plans) ranks_.emplace_back(p, agents);
  }

  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank& r : ranks_) {
        moved |= r.send.go(r.plan.sends(), [&](uint64_t i) { return send(r, orders_.send(r.plan, i)); });
        moved |= r.move.go(r.plan.moves(), [&](uint64_t i) { return move(r, orders_.move(r.plan, i)); });
        moved |= r.copy.go(r.plan.copies(), [&](uint64_t i) { return copy(r, r.plan.copy(i)); });
        moved |= r.tile.go(r.plan.positions(), [&](uint64_t i) { return tile(r, r.plan.tileAt(i)); });
      }
    }
    for (const Rank& r : ranks_) {
      if (!r.send.idle() || !r.move.idle() || !r.copy.idle() || !r.tile.idle()) return false;
    }
    return true;
  }

  // Every rank has every slice of every other rank's chunks once, where tiles span shards of its own too, and every row of A in
  // `gathered` if there is one.
  bool complete() const {
    for (const Rank& r : ranks_) {
      for (const Rank& o : ranks_) {
        const Shard s = o.plan.mine();
        for (uint64_t c = 0; c < r.plan.chunks(s); ++c) {
          if ((&o != &r || r.plan.spanning) && r.have[s.rank][c] != r.plan.slices()) return false;
          const uint64_t moved = r.plan.windowed() ? r.plan.slices() : 1;
          const bool whole = &o == &r && !r.plan.selfAnnounced();
          if (r.plan.shape.gathered != Gathered::none && r.gathered[s.rank][c] != (whole ? 1 : moved)) return false;
        }
      }
      if (r.movedToPeers != r.plan.movesToPeer(r.plan.place().local) * (world_.locals - 1)) return false;
    }
    return true;
  }

 private:
  struct Worker {
    static constexpr uint64_t kNone = UINT64_MAX;
    std::vector<uint64_t> tasks;
    uint64_t next = 0;

    template <typename Do>
    bool go(uint64_t end, const Do& attempt) {
      bool moved = false;
      for (uint64_t& task : tasks) {
        for (;;) {
          if (task == kNone && next == end) break;
          if (task == kNone) task = next++;
          if (!attempt(task)) break;
          task = kNone;
          moved = true;
        }
      }
      return moved;
    }
    bool idle() const {
      for (const uint64_t t : tasks) {
        if (t != kNone) return false;
      }
      return true;
    }
  };
  struct Rank {
    Rank(const AgGemmPlan& p, uint32_t agents)
        : plan(p),
          have(p.shards.ranks, std::vector<uint32_t>(p.mostChunks(), 0)),
          gathered(have),
          send{{Worker::kNone}},
          move{std::vector<uint64_t>(agents, Worker::kNone)},
          copy{{Worker::kNone}},
          tile{std::vector<uint64_t>(agents, Worker::kNone)} {}
    AgGemmPlan plan;
    std::vector<std::vector<uint32_t>> have, gathered;  // by shard and chunk: how often
    uint64_t movedToPeers = 0;
    Worker send, move, copy, tile;
  };

  Rank& at(uint32_t node, uint32_t local) { return ranks_[node * world_.locals + local]; }

  // Each returns false while it has to wait.
  bool send(Rank& me, const AgGemmPlan::Send& t) {
    if (!t.exists) return true;
    if (me.have[t.from.rank][t.chunk] == 0) return false;
    ++at(t.to, me.plan.place().local).have[t.from.rank][t.chunk];
    return true;
  }
  bool move(Rank& me, const AgGemmPlan::Move& t) {
    if (!t.exists) return true;
    if (t.distance > 0 && me.have[t.from.rank][t.chunk] == 0) return false;
    const bool self = t.target == AgGemmPlan::Target::self;
    if (t.target == AgGemmPlan::Target::bank || (self && me.plan.selfAnnounced())) ++me.have[t.from.rank][t.chunk];
    if (self) ++me.gathered[t.from.rank][t.chunk];
    if (t.target != AgGemmPlan::Target::peer) return true;
    Rank& peer = at(me.plan.place().node, t.peer);
    ++peer.have[t.from.rank][t.chunk];
    if (peer.plan.windowed()) ++peer.gathered[t.from.rank][t.chunk];
    ++me.movedToPeers;
    return true;
  }
  bool copy(Rank& me, const AgGemmPlan::Copy& t) {
    if (!t.exists) return true;
    if (me.have[t.from.rank][t.chunk] < me.plan.slices()) return false;
    ++me.gathered[t.from.rank][t.chunk];
    return true;
  }
  bool tile(const Rank& me, const AgGemmPlan::TileTask& t) {
    if (!t.exists || me.plan.isMine(t.from)) return true;
    for (uint64_t c = t.firstChunk; c < t.endChunk; ++c) {
      const uint32_t rank = me.plan.spanning ? me.plan.rankOfChunk(c) : t.from.rank;
      const uint64_t inShard = me.plan.spanning ? c - rank * me.plan.mostChunks() : c;
      if (me.have[rank][inShard] < me.plan.slices()) return false;
    }
    return true;
  }

  const Orders orders_;
  const World world_;
  std::vector<Rank> ranks_;
};

TEST_CASE("allgather: operations come to their end in every world, and every rank has every chunk") {
  uint64_t runs = 0;
  forAgPlans([&](const World&, const std::vector<AgGemmPlan>& plans) {
    for (const uint32_t agents : {1u, 3u}) {
      Simulation simulation(plans, agents);
      MUST(simulation.run(), describe(plans[0]) << ", " << agents << " agents");
      MUST(simulation.complete(), describe(plans[0]) << ", " << agents << " agents");
      ++runs;
    }
  });
  CHECK(runs > 2000);
}

TEST_CASE("allgather: operations come to their end where tiles span shards, in slices, and every rank has all rows") {
  uint64_t runs = 0;
  forSpanningPlans([&](const std::vector<AgGemmPlan>& plans) {
    for (const uint32_t agents : {1u, 3u}) {
      Simulation simulation(plans, agents);
      MUST(simulation.run(), describe(plans[0]) << ", " << agents << " agents");
      MUST(simulation.complete(), describe(plans[0]) << ", " << agents << " agents");
      ++runs;
    }
  });
  CHECK(runs > 300);
}

// ---- Orders that are wrong.

std::vector<AgGemmPlan> some(uint32_t nodes, uint32_t locals, Exchange exchange) {
  const World world{nodes, locals};
  const RankTable table(world, false);
  std::vector<AgGemmPlan> plans = agPlans(world, table, {.m = 96, .chunkRows = 4, .exchange = exchange});
  for (AgGemmPlan& p : plans) p.shape.ranks.table = nullptr;  // the same numbering, and it outlives the table
  return plans;
}

TEST_CASE("allgather: the simulation sees a deadlock: along the ring, others' shards before the own") {
  Orders orders;
  orders.send = [](const AgGemmPlan& p, uint64_t i) { return p.send(p.sends() - 1 - i); };
  for (uint32_t nodes = 3; nodes <= 5; ++nodes) {
    CHECK_FALSE(Simulation(some(nodes, 2, Exchange::ring), 1, orders).run());
    CHECK(Simulation(some(nodes, 2, Exchange::direct), 1, orders).run());
  }
}

TEST_CASE("allgather: the simulation sees a deadlock: what comes from other nodes moved before the own shard") {
  Orders orders;
  orders.move = [](const AgGemmPlan& p, uint64_t i) { return p.move(p.moves() - 1 - i); };
  CHECK_FALSE(Simulation(some(2, 2, Exchange::direct), 1, orders).run());
}

TEST_CASE("allgather: the simulation sees own rows that are not where tiles that span shards read them") {
  Orders orders;
  orders.move = [](const AgGemmPlan& p, uint64_t i) {
    AgGemmPlan::Move t = p.move(i);
    if (t.peer == p.place().local && t.chunk == 0) t.exists = false;
    return t;
  };
  uint64_t stuck = 0;
  forSpanningPlans([&](const std::vector<AgGemmPlan>& plans) {
    if (plans[0].shape.k == 0) return;
    MUST(!Simulation(plans, 1, orders).run(), describe(plans[0]));
    ++stuck;
  });
  CHECK(stuck > 100);
}

TEST_CASE("allgather: the simulation sees a lost chunk") {
  Orders orders;
  orders.move = [](const AgGemmPlan& p, uint64_t i) {
    AgGemmPlan::Move t = p.move(i);
    if (i + 2 == p.moves()) t.exists = false;
    return t;
  };
  Simulation simulation(some(2, 2, Exchange::direct), 1, orders);
  simulation.run();
  CHECK_FALSE(simulation.complete());
}

}  // namespace
}  // namespace mk::sched::test
