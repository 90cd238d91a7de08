#include "kernels/ag_gemm.h"
#include "kernels/launch_tools.h"

namespace mk::kernels {

static_assert(kMaxLocals <= sched::AgMoves::kMostLocals);
constexpr uint32_t kMostSplitTiles = 1u << 16;  // a task has 16 bits for the number

std::string launchAgGemm(const RankMemory& memory, const sched::AgGemmPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const AgGemmOperands& op, cudaStream_t stream) {
  AgGemmParams p = {};
  MapMaker maps(memory.own);
  const sched::Shards& shards = plan.shards;
  const uint64_t n = plan.shape.n, k = plan.shape.k;
  const uint64_t tiledRows = choice.turned || plan.spanning ? shards.m : shards.height();
  fillParams(&p, &maps, memory, choice, hash, op, shards.rows(plan.mine().rank), tiledRows, n);
  p.plan = plan;
  p.order = sched::AgOrder(plan);
  p.moves = sched::AgMoves(plan);
  // The host's table of ranks is not the device's.
  if (plan.shape.ranks.table != nullptr)
    p.plan.shape.ranks.table = p.order.ranks.table = p.moves.ranks.table = memory.rankTable;
  for (uint32_t l = 0; l < memory.place.locals; ++l) p.gathered[l] = op.gathered[l];
  p.gatheredStride = op.gatheredStride;
  p.split = sched::KSplit(p.kSteps, choice.parts);
  if (choice.parts > 1) {
    p.order.split(choice.parts);
    // Kernels of more columns would compute each tile so many times, and a part of no steps would leave what the one before
    // had.
    if (choice.tileN > 128 || choice.parts > p.kSteps || p.order.positions > memory.splitSlots ||
        memory.splitSlots > kMostSplitTiles)
      return "launching AllGather+GEMM: these tiles are not to be had in so many parts (an error of the library)";
  }
  if (shards.ranks == 1 && plan.shape.gathered == sched::Gathered::none) p.choice.movers = 0;

  const uint64_t planeRows = plan.spanning ? shards.m : shards.height();
  p.wholeShards = static_cast<uint32_t>(planeRows == 0 ? 0 : shards.m / planeRows);
  const uint64_t inWhole = p.wholeShards * planeRows;
  if (choice.turned && choice.turnedRows != sched::kTurnedRows) {
    if (n % choice.turnedRows != 0 || planeRows != shards.m)
      return "launching AllGather+GEMM: these tiles are not to be had (an error of the library)";
    maps.writesBands(&p.c, {"C", op.out, op.c, shards.m, n, op.cStride}, 64, p.turnedBlockRows);
  } else {
    maps.writesPlanes(&p.c, {"C", op.out, op.c, planeRows, n, op.cStride}, 64, p.wholeShards);
  }
  char* const shortC = inWhole == shards.m ? nullptr : op.c + inWhole * op.cStride * typeBytes(op.out);
  maps.writesPlanes(&p.shortC, {"C", op.out, shortC, shards.m - inWhole, n, op.cStride}, 64, 1);
  // Of rows in tiles: where these are turned they are what the blocks of a cluster share.
  const uint32_t boxRows = choice.turned ? turnedBoxRows(shards.m) : kBlockRows;
  const uint32_t lastRows = choice.turned ? boxRows : p.lastRows;
  const char* const heap = memory.heaps[memory.place.local];
  const uint64_t packedRows = plan.dataBytes() == 0 ? 0 : plan.dataBytes() / plan.rowBytes();
  for (uint32_t bank = 0; bank < 2; ++bank)
    maps.reads(&p.banks[bank], {"the gathered rows", op.in, heap + memory.heapLayout.data(bank), packedRows, k, k},
               boxRows, lastRows);
  maps.reads(
      &p.all,
      {"gathered", op.in, plan.windowed() ? op.gathered[memory.place.local] : nullptr, shards.m, k, op.gatheredStride},
      boxRows, lastRows);
  // A box is 128 bytes across, as low ones would be in all.
  constexpr uint64_t kLeastBoxRows = 16, kMostBoxRows = 64;
  if (plan.sliceCols != 0 && plan.chunkRows >= kLeastBoxRows) {
    p.boxRows = static_cast<uint32_t>(sched::smaller(plan.chunkRows, kMostBoxRows));
    p.boxesPerPiece = static_cast<uint32_t>(kMostBoxRows / p.boxRows);
    const uint64_t rows = shards.rows(plan.mine().rank), first = shards.first(plan.mine().rank);
    maps.reads(&p.shard, {"A", op.in, op.a, rows, k, op.aStride}, p.boxRows);
    for (uint32_t l = 0; l < memory.place.locals; ++l) {
      if (l == memory.place.local && !plan.spanning) continue;
      for (uint32_t bank = 0; bank < 2; ++bank) {
        if (plan.windowed()) {
          char* const at = op.gathered[l] + first * op.gatheredStride * typeBytes(op.in);
          maps.writes(&p.atPeer[l][bank], {"a rank's gathered", op.in, at, rows, k, op.gatheredStride}, p.boxRows);
        } else {
          char* const at = memory.heaps[l] + memory.heapLayout.data(bank) + plan.packed(plan.mine(), 0);
          maps.writes(&p.atPeer[l][bank], {"a rank's gathered rows", op.in, at, rows, k, k}, p.boxRows);
        }
      }
    }
  }
  if (!maps.why().empty()) return maps.why();
  return launchKernel("AllGather+GEMM", &p, !isLean(op, plan.place()), stream);
}

}  // namespace mk::kernels
