// The schedule compiles for the device: a kernel that makes the plan and asks each of its parts.  Never run; its cubin is
// looked at by the test of this folder.
#include "mkernel/queue.h"
#include "sched/ag_gemm.h"
#include "sched/gemm_ar.h"
#include "sched/gemm_rs.h"
#include "sched/row_span.h"
#include "sched/rs_order.h"

using namespace mk::sched;

extern "C" __global__ void mkSchedOnDevice(GemmArShape shape, GemmChoice choice, HeapLayout heap, uint64_t epoch,
                                           uint64_t* out) {
  const GemmArPlan p = planGemmAr(shape, choice, gridDim.x);
  const ControlLayout control{p.place().nodes, p.place().locals};
  const Role role = p.roles.role(blockIdx.x);
  const uint64_t tile = p.chunks.tileAt(p.place().local, threadIdx.x);
  const uint64_t chunk = p.chunks.chunkOfTile(tile);
  const uint32_t owner = p.chunks.owner(chunk);
  const uint64_t owned = p.chunks.ownedTileIndex(tile);
  const Tile at = p.grid.tile(tile);
  const Rail::Task task = p.rail.task(threadIdx.x, p.owned(), p.place().local, p.place().node);
  uint64_t* mine = out + 16 * threadIdx.x;
  mine[0] = static_cast<uint64_t>(role);
  mine[1] = at.row * p.grid.n + at.col;
  mine[2] = p.partial(owned, p.place().local, owner) + p.nodeSum(task.index) + p.result(task.index);
  mine[3] = p.arrivedSum(task.index, p.rail.target(p.place().node, 0), p.place().node);
  mine[4] = p.partialFlag(owned, p.place().local, owner) + p.nodeSumFlag(task.index) + p.outFlag(owner);
  mine[5] = p.stagedTile(tile) + p.stagedFlag(tile);
  mine[6] = p.chunks.positionOf(p.place().local, tile) + p.elementsBefore(tile) + p.elementsOfChunk(chunk);
  mine[7] = arrivalFlag(heap, control, p.slot(task.index), p.place().node, epoch);
  mine[8] = enteredWord(epoch, p.hash().add(heap.totalBytes()).value());
  mine[9] = p.netBytesSent() + p.netMessagesSent() + p.nvlinkBytesSent() + p.workspace() + p.counterWords();
  mine[10] = mkImmediateEpoch(mkImmediate(p.place().node, p.slot(task.index), epoch), epoch);
  mine[11] = mkCommandHeader(mkCommandLap(epoch, 1024), MK_COMMAND_OP_WRITE, 0, p.rail.home(task.index, owner));
}

extern "C" __global__ void mkAgSchedOnDevice(AgGemmShape shape, GemmChoice choice, HeapLayout heap, uint64_t epoch,
                                             uint64_t* out) {
  const AgGemmPlan p = planAgGemm(shape, choice, gridDim.x);
  const ControlLayout control{p.place().nodes, p.place().locals};
  const AgGemmPlan::TileTask tile = p.tileAt(threadIdx.x);
  const AgGemmPlan::Send send = p.send(threadIdx.x);
  const AgGemmPlan::Move move = p.move(threadIdx.x);
  const AgGemmPlan::Copy copy = p.copy(threadIdx.x);
  uint64_t* mine = out + 8 * threadIdx.x;
  mine[0] = tile.exists ? tile.shape.row * p.shape.n + tile.shape.col + tile.endChunk - tile.firstChunk : 0;
  mine[1] = p.packed(send.from, p.chunkRow(send.chunk)) + p.chunkBytes(send.from, send.chunk);
  mine[2] = arrivalFlag(heap, control, p.slot(send.distance, send.chunk), p.sender(send.distance), epoch);
  mine[3] = p.chunkFlag(move.from, move.chunk) + p.rowsIn(move.from, move.chunk) + move.peer;
  mine[4] = p.chunkFlag(copy.from, copy.chunk) + p.outFlag(copy.from.local);
  mine[5] = p.positions() + p.sends() + p.moves() + p.copies() + p.movesToPeer(0);
  mine[6] = p.netBytesSent() + p.netMessagesSent() + p.nvlinkBytesSent() + p.workspace();
  mine[7] = p.hash().value();
}

extern "C" __global__ void mkRsSchedOnDevice(GemmRsShape shape, GemmChoice choice, RsOrder order, uint64_t* out) {
  const GemmRsPlan p = planGemmRs(shape, choice, gridDim.x);
  const GemmRsTile t = p.at(threadIdx.x);
  const RsStep step = order.at(threadIdx.x);
  uint64_t* mine = out + 4 * threadIdx.x;
  mine[0] = t.shape.row * p.shape.n + t.shape.col + p.elementsBefore(t) + p.elementsOfChunk(t.node, t.local, t.chunk);
  mine[1] = p.partial(t, p.place().local) + p.nodeSum(t.node, t.chunk) + p.arrivedSum(t.chunk, 0, p.place().node);
  mine[2] = p.partialFlag(t, p.place().local, 1) + p.nodeSumFlag(t.node, t.chunk) + p.slot(t.chunk);
  mine[3] = p.netBytesSent() + p.netMessagesSent() + p.nvlinkBytesSent() + p.workspace() + p.counterWords();
  const RowShards shards{order.m, order.height, order.local};
  const RowSpan part = rowsOfPart(step, p.turned, 64, 64);
  mine[0] +=
      shards.pieces(1, part).end + (shards.gives(part) && shards.keeps(rowsOfBlock(step, p.turned, 0, 128)) ? 1 : 0);
  out[step.tile] = step.row + step.firstRow + step.ownedTile + step.ownedChunk + (step.exists ? step.owner : 0);
}
