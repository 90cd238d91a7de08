#include "emu/gemm_rs.h"

#include "protocol/gemm_rs.h"

namespace mk::emu {

namespace {

class GemmRsPlatform : public TilePlatform {
 public:
  using TilePlatform::TilePlatform;
  using Tile = sched::GemmRsTile;

  void finishTile(const Tile& t) { engine_.finish(op_, inShard(t)); }
  void storeOut(const Tile& t) { engine_.storeFinished(inShard(t), op_.out, op_.c, op_.cStride); }

 private:
  static sched::Tile inShard(const Tile& t) {
    sched::Tile shape = t.shape;
    shape.row -= t.firstRow;
    return shape;
  }
};

static_assert(protocol::SumPlatform<GemmRsPlatform, sched::GemmRsTile>);

}  // namespace

protocol::FailRecord runGemmRs(Agents& agents, const RankMemory& memory, const sched::GemmRsPlan& plan, uint32_t hash,
                               const GemmOperands& operands) {
  return runLaunch(agents, memory, plan.roles.total(), [&](Launch& launch, uint32_t index) {
    GemmRsPlatform platform(launch, index, operands, agents.engines[index]);
    protocol::GemmRs<GemmRsPlatform>(platform, plan, hash).run();
  });
}

}  // namespace mk::emu
