// Exported functions of operations, and the streams of the CPU platform.
#include <memory>

#include "api/guard.h"
#include "emu/stream.h"
#include "host/op_ag_gemm.h"
#include "host/op_gemm_ar.h"
#include "host/op_gemm_rs.h"

namespace {

using namespace mk;

// Of any structure whose operation is a matrix product; what it has and another lacks is filled in by prepare().
template <class Args>
GemmArgs gemmArgs(int op, const char* name, const Args& from) {
  GemmArgs args;
  args.op = op;
  args.name = name;
  args.a = from.a;
  args.b = from.b;
  args.c = from.c;
  args.bias = from.bias;
  args.alpha = from.alpha;
  args.beta = from.beta;
  args.bLayout = from.bLayout;
  args.activation = from.activation;
  args.reserved0 = from.reserved0;
  args.scaleA = from.scaleA;
  args.scaleB = from.scaleB;
  if (from.tune != nullptr) args.tune = readStruct(from.tune, "args->tune");
  return args;
}

std::shared_ptr<const OpCall> prepare(const Comm& comm, int op, const void* user) {
  switch (op) {
    case MK_OP_GEMM_ALL_REDUCE: {
      const auto from = readStruct(static_cast<const mkGemmAllReduceArgs_t*>(user), "args");
      GemmArgs args = gemmArgs(op, "mkGemmAllReduce", from);
      args.wireDtypePlus1 = from.wireDtypePlus1;
      return prepareGemmAr(comm, args);
    }
    case MK_OP_GEMM_REDUCE_SCATTER: {
      const auto from = readStruct(static_cast<const mkGemmReduceScatterArgs_t*>(user), "args");
      GemmArgs args = gemmArgs(op, "mkGemmReduceScatter", from);
      args.wireDtypePlus1 = from.wireDtypePlus1;
      return prepareGemmRs(comm, args);
    }
    case MK_OP_ALL_GATHER_GEMM: {
      const auto from = readStruct(static_cast<const mkAllGatherGemmArgs_t*>(user), "args");
      GemmArgs args = gemmArgs(op, "mkAllGatherGemm", from);
      args.gathered = from.gathered;
      if (from.reserved1 != 0) fail(mkErrorVersion, "reserved1 is %u; legal: 0", from.reserved1);
      return prepareAgGemm(comm, args);
    }
    default:
      fail(mkErrorInvalidArgument,
           "op is %d; legal: MK_OP_GEMM_ALL_REDUCE (%d), MK_OP_GEMM_REDUCE_SCATTER (%d), MK_OP_ALL_GATHER_GEMM (%d)",
           op, MK_OP_GEMM_ALL_REDUCE, MK_OP_GEMM_REDUCE_SCATTER, MK_OP_ALL_GATHER_GEMM);
  }
}

// The exported function of this name.
mkResult_t enqueue(const char* name, int op, mkComm_t comm, const void* args, mkStream_t stream) {
  return guarded(name, [&] {
    const std::shared_ptr<Comm> c = Comm::find(comm);
    const BoundThread bound(c->platform());
    c->throwIfFailed();
    try {
      launch(*c, prepare(*c, op, args), stream);
    } catch (const Error& e) {
      if (c->asyncError() == mkSuccess) c->noteRejected(name, e.what());
      throw;
    }
  });
}

}  // namespace

extern "C" {

mkResult_t mkGemmAllReduce(mkComm_t comm, const mkGemmAllReduceArgs_t* args, mkStream_t stream) {
  return enqueue("mkGemmAllReduce", MK_OP_GEMM_ALL_REDUCE, comm, args, stream);
}

mkResult_t mkGemmReduceScatter(mkComm_t comm, const mkGemmReduceScatterArgs_t* args, mkStream_t stream) {
  return enqueue("mkGemmReduceScatter", MK_OP_GEMM_REDUCE_SCATTER, comm, args, stream);
}

mkResult_t mkAllGatherGemm(mkComm_t comm, const mkAllGatherGemmArgs_t* args, mkStream_t stream) {
  return enqueue("mkAllGatherGemm", MK_OP_ALL_GATHER_GEMM, comm, args, stream);
}

mkResult_t mkOpCheck(mkComm_t comm, int op, const void* args) {
  return guarded("mkOpCheck", [&] { prepare(*Comm::find(comm), op, args); });
}

mkResult_t mkOpWorkspaceSize(mkComm_t comm, int op, const void* args, size_t* bytes) {
  return guarded("mkOpWorkspaceSize", [&] {
    requirePointer(bytes, "bytes", "a pointer to a size_t");
    *bytes = prepare(*Comm::find(comm), op, args)->workspace();
  });
}

mkResult_t mkTuneQuery(mkComm_t comm, int op, const void* args, mkTune_t* tune) {
  return guarded("mkTuneQuery", [&] { writeStruct(tune, prepare(*Comm::find(comm), op, args)->tune(), "tune"); });
}

mkResult_t mkCpuStreamCreate(mkStream_t* stream) {
  return guarded("mkCpuStreamCreate", [&] {
    requirePointer(stream, "stream", "a pointer to an mkStream_t");
    *stream = nullptr;
    *stream = emu::createStream();
  });
}

mkResult_t mkCpuStreamSynchronize(mkStream_t stream) {
  return guarded("mkCpuStreamSynchronize", [&] {
    if (stream == nullptr) return;  // the NULL stream is always done
    const std::shared_ptr<emu::Stream> s = emu::findStream(stream);
    if (s == nullptr)
      fail(mkErrorInvalidArgument, "stream %p is not one of mkCpuStreamCreate in this process",
           static_cast<void*>(stream));
    s->synchronize();
  });
}

mkResult_t mkCpuStreamDestroy(mkStream_t stream) {
  return guarded("mkCpuStreamDestroy", [&] {
    if (stream != nullptr && !emu::destroyStream(stream))
      fail(mkErrorInvalidArgument, "stream %p is not one of mkCpuStreamCreate in this process",
           static_cast<void*>(stream));
  });
}

}  // extern "C"
