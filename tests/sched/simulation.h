// Runs the schedule of one GEMM+AllReduce on all ranks of a small world, with agents that take their tasks in the plan's
// order and wait, as the role loops do: the smallest model in which an order can deadlock.  Time does not matter: what an
// agent waits for, once there, stays there, so whether all finish does not depend on who runs when.
#pragma once

#include <functional>

#include "must.h"

namespace mk::sched::test {

struct Orders {
  // Tile at a position of a rank's order, and a receiving task.
  std::function<uint64_t(const GemmArPlan&, uint64_t)> tileAt = [](const GemmArPlan& p, uint64_t position) {
    return p.chunks.tileAt(p.place().local, position);
  };
  std::function<Rail::Task(const GemmArPlan&, uint64_t)> task = [](const GemmArPlan& p, uint64_t number) {
    return p.rail.task(number, p.owned(), p.place().local, p.place().node);
  };
};

class Simulation {
 public:
  // `plans`: one per rank, in order of global rank.  `agents`: how many compute, and how many receive, on each rank.
  Simulation(std::vector<GemmArPlan> plans, uint32_t agents, Orders orders = {}) : orders_(std::move(orders)) {
    for (GemmArPlan& p : plans) ranks_.emplace_back(p, agents);
  }

  // True if every agent has come to its end.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank& rank : ranks_) {
        for (uint64_t& position : rank.computing)
          moved |= work(rank.nextTile, rank.plan.chunks.tiles, position, [&](uint64_t p) { return compute(rank, p); });
        if (!rank.plan.multiNode()) continue;
        moved |= work(rank.nextSend, rank.plan.owned(), rank.sending, [&](uint64_t i) { return send(rank, i); });
        for (uint64_t& number : rank.receiving)
          moved |= work(rank.nextReceive, rank.plan.rail.tasks(rank.plan.owned()), number,
                        [&](uint64_t t) { return receive(rank, t); });
      }
    }
    for (const Rank& rank : ranks_) {
      // An agent that waits holds its task; claims left over would be held by none, so idle agents mean that all is done.
      if (!idle(rank.computing) || !idle(rank.receiving) || rank.sending != kNone) return false;
    }
    return true;
  }

  // After a run that came to its end: true if every node has every tile, with each rank's share in it once.
  bool complete() const {
    const uint64_t all = (uint64_t{1} << ranks_.size()) - 1;
    for (const Rank& rank : ranks_) {
      for (uint64_t tile = 0; tile < rank.plan.chunks.tiles; ++tile) {
        const uint32_t owner = rank.plan.chunks.owner(rank.plan.chunks.chunkOfTile(tile));
        if (owner == rank.plan.place().local && rank.result[tile] != all) return false;
      }
    }
    return true;
  }
  // Messages that crossed the network, by sending rank.
  uint64_t messages(uint32_t rank) const { return ranks_[rank].messages; }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  struct Rank {
    explicit Rank(const GemmArPlan& p, uint32_t agents)
        : plan(p),
          computed(p.chunks.tiles, false),
          sum(p.chunks.tiles, 0),
          result(p.chunks.tiles, 0),
          tilesSummed(p.owned(), 0),
          arrivedSum(p.owned(), std::vector<uint64_t>(p.place().nodes, 0)),
          arrivedResult(p.owned(), false),
          computing(agents, kNone),
          receiving(agents, kNone) {}

    GemmArPlan plan;
    std::vector<bool> computed;         // by tile: my partial result has been made and, of a peer's tile, published
    std::vector<uint64_t> sum, result;  // by tile I own: the ranks whose partial results are in, one bit each
    std::vector<uint64_t> tilesSummed;  // by owned chunk
    std::vector<std::vector<uint64_t>> arrivedSum;  // by owned chunk and node: 1 + times
    std::vector<bool> arrivedResult;                // by owned chunk
    uint64_t messages = 0;
    uint64_t nextTile = 0, nextSend = 0, nextReceive = 0;  // claims
    std::vector<uint64_t> computing, receiving;            // the task each agent is at, or kNone
    uint64_t sending = kNone;
  };

  static bool idle(const std::vector<uint64_t>& tasks) {
    for (const uint64_t t : tasks) {
      if (t != kNone) return false;
    }
    return true;
  }
  // Lets one agent go on as far as it can; true if it got anywhere.
  template <typename Do>
  static bool work(uint64_t& next, uint64_t end, uint64_t& task, const Do& attempt) {
    bool moved = false;
    while (true) {
      if (task == kNone) {
        if (next == end) return moved;
        task = next++;
        moved = true;
      }
      if (!attempt(task)) return moved;
      task = kNone;
      moved = true;
    }
  }

  Rank& at(uint32_t node, uint32_t local) { return ranks_[node * ranks_[0].plan.place().locals + local]; }
  static uint64_t bit(const Place& p) { return uint64_t{1} << (p.node * p.locals + p.local); }

  // Each returns false while it has to wait.
  bool compute(Rank& me, uint64_t position) {
    const ChunkMap& chunks = me.plan.chunks;
    const Place& place = me.plan.place();
    const uint64_t tile = orders_.tileAt(me.plan, position);
    const uint64_t chunk = chunks.chunkOfTile(tile);
    if (chunks.owner(chunk) == place.local) {
      for (uint32_t peer = 0; peer < place.locals; ++peer) {
        if (peer != place.local && !at(place.node, peer).computed[tile]) return false;
      }
      for (uint32_t from = 0; from < place.locals; ++from) me.sum[tile] |= bit(at(place.node, from).plan.place());
      ++me.tilesSummed[chunks.ownedIndex(chunk)];
      if (!me.plan.multiNode()) me.result[tile] = me.sum[tile];
    }
    me.computed[tile] = true;
    return true;
  }
  bool haveNodeSum(const Rank& me, uint64_t index) const {
    return me.tilesSummed[index] == me.plan.chunks.tilesIn(me.plan.chunks.ownedChunk(me.plan.place().local, index));
  }
  bool send(Rank& me, uint64_t index) {
    if (!haveNodeSum(me, index)) return false;
    const Place& place = me.plan.place();
    for (uint32_t step = 0; step + 1 < place.nodes; ++step) {
      const uint32_t node = me.plan.rail.target(place.node, step);
      if (!me.plan.rail.finishes(index, place.local, node)) continue;
      ++at(node, place.local).arrivedSum[index][place.node];
      ++me.messages;
    }
    return true;
  }
  bool receive(Rank& me, uint64_t number) {
    const Rail::Task task = orders_.task(me.plan, number);
    if (!task.exists) return true;
    const Place& place = me.plan.place();
    const uint64_t chunk = me.plan.chunks.ownedChunk(place.local, task.index);
    const uint64_t first = me.plan.chunks.firstTile(chunk), end = first + me.plan.chunks.tilesIn(chunk);
    if (!task.finish) {
      if (!me.arrivedResult[task.index]) return false;
      const Rank& home = at(me.plan.rail.home(task.index, place.local), place.local);
      for (uint64_t t = first; t < end; ++t) me.result[t] = home.result[t];
      return true;
    }
    if (!haveNodeSum(me, task.index)) return false;
    for (uint32_t node = 0; node < place.nodes; ++node) {
      if (node != place.node && me.arrivedSum[task.index][node] == 0) return false;
    }
    for (uint64_t t = first; t < end; ++t) {
      for (uint32_t node = 0; node < place.nodes; ++node) {
        const Rank& from = at(node, place.local);
        MUST(node == place.node || me.arrivedSum[task.index][node] == 1, describe(me.plan) << ", chunk " << chunk);
        MUST((me.result[t] & from.sum[t]) == 0, describe(me.plan) << ", tile " << t);
        me.result[t] |= from.sum[t];
      }
    }
    if (me.plan.rail.exchange == Exchange::home) {
      for (uint32_t step = 0; step + 1 < place.nodes; ++step) {
        at(me.plan.rail.target(place.node, step), place.local).arrivedResult[task.index] = true;
        ++me.messages;
      }
    }
    return true;
  }

  std::vector<Rank> ranks_;
  Orders orders_;
};

}  // namespace mk::sched::test
