#include "host/gemm_args.h"

#include <bit>

#include "host/error.h"

namespace mk {

namespace {

constexpr int64_t kMostDim = (int64_t{1} << 31) - 1;
// So that no extent and no place in a workspace overflows 64 bits, whatever the tiles and the world.
constexpr uint64_t kMostExtent = uint64_t{1} << 60;  // elements of a matrix, gaps between rows included
constexpr uint32_t kMostTile = 256;                  // rows or columns of a tile
constexpr uint64_t kMostResult = uint64_t{1} << 44;  // elements of the result, in whole tiles of the largest shape

uint64_t typeSize(uint32_t dtype) { return dtype == mkFloat32 ? 4 : 2; }
long long ll(int64_t v) { return static_cast<long long>(v); }

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

sched::GemmChoice readChoice(const Comm& comm, const char* operation, const std::optional<mkTune_t>& tune, Rows rows) {
  sched::GemmChoice c;
  if (!tune) return c;
  const auto within = [](const char* field, uint32_t value, uint32_t least, uint32_t most, uint32_t step) {
    if (value != 0 && (value < least || value > most || value % step != 0))
      fail(mkErrorInvalidArgument, "tune.%s is %u; legal: 0 (automatic), or %u to %u in steps of %u", field, value,
           least, most, step);
  };
  within("tileM", tune->tileM, 16, kMostTile, 16);
  within("tileN", tune->tileN, 16, kMostTile, 16);
  const auto foreign = [&](const char* field, uint32_t value) {
    if (value != 0) fail(mkErrorInvalidArgument, "tune.%s is %u; legal for %s: 0", field, value, operation);
  };
  if (rows == Rows::shardA) {
    within("chunkRows", tune->chunkRows, 1, sched::kMaxChunkRows, 1);
    within("exchange", tune->exchange, MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING, 1);
    foreign("chunkTiles", tune->chunkTiles);
  } else {
    within("chunkTiles", tune->chunkTiles, 1, sched::kMaxChunkTiles, 1);
    if (rows == Rows::shardC) foreign("exchange", tune->exchange);  // node sums go where their rows do
    within("exchange", tune->exchange, MK_EXCHANGE_SWAP, MK_EXCHANGE_HOME, 1);
    foreign("chunkRows", tune->chunkRows);
  }
  within("computeAgents", tune->computeAgents, 1, comm.platform().smCount(), 1);
  within("receiveAgents", tune->receiveAgents, 1, comm.platform().smCount(), 1);
  if (tune->reserved0 != 0) fail(mkErrorVersion, "tune.reserved0 is %u; legal: 0", tune->reserved0);
  c.tileM = tune->tileM;
  c.tileN = tune->tileN;
  c.chunkTiles = tune->chunkTiles;
  c.chunkRows = tune->chunkRows;
  c.exchange = tune->exchange;
  c.computeAgents = tune->computeAgents;
  c.receiveAgents = tune->receiveAgents;
  return c;
}

protocol::Type engineType(uint32_t dtype) {
  return dtype == mkFloat32 ? protocol::Type::f32 : dtype == mkFloat16 ? protocol::Type::f16 : protocol::Type::bf16;
}

protocol::Activation activationOf(uint32_t activation) {
  switch (activation) {
    case MK_ACTIVATION_RELU:
      return protocol::Activation::relu;
    case MK_ACTIVATION_GELU:
      return protocol::Activation::gelu;
    case MK_ACTIVATION_SILU:
      return protocol::Activation::silu;
    default:
      return protocol::Activation::none;
  }
}

const char* activationName(protocol::Activation activation) {
  switch (activation) {
    case protocol::Activation::none:
      return "none";
    case protocol::Activation::relu:
      return "relu";
    case protocol::Activation::gelu:
      return "gelu";
    case protocol::Activation::silu:
      return "silu";
  }
  return "?";
}

void readBias(const Comm& comm, const GemmArgs& args, Gemm* gemm) {
  const mkTensor_t& bias = args.bias;
  if (bias.ndim == 0) return;
  requireReserved(bias, "bias");
  if (bias.ndim != 1) fail(mkErrorInvalidArgument, "bias.ndim is %u; legal: 0 (none) or 1", bias.ndim);
  requireType(bias.dtype, "bias", {args.c.dtype, mkFloat32});
  requireDim("bias", 0, bias.dims[0], "c.dims[1], N", gemm->c.cols);
  if (bias.strides[0] != 0 && bias.strides[0] != 1)
    fail(mkErrorInvalidArgument, "bias.strides[0] is %lld; legal: 0 or 1", ll(bias.strides[0]));
  Matrix m;
  locate(comm, bias, "bias", static_cast<uint64_t>(gemm->c.cols) * typeSize(bias.dtype), &m);
  gemm->bias = bias.dtype + 1;
  gemm->operands.bias = m.data;
  gemm->operands.biasType = engineType(bias.dtype);
}

uint32_t readWire(const GemmArgs& args) {
  if (args.wireDtypePlus1 == 0) return args.c.dtype;
  const uint32_t wire = args.wireDtypePlus1 - 1;
  if (wire != mkFloat32 && wire != args.c.dtype)
    fail(mkErrorInvalidArgument,
         "wireDtypePlus1 is %u; legal: 0 (the dtype of c), 1 + the dtype of c = %u, 1 + mkFloat32 = %u",
         args.wireDtypePlus1, args.c.dtype + 1, mkFloat32 + 1u);
  return wire;
}

// The rows of `shard`, the one matrix, are this rank's of those of the `whole` other.
void requireShard(const Comm& comm, const char* shard, const Matrix& s, const char* whole, const Matrix& w) {
  const auto ranks = comm.place().nodes * comm.place().locals;
  const sched::Shards shards = {static_cast<uint64_t>(w.rows), ranks};
  const uint64_t expected = shards.rows(comm.rank());
  if (static_cast<uint64_t>(s.rows) != expected)
    fail(mkErrorInvalidArgument,
         "%s.dims[0] is %lld; legal: the rows of rank %u of the %lld of %s, in shards of %llu = %llu", shard,
         ll(s.rows), comm.rank(), ll(w.rows), whole, static_cast<unsigned long long>(shards.height()),
         static_cast<unsigned long long>(expected));
}

}  // namespace

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

Gemm checkGemm(const Comm& comm, const GemmArgs& args, Rows rows) {
  Gemm g;
  protocol::GemmOperands& op = g.operands;
  requireType(args.a.dtype, "a", {mkBfloat16, mkFloat16});
  requireType(args.b.dtype, "b", {args.a.dtype});
  requireType(args.c.dtype, "c", {args.a.dtype, mkFloat32});
  const Matrix a = g.a = readMatrix(comm, args.a, "a");
  const Matrix b = g.b = readMatrix(comm, args.b, "b");
  const Matrix c = g.c = readMatrix(comm, args.c, "c");
  if (args.bLayout > MK_LAYOUT_NK)
    fail(mkErrorInvalidArgument, "bLayout is %u; legal: 0, MK_LAYOUT_KN (1), MK_LAYOUT_NK (2)", args.bLayout);
  op.bTransposed = args.bLayout == MK_LAYOUT_NK;
  const Matrix& whole = rows == Rows::shardC ? a : c;
  if (sched::alignUp(static_cast<uint64_t>(whole.rows), kMostTile) *
          sched::alignUp(static_cast<uint64_t>(c.cols), kMostTile) >
      kMostResult)
    fail(mkErrorInvalidArgument, "%s are %lld x %lld; legal: up to 2^44 elements in tiles of %u x %u",
         rows == Rows::shardC ? "M x N, of a and c," : "c.dims", ll(whole.rows), ll(c.cols), kMostTile, kMostTile);
  if (rows == Rows::whole) requireDim("a", 0, a.rows, "c.dims[0], M", c.rows);
  if (rows == Rows::shardC) requireShard(comm, "c", c, "a", a);
  if (rows == Rows::shardA) requireShard(comm, "a", a, "c", c);
  requireDim("b", op.bTransposed ? 0 : 1, op.bTransposed ? b.rows : b.cols, "c.dims[1], N", c.cols);
  requireDim("b", op.bTransposed ? 1 : 0, op.bTransposed ? b.cols : b.rows,
             rows == Rows::shardA ? "a.dims[1], K" : "a.dims[1], K of this rank", a.cols);
  if (args.gathered.ndim != 0) {
    requireType(args.gathered.dtype, "gathered", {args.a.dtype});
    const Matrix& all = g.gathered.emplace(readMatrix(comm, args.gathered, "gathered"));
    requireDim("gathered", 0, all.rows, "c.dims[0], M", c.rows);
    requireDim("gathered", 1, all.cols, "a.dims[1], K", a.cols);
  }
  readBias(comm, args, &g);
  if (args.activation > MK_ACTIVATION_SILU)
    fail(mkErrorInvalidArgument, "activation is %u; legal: 0 to %u (MK_ACTIVATION_...)", args.activation,
         MK_ACTIVATION_SILU);
  if (args.scaleA != nullptr || args.scaleB != nullptr)
    fail(mkErrorNotSupported, "%s is not NULL; supported by this version: NULL (there are no 8-bit inputs)",
         args.scaleA != nullptr ? "scaleA" : "scaleB");
  if (args.reserved0 != 0) fail(mkErrorVersion, "reserved0 is %u; legal: 0", args.reserved0);

  g.m = static_cast<uint64_t>(whole.rows);
  g.n = static_cast<uint64_t>(c.cols);
  g.in = args.a.dtype;
  g.out = args.c.dtype;
  g.wire = readWire(args);
  op.in = engineType(g.in);
  op.out = engineType(g.out);
  op.wire = engineType(g.wire);
  op.k = static_cast<uint64_t>(a.cols);
  op.a = a.data;
  op.aStride = a.stride;
  op.b = b.data;
  op.bStride = b.stride;
  op.c = c.data;
  op.cStride = c.stride;
  op.alpha = args.alpha != nullptr ? *args.alpha : 1.0f;
  op.beta = args.beta != nullptr ? *args.beta : 0.0f;
  op.activation = activationOf(args.activation);
  g.choice = readChoice(comm, args.name, args.tune, rows);
  return g;
}

void addGemm(sched::PlanHash* hash, const GemmArgs& args, const Gemm& gemm) {
  hash->add(static_cast<uint64_t>(args.op))
      .add(gemm.in)
      .add(gemm.out)
      .add(gemm.wire)
      .add(gemm.operands.bTransposed ? MK_LAYOUT_NK : MK_LAYOUT_KN)
      .add(std::bit_cast<uint32_t>(gemm.operands.alpha))
      .add(std::bit_cast<uint32_t>(gemm.operands.beta))
      .add(gemm.bias)
      .add(static_cast<uint64_t>(gemm.operands.activation));
}

void addWindow(sched::PlanHash* hash, const Matrix& m) {
  const bool windowed = m.window != nullptr;
  hash->add(windowed ? m.window->id : 0).add(windowed ? m.offset : 0).add(windowed ? m.stride : 0);
}

std::string describeGemm(const GemmArgs& args, const Gemm& gemm, const std::string& c, uint32_t tileM, uint32_t tileN) {
  const protocol::GemmOperands& op = gemm.operands;
  return format(
      "%s(M=%llu, N=%llu, a and b %s, B (%s), c %s in %s, wire %s, alpha=%g, beta=%g, bias %s, activation %s, tile "
      "%ux%u",
      args.name, static_cast<unsigned long long>(gemm.m), static_cast<unsigned long long>(gemm.n), typeName(gemm.in),
      op.bTransposed ? "N, K" : "K, N", typeName(gemm.out), c.c_str(), typeName(gemm.wire),
      static_cast<double>(op.alpha), static_cast<double>(op.beta), gemm.bias != 0 ? typeName(gemm.bias - 1) : "none",
      activationName(op.activation), tileM, tileN);
}

std::string describePlace(const Matrix& m) {
  if (m.window == nullptr) return "ordinary memory";
  return format("window %llu at offset %llu with row stride %llu", static_cast<unsigned long long>(m.window->id),
                static_cast<unsigned long long>(m.offset), static_cast<unsigned long long>(m.stride));
}

}  // namespace mk
