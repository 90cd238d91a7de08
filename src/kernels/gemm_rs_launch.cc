#include "kernels/gemm_rs.h"
#include "kernels/launch_tools.h"

namespace mk::kernels {

std::string launchGemmRs(const RankMemory& memory, const sched::GemmRsPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const protocol::GemmOperands& op, cudaStream_t stream) {
  GemmRsParams p = {};
  MapMaker maps(memory.own);
  const bool whole = choice.turned || plan.spanning;
  fillParams(&p, &maps, memory, choice, hash, op, plan.shape.m, whole ? plan.shape.m : plan.shards.height(),
             plan.shape.n);
  const sched::Place& at = plan.place();
  const uint32_t rank = plan.shape.ranks.rank(at.node, at.local);
  p.plan = plan;
  p.order = sched::RsOrder(plan.spanning ? plan.whole() : plan);
  // The host's table of ranks is not the device's.
  if (plan.shape.ranks.table != nullptr) p.plan.shape.ranks.table = memory.rankTable;
  if (p.order.ranks.table != nullptr) p.order.ranks.table = memory.rankTable;
  p.partialFlags = plan.arrivalWords();
  p.ownedParts = plan.spanning ? static_cast<uint32_t>(plan.ownSpanningParts(sched::kClusterBlocks))
                               : static_cast<uint32_t>(plan.tilesOf(at.node, at.local) * sched::kClusterBlocks);
  p.firstRow = static_cast<uint32_t>(plan.shards.first(rank));
  p.shardRows = static_cast<uint32_t>(plan.shards.height());
  maps.writes(&p.c, {"C", op.out, op.c, plan.shards.rows(rank), plan.shape.n, op.cStride}, 64);
  if (!maps.why().empty()) return maps.why();
  return launchKernel("GEMM+ReduceScatter", &p, !isLean(op, plan.place()), stream);
}

}  // namespace mk::kernels
