#include "host/op_ag_gemm.h"

#include "host/error.h"

namespace mk {

namespace {

// No place in a workspace may overflow 64 bits.
constexpr uint64_t kMostGathered = uint64_t{1} << 44;  // elements of the whole A

unsigned long long ull(uint64_t v) { return v; }

}  // namespace

std::shared_ptr<const OpCall> prepareAgGemm(const Comm& comm, const GemmArgs& args) {
  const Gemm gemm = checkGemm(comm, args, Rows::shardA);
  const uint64_t k = gemm.operands.k;
  if (k != 0 && gemm.m > kMostGathered / k)
    fail(mkErrorInvalidArgument, "A is %llu x %llu in all; legal: up to 2^44 elements", ull(gemm.m), ull(k));

  auto call = std::make_shared<AgGemmCall>();
  call->name = args.name;
  call->operands = gemm.operands;
  sched::AgGemmShape shape;
  shape.m = gemm.m;
  shape.k = k;
  shape.n = gemm.n;
  shape.inBytes = typeBytes(gemm.operands.in);
  shape.place = comm.place();
  shape.ranks = comm.rankMap();
  call->gathered.assign(shape.place.locals, nullptr);
  if (gemm.gathered) {
    const Matrix& whole = *gemm.gathered;
    shape.gathered = whole.window != nullptr ? sched::Gathered::window : sched::Gathered::memory;
    call->gatheredStride = whole.stride;
    call->gathered[shape.place.local] = whole.data;
    for (uint32_t l = 0; whole.window != nullptr && l < shape.place.locals; ++l)
      call->gathered[l] = whole.window->bases[l] + whole.offset;
  }
  comm.platform().planAgGemm(shape, gemm.choice, call.get());

  // B and C, and all that makes C of A*B, are each rank's own.
  const Matrix window = call->plan.windowed() ? *gemm.gathered : Matrix();
  sched::PlanHash hash = call->plan.hash();
  hash.add(static_cast<uint64_t>(args.op)).add(gemm.in);
  addWindow(&hash, window);
  call->hash = hash.value();
  const sched::AgGemmPlan& plan = call->plan;
  call->text =
      format("%s(M=%llu, K=%llu, a %s, gathered %s, chunks of %llu rows%s, %s)", args.name, ull(gemm.m), ull(k),
             typeName(gemm.in), plan.windowed() ? ("in " + describePlace(window)).c_str() : "not in a window",
             ull(plan.chunkRows), plan.sliceCols != 0 ? format(" by %llu columns", ull(plan.sliceCols)).c_str() : "",
             plan.exchange == sched::Exchange::ring ? "ring" : "direct");
  return call;
}

mkTune_t AgGemmCall::tune() const {
  mkTune_t t = {};
  t.tileM = plan.turned ? plan.tileN : plan.tileM;
  t.tileN = plan.turned ? plan.tileM : plan.tileN;
  t.chunkRows = static_cast<uint32_t>(plan.chunkRows);
  t.exchange = static_cast<uint32_t>(plan.exchange);
  t.computeAgents = plan.roles.compute;
  t.receiveAgents = plan.roles.move;
  t.minSMs = minSMs;
  return t;
}

}  // namespace mk
