#include "emu/gemm_ar.h"

#include "protocol/gemm_ar.h"

namespace mk::emu {

namespace {

class GemmArPlatform : public TilePlatform {
 public:
  GemmArPlatform(Launch& launch, uint32_t agent, const GemmOperands& op, TileEngine& engine,
                 const std::vector<char*>& peerC)
      : TilePlatform(launch, agent, op, engine), peerC_(peerC) {}

  using Task = protocol::TileTask;
  using Ref = protocol::Ref;

  void finishTile(const Task& t) { engine_.finish(op_, t.shape); }
  void storeOut(const Task& t) { engine_.storeFinished(t.shape, op_.out, op_.c, op_.cStride); }
  void storeOutToPeer(const Task& t, uint32_t local) {
    engine_.storeFinished(t.shape, op_.out, peerC_[local], op_.cStride);
  }
  void storeOutPacked(const Task& t, const Ref& r) { engine_.storeFinishedPacked(t.shape, op_.out, memory_.at(r)); }
  void loadOutPacked(const Task& t, const Ref& r) { engine_.loadFinishedPacked(t.shape, op_.out, memory_.at(r)); }

 private:
  const std::vector<char*>& peerC_;
};

static_assert(protocol::GemmArPlatform<GemmArPlatform>);

}  // namespace

protocol::FailRecord runGemmAr(Agents& agents, const RankMemory& memory, const sched::GemmArPlan& plan, uint32_t hash,
                               const GemmOperands& operands, const std::vector<char*>& peerC) {
  return runLaunch(agents, memory, plan.roles.total(), [&](Launch& launch, uint32_t index) {
    GemmArPlatform platform(launch, index, operands, agents.engines[index], peerC);
    protocol::GemmAr<GemmArPlatform>(platform, plan, hash).run();
  });
}

}  // namespace mk::emu
