#include "emu/ag_gemm.h"

#include <cstring>

#include "protocol/ag_gemm.h"

namespace mk::emu {

namespace {

class AgGemmPlatform : public TilePlatform {
 public:
  AgGemmPlatform(Launch& launch, uint32_t agent, const GemmOperands& op, TileEngine& engine,
                 const GatheredOutput& gathered)
      : TilePlatform(launch, agent, op, engine), gathered_(gathered) {}

  using Task = sched::AgGemmPlan::TileTask;
  using RowsAt = protocol::RowsAt;

  void multiply(const Task& t, const RowsAt& rows) {
    const Rows a = at(rows);
    GemmOperands op = op_;
    op.a = a.data;
    op.aStride = a.stride;
    sched::Tile shape = t.shape;
    shape.row = 0;  // of those rows
    TilePlatform::multiply(op, t.tile, shape);
  }
  void finishTile(const Task& t) { engine_.finish(op_, t.shape); }
  void storeOut(const Task& t) { engine_.storeFinished(t.shape, op_.out, op_.c, op_.cStride); }
  void copyRows(const RowsAt& from, const RowsAt& to, uint64_t rows, uint64_t firstCol, uint64_t cols) {
    const Rows source = at(from), target = at(to);
    if (source.data == target.data) return;  // a shard that lies where it belongs in `gathered`
    const uint64_t size = typeBytes(op_.in);
    for (uint64_t r = 0; r < rows; ++r)
      std::memcpy(target.data + (r * target.stride + firstCol) * size,
                  source.data + (r * source.stride + firstCol) * size, cols * size);
    progress();
    AgentPool::idle();  // the time of a chunk
  }

 private:
  struct Rows {
    char* data;
    uint64_t stride;  // elements
  };
  Rows at(const RowsAt& rows) const {
    switch (rows.where) {
      case RowsAt::Where::shard:
        return row(static_cast<char*>(const_cast<void*>(op_.a)), op_.aStride, rows.row);
      case RowsAt::Where::gathered:
        return row(gathered_.bases[rows.local], gathered_.stride, rows.row);
      case RowsAt::Where::heap:
        break;
    }
    return {memory_.at(rows.packed), op_.k};
  }
  Rows row(char* base, uint64_t stride, uint64_t number) const {
    return {base + number * stride * typeBytes(op_.in), stride};
  }

  const GatheredOutput& gathered_;
};

static_assert(protocol::AgGemmPlatform<AgGemmPlatform>);

}  // namespace

protocol::FailRecord runAgGemm(Agents& agents, const RankMemory& memory, const sched::AgGemmPlan& plan, uint32_t hash,
                               const GemmOperands& operands, const GatheredOutput& gathered) {
  return runLaunch(agents, memory, plan.roles.total(), [&](Launch& launch, uint32_t index) {
    AgGemmPlatform platform(launch, index, operands, agents.engines[index], gathered);
    protocol::AgGemm<AgGemmPlatform>(platform, plan, hash).run();
  });
}

}  // namespace mk::emu
