// One launch of any operation on the CPU platform: its agents begin, take their parts, and end.
#pragma once

#include <functional>
#include <vector>

#include "emu/fibre.h"
#include "emu/platform.h"
#include "emu/tile_engine.h"

namespace mk::emu {

// What the agents of one communicator keep between launches.
struct Agents {
  explicit Agents(uint32_t count) : pool(count), waits(count), engines(count) {}
  AgentPool pool;
  WaitBoard waits;
  std::vector<TileEngine> engines;
};

// Runs `body(launch, index)` for agents 0 to count - 1, to the end, on this thread.  Success, or the record of why the launch
// failed.
protocol::FailRecord runLaunch(Agents& agents, const RankMemory& memory, uint32_t count,
                               const std::function<void(Launch&, uint32_t)>& body);

// The part of the Platform that is about tiles: of operations whose tasks have the tile's number and shape.
class TilePlatform : public BasePlatform {
 public:
  TilePlatform(Launch& launch, uint32_t agent, const GemmOperands& op, TileEngine& engine)
      : BasePlatform(launch, agent), op_(op), engine_(engine) {}

  template <class Task>
  void multiply(const Task& t) {
    multiply(op_, t.tile, t.shape);
  }
  template <class Task>
  void storePartial(const Task& t, const protocol::Ref& r) {
    engine_.storePacked(t.shape, op_.wire, memory_.at(r));
  }
  template <class Task>
  void addPartial(const Task& t, const protocol::Ref& r) {
    engine_.addPacked(t.shape, op_.wire, memory_.at(r), false);
  }
  template <class Task>
  void loadNodeSum(const Task& t, const protocol::Ref& r, bool first) {
    engine_.addPacked(t.shape, op_.wire, memory_.at(r), first);
  }

 protected:
  void multiply(const GemmOperands& op, uint64_t tile, const sched::Tile& shape) {
    callHook(memory_.rank, launch_.epoch, Point::multiply, tile);
    engine_.multiply(op, shape);
    progress();         // before the others look at the clock
    AgentPool::idle();  // a tile's time, so that other agents keep up as they would on a GPU
  }

  const GemmOperands& op_;
  TileEngine& engine_;
};

}  // namespace mk::emu
