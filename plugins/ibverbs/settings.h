// The parameters MKERNEL_IB_... (those common to RDMA transports: common/rdma_settings.h), read once when the plugin is
// initialised and checked there.
#pragma once

#include <cstdint>

#include "common/rdma_settings.h"

namespace mk::plugin::ibverbs {

constexpr uint32_t kMaxConnections = 8;  // to one peer

struct Settings : RdmaSettings {
  uint32_t connections = 2;     // to one peer; the ends take the smaller number
  uint32_t outstanding = 128;   // writes to one peer
  bool relaxedOrdering = true;  // for payload; never for flags
};

// Values that the host does not know keep the defaults above.  Throws Failure naming the parameter, its value and what is
// legal.
Settings readSettings(const mkTransportHost_t& host);

}  // namespace mk::plugin::ibverbs
