#include "host/op_call.h"

#include <utility>

#include "host/comm.h"
#include "host/error.h"

namespace mk {

void launch(Comm& comm, std::shared_ptr<const OpCall> call, mkStream_t stream) {
  if (call->workspace() > comm.workspace())
    fail(mkErrorNotReserved,
         "the operation needs a workspace of %llu bytes, %llu are reserved; call mkCommReserve on all ranks",
         static_cast<unsigned long long>(call->workspace()), static_cast<unsigned long long>(comm.workspace()));
  Comm::Operation op;
  op.name = call->name;
  op.hash = call->hash;
  op.text = call->text;
  op.run = [stream, call = std::move(call)](Platform& platform) { return call->run(platform, stream); };
  comm.launch(std::move(op), stream);
}

}  // namespace mk
