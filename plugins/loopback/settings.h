// The parameters MKERNEL_LOOPBACK_..., read once when the plugin is initialised and checked there.
#pragma once

#include <cstdint>

#include "mkernel/transport.h"

namespace mk::plugin::loopback {

struct Settings {
  uint32_t contract = MK_CONTRACT_ORDERED;
  double gigabytesPerSecond = 0;  // of an endpoint; 0: no limit
  double latencyUs = 0, jitterUs = 0;
  double reorder = 0, repeat = 0;        // shares of writes
  int64_t failAfter = 0, dropAfter = 0;  // writes of an endpoint; 0: never
  uint32_t outstanding = 128;            // writes to one peer
  uint64_t seed = 1;
};

// Values that the host does not know keep the defaults above.  Throws Failure naming the parameter, its value and what is
// legal.
Settings readSettings(const mkTransportHost_t& host);

}  // namespace mk::plugin::loopback
