#include "host/op_gemm_ar.h"

#include <bit>
#include <utility>

#include "host/error.h"

namespace mk {

namespace {

constexpr int64_t kMostDim = (int64_t{1} << 31) - 1;
// So that no extent and no place in a workspace overflows 64 bits, whatever the tiles and the world.
constexpr uint64_t kMostExtent = uint64_t{1} << 60;  // elements of a matrix, gaps between rows included
constexpr uint32_t kMostTile = 256;                  // rows or columns of a tile
constexpr uint64_t kMostResult = uint64_t{1} << 44;  // elements of the result, in whole tiles of the largest shape

const char* typeName(uint32_t dtype) {
  switch (dtype) {
    case mkInt8:
      return "int8";
    case mkFloat16:
      return "fp16";
    case mkFloat32:
      return "fp32";
    case mkFloat64:
      return "fp64";
    case mkBfloat16:
      return "bf16";
    default:
      return "unknown";
  }
}
uint64_t typeSize(uint32_t dtype) { return dtype == mkFloat32 ? 4 : 2; }
long long ll(int64_t v) { return static_cast<long long>(v); }

// A matrix argument after all checks of its own.
struct Matrix {
  char* data = nullptr;  // of this rank
  const mkWindow* window = nullptr;
  uint64_t offset = 0;
  int64_t rows = 0, cols = 0;
  uint64_t stride = 0;  // elements
};

void requireReserved(const mkTensor_t& t, const char* name) {
  if (t.reserved[0] != 0 || t.reserved[1] != 0) fail(mkErrorVersion, "%s.reserved is not zero; legal: 0", name);
}

void requireType(uint32_t dtype, const char* name, std::initializer_list<uint32_t> legal) {
  std::string names;
  for (const uint32_t l : legal) {
    if (dtype == l) return;
    names += std::string(names.empty() ? "" : ", ") + typeName(l);
  }
  fail(mkErrorInvalidArgument, "%s.dtype is %u (%s); legal here: %s", name, dtype, typeName(dtype), names.c_str());
}

// Where the tensor's first element is on this rank; `bytes` is how far it reaches.
void locate(const Comm& comm, const mkTensor_t& t, const char* name, uint64_t bytes, Matrix* m) {
  if (t.window != nullptr) {
    if (t.data != nullptr) fail(mkErrorInvalidArgument, "%s has both data and window; legal: one of them", name);
    m->window = comm.checkWindow(t.window);
    if (t.offset % 16 != 0)
      fail(mkErrorInvalidArgument, "%s.offset is %llu; legal: multiples of 16 bytes", name,
           static_cast<unsigned long long>(t.offset));
    if (t.offset > m->window->bytes || bytes > m->window->bytes - t.offset)
      fail(mkErrorInvalidArgument, "%s reaches %llu bytes from offset %llu, past the end of its window of %llu bytes",
           name, static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(t.offset),
           static_cast<unsigned long long>(m->window->bytes));
    m->offset = t.offset;
    m->data = m->window->bases[comm.place().local] + t.offset;
    return;
  }
  if (t.offset != 0)
    fail(mkErrorInvalidArgument, "%s.offset is %llu without a window; legal: 0", name,
         static_cast<unsigned long long>(t.offset));
  if (t.data == nullptr && bytes != 0)
    fail(mkErrorInvalidArgument, "%s.data is NULL, and %s.window too; legal: one of them", name, name);
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0)
    fail(mkErrorInvalidArgument, "%s.data is %p; legal: a multiple of 16 bytes", name, t.data);
  if (bytes != 0) comm.platform().requireOperand(t.data, name);
  m->data = static_cast<char*>(t.data);
}

Matrix readMatrix(const Comm& comm, const mkTensor_t& t, const char* name) {
  requireReserved(t, name);
  if (t.ndim != 2) fail(mkErrorInvalidArgument, "%s.ndim is %u; legal: 2", name, t.ndim);
  Matrix m;
  m.rows = t.dims[0];
  m.cols = t.dims[1];
  for (int i = 0; i < 2; ++i) {
    if (t.dims[i] < 0 || t.dims[i] > kMostDim)
      fail(mkErrorInvalidArgument, "%s.dims[%d] is %lld; legal: 0 to %lld", name, i, ll(t.dims[i]), ll(kMostDim));
  }
  const uint64_t size = typeSize(t.dtype);
  const unsigned long long rowBytes = static_cast<unsigned long long>(m.cols) * size;
  if (rowBytes % 16 != 0)
    fail(mkErrorInvalidArgument,
         "%s.dims[1] is %lld, a row of %llu bytes; legal: rows in multiples of 16 bytes, %llu elements", name,
         ll(m.cols), rowBytes, static_cast<unsigned long long>(16 / size));
  m.stride = static_cast<uint64_t>(m.cols);
  if (t.strides[0] != 0 || t.strides[1] != 0) {
    if (t.strides[1] != 1)
      fail(mkErrorInvalidArgument, "%s.strides[1] is %lld; legal: 1 (or all strides 0: packed)", name,
           ll(t.strides[1]));
    if (t.strides[0] < m.cols || t.strides[0] > (int64_t{1} << 40) ||
        static_cast<uint64_t>(t.strides[0]) * size % 16 != 0)
      fail(mkErrorInvalidArgument,
           "%s.strides[0] is %lld; legal: at least dims[1] = %lld, in multiples of %llu elements (16 bytes)", name,
           ll(t.strides[0]), ll(m.cols), static_cast<unsigned long long>(16 / size));
    m.stride = static_cast<uint64_t>(t.strides[0]);
  }
  if (m.cols != 0 && static_cast<uint64_t>(m.rows) > kMostExtent / m.stride)
    fail(mkErrorInvalidArgument, "%s has %lld rows that are %llu elements apart; legal: up to 2^60 elements in all",
         name, ll(m.rows), static_cast<unsigned long long>(m.stride));
  const uint64_t bytes = m.rows == 0 || m.cols == 0
                             ? 0
                             : ((static_cast<uint64_t>(m.rows) - 1) * m.stride + static_cast<uint64_t>(m.cols)) * size;
  locate(comm, t, name, bytes, &m);
  return m;
}

void requireDim(const char* name, int index, int64_t value, const char* of, int64_t expected) {
  if (value != expected)
    fail(mkErrorInvalidArgument, "%s.dims[%d] is %lld; legal: %s = %lld", name, index, ll(value), of, ll(expected));
}

sched::GemmArChoice readChoice(const Comm& comm, const mkTune_t* tune) {
  sched::GemmArChoice c;
  if (tune == nullptr) return c;
  const auto within = [](const char* field, uint32_t value, uint32_t least, uint32_t most, uint32_t step) {
    if (value != 0 && (value < least || value > most || value % step != 0))
      fail(mkErrorInvalidArgument, "tune.%s is %u; legal: 0 (automatic), or %u to %u in steps of %u", field, value,
           least, most, step);
  };
  within("tileM", tune->tileM, 16, kMostTile, 16);
  within("tileN", tune->tileN, 16, kMostTile, 16);
  within("chunkTiles", tune->chunkTiles, 1, sched::kMaxChunkTiles, 1);
  within("exchange", tune->exchange, MK_EXCHANGE_SWAP, MK_EXCHANGE_HOME, 1);
  within("computeAgents", tune->computeAgents, 1, comm.platform().smCount(), 1);
  within("receiveAgents", tune->receiveAgents, 1, comm.platform().smCount(), 1);
  if (tune->reserved0 != 0) fail(mkErrorVersion, "tune.reserved0 is %u; legal: 0", tune->reserved0);
  c.tileM = tune->tileM;
  c.tileN = tune->tileN;
  c.chunkTiles = tune->chunkTiles;
  c.exchange = tune->exchange;
  c.computeAgents = tune->computeAgents;
  c.receiveAgents = tune->receiveAgents;
  return c;
}

}  // namespace

