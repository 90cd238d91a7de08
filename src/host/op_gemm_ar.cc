#include "host/op_gemm_ar.h"

#include "host/error.h"

namespace mk {

std::shared_ptr<const OpCall> prepareGemmAr(const Comm& comm, const GemmArgs& args) {
  const Gemm gemm = checkGemm(comm, args, Rows::whole);
  auto call = std::make_shared<GemmArCall>();
  call->operands = gemm.operands;
  const bool windowed = gemm.c.window != nullptr;
  if (windowed) {
    for (char* base : gemm.c.window->bases) call->peerC.push_back(base + gemm.c.offset);
  }

  sched::GemmArShape shape;
  shape.m = gemm.m;
  shape.n = gemm.n;
  shape.outBytes = typeBytes(gemm.operands.out);
  shape.wireBytes = typeBytes(gemm.operands.wire);
  shape.staged = !windowed;
  shape.place = comm.place();
  comm.platform().planGemmAr(shape, gemm.choice, call.get());

  sched::PlanHash hash = call->plan.hash();
  addGemm(&hash, args, gemm);
  addWindow(&hash, gemm.c);
  call->name = args.name;
  call->hash = hash.value();
  const mkTune_t chosen = call->tune();
  call->text = describeGemm(args, gemm, describePlace(gemm.c), chosen.tileM, chosen.tileN) +
               format(", chunks of %u, %s)", call->plan.chunks.chunkTiles,
                      call->plan.rail.exchange == sched::Exchange::swap ? "swap" : "home");
  return call;
}

mkTune_t GemmArCall::tune() const {
  mkTune_t t = {};
  t.tileM = kernel.turned ? plan.grid.tileN : plan.grid.tileM;
  t.tileN = kernel.turned ? plan.grid.tileM : plan.grid.tileN;
  t.chunkTiles = plan.chunks.chunkTiles;
  t.exchange = static_cast<uint32_t>(plan.rail.exchange);
  t.computeAgents = plan.roles.compute;
  t.receiveAgents = plan.roles.receive;
  t.minSMs = minSMs;
  return t;
}

}  // namespace mk
