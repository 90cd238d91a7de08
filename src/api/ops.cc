// Exported functions of operations, and the streams of the CPU platform.
#include <optional>

#include "api/guard.h"
#include "emu/stream.h"
#include "host/op_gemm_ar.h"

namespace {

using namespace mk;

GemmArCall prepare(const Comm& comm, const mkGemmAllReduceArgs_t* user) {
  const auto args = readStruct(user, "args");
  std::optional<mkTune_t> tune;
  if (args.tune != nullptr) tune = readStruct(args.tune, "args->tune");
  return prepareGemmAr(comm, args, tune ? &*tune : nullptr);
}

GemmArCall prepareAny(const Comm& comm, int op, const void* args) {
  if (op != MK_OP_GEMM_ALL_REDUCE)
    fail(mkErrorInvalidArgument, "op is %d; legal: MK_OP_GEMM_ALL_REDUCE (%d)", op, MK_OP_GEMM_ALL_REDUCE);
  return prepare(comm, static_cast<const mkGemmAllReduceArgs_t*>(args));
}

}  // namespace

extern "C" {

mkResult_t mkGemmAllReduce(mkComm_t comm, const mkGemmAllReduceArgs_t* args, mkStream_t stream) {
  return guarded("mkGemmAllReduce", [&] {
    const std::shared_ptr<Comm> c = Comm::find(comm);
    const BoundThread bound(c->platform());
    c->throwIfFailed();
    try {
      launchGemmAr(*c, prepare(*c, args), stream);
    } catch (const Error& e) {
      if (c->asyncError() == mkSuccess) c->noteRejected("mkGemmAllReduce", e.what());
      throw;
    }
  });
}

mkResult_t mkOpCheck(mkComm_t comm, int op, const void* args) {
  return guarded("mkOpCheck", [&] { prepareAny(*Comm::find(comm), op, args); });
}

mkResult_t mkOpWorkspaceSize(mkComm_t comm, int op, const void* args, size_t* bytes) {
  return guarded("mkOpWorkspaceSize", [&] {
    requirePointer(bytes, "bytes", "a pointer to a size_t");
    *bytes = prepareAny(*Comm::find(comm), op, args).plan.workspace();
  });
}

mkResult_t mkTuneQuery(mkComm_t comm, int op, const void* args, mkTune_t* tune) {
  return guarded("mkTuneQuery",
                 [&] { writeStruct(tune, describeTune(prepareAny(*Comm::find(comm), op, args)), "tune"); });
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