GemmArCall prepareGemmAr(const Comm& comm, const mkGemmAllReduceArgs_t& args, const mkTune_t* tune) {
  GemmArCall call;
  GemmArOperands& op = call.operands;

  requireType(args.a.dtype, "a", {mkBfloat16, mkFloat16});
  requireType(args.b.dtype, "b", {args.a.dtype});
  requireType(args.c.dtype, "c", {args.a.dtype, mkFloat32});
  const Matrix a = readMatrix(comm, args.a, "a");
  const Matrix b = readMatrix(comm, args.b, "b");
  const Matrix c = readMatrix(comm, args.c, "c");
  if (args.bLayout > MK_LAYOUT_NK)
    fail(mkErrorInvalidArgument, "bLayout is %u; legal: 0, MK_LAYOUT_KN (1), MK_LAYOUT_NK (2)", args.bLayout);
  op.bTransposed = args.bLayout == MK_LAYOUT_NK;
  if (sched::alignUp(static_cast<uint64_t>(c.rows), kMostTile) *
          sched::alignUp(static_cast<uint64_t>(c.cols), kMostTile) >
      kMostResult)
    fail(mkErrorInvalidArgument, "c.dims are %lld x %lld; legal: up to 2^44 elements in tiles of %u x %u", ll(c.rows),
         ll(c.cols), kMostTile, kMostTile);
  requireDim("a", 0, a.rows, "c.dims[0], M", c.rows);
  requireDim("b", op.bTransposed ? 0 : 1, op.bTransposed ? b.rows : b.cols, "c.dims[1], N", c.cols);
  requireDim("b", op.bTransposed ? 1 : 0, op.bTransposed ? b.cols : b.rows, "a.dims[1], K of this rank", a.cols);

  if (args.bias.ndim != 0) {
    requireReserved(args.bias, "bias");
    if (args.bias.ndim != 1) fail(mkErrorInvalidArgument, "bias.ndim is %u; legal: 0 (none) or 1", args.bias.ndim);
    requireType(args.bias.dtype, "bias", {args.c.dtype, mkFloat32});
    requireDim("bias", 0, args.bias.dims[0], "c.dims[1], N", c.cols);
    if (args.bias.strides[0] != 0 && args.bias.strides[0] != 1)
      fail(mkErrorInvalidArgument, "bias.strides[0] is %lld; legal: 0 or 1", ll(args.bias.strides[0]));
    Matrix m;
    locate(comm, args.bias, "bias", static_cast<uint64_t>(c.cols) * typeSize(args.bias.dtype), &m);
    op.bias = m.data;
    op.biasType = args.bias.dtype;
  }
  if (args.activation > MK_ACTIVATION_SILU)
    fail(mkErrorInvalidArgument, "activation is %u; legal: 0 to %u (MK_ACTIVATION_...)", args.activation,
         MK_ACTIVATION_SILU);
  if (args.activation > MK_ACTIVATION_NONE)
    fail(mkErrorNotSupported, "activation is %u; supported by this version: 0 and MK_ACTIVATION_NONE (1)",
         args.activation);
  if (args.scaleA != nullptr || args.scaleB != nullptr)
    fail(mkErrorNotSupported, "%s is not NULL; supported by this version: NULL (there are no 8-bit inputs)",
         args.scaleA != nullptr ? "scaleA" : "scaleB");
  if (args.reserved0 != 0) fail(mkErrorVersion, "reserved0 is %u; legal: 0", args.reserved0);
  uint32_t wire = args.c.dtype;
  if (args.wireDtypePlus1 != 0) {
    wire = args.wireDtypePlus1 - 1;
    if (wire != mkFloat32 && wire != args.c.dtype)
      fail(mkErrorInvalidArgument,
           "wireDtypePlus1 is %u; legal: 0 (the dtype of c), 1 + the dtype of c = %u, 1 + mkFloat32 = %u",
           args.wireDtypePlus1, args.c.dtype + 1, mkFloat32 + 1u);
  }

  op.in = args.a.dtype;
  op.out = args.c.dtype;
  op.wire = wire;
  op.k = static_cast<uint64_t>(a.cols);
  op.a = a.data;
  op.aStride = a.stride;
  op.b = b.data;
  op.bStride = b.stride;
  op.c = c.data;
  op.cStride = c.stride;
  op.alpha = args.alpha != nullptr ? *args.alpha : 1.0f;
  op.beta = args.beta != nullptr ? *args.beta : 0.0f;
  if (c.window != nullptr) {
    for (char* base : c.window->bases) op.peerC.push_back(base + c.offset);
  }

  sched::GemmArShape shape;
  shape.m = static_cast<uint64_t>(c.rows);
  shape.n = static_cast<uint64_t>(c.cols);
  shape.outBytes = static_cast<uint32_t>(typeSize(args.c.dtype));
  shape.wireBytes = static_cast<uint32_t>(typeSize(wire));
  shape.staged = c.window == nullptr;
  shape.place = comm.place();
  comm.platform().planGemmAr(shape, readChoice(comm, tune), &call);

  const bool windowed = c.window != nullptr;
  call.hash = call.plan.hash()
                  .add(MK_OP_GEMM_ALL_REDUCE)
                  .add(args.a.dtype)
                  .add(args.c.dtype)
                  .add(wire)
                  .add(op.bTransposed ? MK_LAYOUT_NK : MK_LAYOUT_KN)
                  .add(std::bit_cast<uint32_t>(op.alpha))
                  .add(std::bit_cast<uint32_t>(op.beta))
                  .add(op.bias != nullptr ? 1 + args.bias.dtype : 0)
                  .add(windowed ? c.window->id : 0)
                  .add(windowed ? c.offset : 0)
                  .add(windowed ? c.stride : 0)
                  .value();
  call.text = format(
      "mkGemmAllReduce(M=%lld, N=%lld, a and b %s, B (%s), c %s in %s, wire %s, alpha=%g, beta=%g, bias %s, tile "
      "%ux%u, chunks of %u, %s)",
      ll(c.rows), ll(c.cols), typeName(args.a.dtype), op.bTransposed ? "N, K" : "K, N", typeName(args.c.dtype),
      windowed
          ? format("window %llu at offset %llu with row stride %llu", static_cast<unsigned long long>(c.window->id),
                   static_cast<unsigned long long>(c.offset), static_cast<unsigned long long>(c.stride))
                .c_str()
          : "ordinary memory",
      typeName(wire), static_cast<double>(op.alpha), static_cast<double>(op.beta),
      op.bias != nullptr ? typeName(args.bias.dtype) : "none", call.plan.grid.tileM, call.plan.grid.tileN,
      call.plan.chunks.chunkTiles, call.plan.rail.exchange == sched::Exchange::swap ? "swap" : "home");
  return call;
}

mkTune_t describeTune(const GemmArCall& call) {
  const sched::GemmArPlan& plan = call.plan;
  mkTune_t t = {};
  t.tileM = plan.grid.tileM;
  t.tileN = plan.grid.tileN;
  t.chunkTiles = plan.chunks.chunkTiles;
  t.exchange = static_cast<uint32_t>(plan.rail.exchange);
  t.computeAgents = plan.roles.compute;
  t.receiveAgents = plan.roles.receive;
  t.minSMs = call.minSMs;
  return t;
}

void launchGemmAr(Comm& comm, GemmArCall call, mkStream_t stream) {
  if (call.plan.workspace() > comm.workspace())
    fail(mkErrorNotReserved,
         "the operation needs a workspace of %llu bytes, %llu are reserved; call mkCommReserve on all ranks",
         static_cast<unsigned long long>(call.plan.workspace()), static_cast<unsigned long long>(comm.workspace()));
  Comm::Operation op;
  op.name = "mkGemmAllReduce";
  op.hash = call.hash;
  op.text = call.text;
  op.run = [stream, call = std::move(call)](Platform& platform) { return platform.runGemmAr(call, stream); };
  comm.launch(std::move(op), stream);
}

}  // namespace mk
