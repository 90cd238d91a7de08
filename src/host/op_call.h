// One call of an operation after its arguments have been checked: what mkOpCheck and its kin ask of it, and its launch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "host/platform.h"
#include "mkernel.h"

namespace mk {

class Comm;

struct OpCall {
  virtual ~OpCall() = default;
  virtual uint64_t workspace() const = 0;
  // The choices made, for mkTuneQuery.
  virtual mkTune_t tune() const = 0;
  virtual protocol::FailRecord run(Platform& platform, mkStream_t stream) const = 0;

  const char* name = "";  // of the exported function
  uint32_t hash = 0;      // of the plan and everything else that must agree
  std::string text;       // the arguments, for errors that compare ranks
  uint32_t minSMs = 0;
};

// Launches; throws mkErrorNotReserved if the heap is too small.
void launch(Comm& comm, std::shared_ptr<const OpCall> call, mkStream_t stream);

}  // namespace mk
