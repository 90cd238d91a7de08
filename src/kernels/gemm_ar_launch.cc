#include "kernels/gemm_ar.h"
#include "kernels/launch_tools.h"

namespace mk::kernels {

std::string launchGemmAr(const RankMemory& memory, const sched::GemmArPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const GemmArOperands& op, cudaStream_t stream) {
  GemmArParams p = {};
  MapMaker maps(memory.own);
  // The plan of turned tiles is of the product transposed.
  const uint64_t m = choice.turned ? plan.shape.n : plan.shape.m, n = choice.turned ? plan.shape.m : plan.shape.n;
  fillParams(&p, &maps, memory, choice, hash, op, m, m, n);
  p.plan = plan;
  p.order = sched::TileOrder(plan);
  p.partialFlags = plan.arrivalWords();
  p.outFlags = plan.outFlagBase();
  p.stagedFlags = plan.stagedFlagBase();
  p.stage = plan.stageBase();
  p.ownedParts = static_cast<uint32_t>(plan.ownedTiles() * sched::kClusterBlocks);
  for (uint32_t l = 0; l < memory.place.locals; ++l) {
    p.owners |= plan.chunks.ownedTiles(l) != 0 ? 1u << l : 0;
    p.peers[l] = op.peerC[l];
  }
  maps.writes(&p.c, {"C", op.out, op.c, m, n, op.cStride}, 64);
  for (uint32_t l = 0; l < memory.place.locals && !plan.staged(); ++l) {
    if (l != memory.place.local) maps.writes(&p.peerC[l], {"a peer's C", op.out, op.peerC[l], m, n, op.cStride}, 16);
  }
  if (!maps.why().empty()) return maps.why();
  return launchKernel("GEMM+AllReduce", &p, !isLean(op, plan.place(), plan.shape.staged), stream);
}

}  // namespace mk::kernels
