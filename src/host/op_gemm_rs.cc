#include "host/op_gemm_rs.h"

#include "host/error.h"

namespace mk {

std::shared_ptr<const OpCall> prepareGemmRs(const Comm& comm, const GemmArgs& args) {
  const Gemm gemm = checkGemm(comm, args, Rows::shardC);
  auto call = std::make_shared<GemmRsCall>();
  call->name = args.name;
  call->operands = gemm.operands;

  sched::GemmRsShape shape;
  shape.m = gemm.m;
  shape.n = gemm.n;
  shape.outBytes = typeBytes(gemm.operands.out);
  shape.wireBytes = typeBytes(gemm.operands.wire);
  shape.place = comm.place();
  shape.ranks = comm.rankMap();
  comm.platform().planGemmRs(shape, gemm.choice, call.get());

  sched::PlanHash hash = call->plan.hash();
  addGemm(&hash, args, gemm);
  call->hash = hash.value();
  const mkTune_t chosen = call->tune();
  call->text =
      describeGemm(args, gemm, "shards", chosen.tileM, chosen.tileN) + format(", chunks of %u)", call->plan.chunkTiles);
  return call;
}

mkTune_t GemmRsCall::tune() const {
  mkTune_t t = {};
  t.tileM = plan.turned ? plan.tileN : plan.tileM;
  t.tileN = plan.turned ? plan.tileM : plan.tileN;
  t.chunkTiles = plan.chunkTiles;
  t.computeAgents = plan.roles.compute;
  t.receiveAgents = plan.roles.receive;
  t.minSMs = minSMs;
  return t;
}

}  // namespace mk
