#include "emu/gemm_ar.h"

#include "protocol/gemm_ar.h"

namespace mk::emu {

namespace {

class GemmArPlatform : public BasePlatform {
 public:
  GemmArPlatform(Launch& launch, uint32_t agent, const GemmArOperands& op, TileEngine& engine)
      : BasePlatform(launch, agent), op_(op), engine_(engine) {}

  using Task = protocol::TileTask;
  using Ref = protocol::Ref;

  void multiply(const Task& t) {
    callHook(memory_.rank, launch_.epoch, Point::multiply, t.tile);
    engine_.multiply(op_, t.shape);
    progress();         // before the others look at the clock
    AgentPool::idle();  // a tile's time, so that other agents keep up as they would on a GPU
  }
  void storePartial(const Task& t, const Ref& r) { engine_.storePacked(t.shape, op_.wire, memory_.at(r)); }
  void addPartial(const Task& t, const Ref& r) { engine_.addPacked(t.shape, op_.wire, memory_.at(r), false); }
  void loadNodeSum(const Task& t, const Ref& r, bool first) {
    engine_.addPacked(t.shape, op_.wire, memory_.at(r), first);
  }
  void finishTile(const Task& t) { engine_.finish(op_, t.shape); }
  void storeOut(const Task& t) { engine_.storeFinished(t.shape, op_.out, op_.c, op_.cStride); }
  void storeOutToPeer(const Task& t, uint32_t local) {
    engine_.storeFinished(t.shape, op_.out, op_.peerC[local], op_.cStride);
  }
  void storeOutPacked(const Task& t, const Ref& r) { engine_.storeFinishedPacked(t.shape, op_.out, memory_.at(r)); }
  void loadOutPacked(const Task& t, const Ref& r) { engine_.loadFinishedPacked(t.shape, op_.out, memory_.at(r)); }

 private:
  const GemmArOperands& op_;
  TileEngine& engine_;
};

static_assert(protocol::GemmArPlatform<GemmArPlatform>);

}  // namespace

protocol::FailRecord runGemmAr(Agents& agents, const RankMemory& memory, const sched::GemmArPlan& plan, uint32_t hash,
                               const GemmArOperands& operands) {
  Launch launch;
  launch.memory = &memory;
  launch.waits = &agents.waits;
  launch.epoch = memory.ownWord(protocol::OwnLayout::epoch).load(std::memory_order_acquire) + 1;
  launch.lastProgress.store(nowNs(), std::memory_order_relaxed);
  agents.waits.progress(launch.lastProgress.load(std::memory_order_relaxed));
  callHook(memory.rank, launch.epoch, Point::launch, 0);
  agents.pool.run(plan.roles.total(), [&](uint32_t index) {
    GemmArPlatform platform(launch, index, operands, agents.engines[index]);
    try {
      protocol::GemmAr<GemmArPlatform>(platform, plan, hash).run();
    } catch (...) {  // the product's own blocking buffers could not be allocated
      platform.fail(protocol::FailRecord::internal, {}, 0, 0);
    }
  });
  return launch.record;
}

}  // namespace mk::emu
