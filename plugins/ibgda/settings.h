// The parameters of the plugin, read once when it is initialised and checked there.
#pragma once

#include <cstdint>

#include "common/rdma_settings.h"

namespace mk::plugin::ibgda {

constexpr uint32_t kMostPeers = 48;  // as many queue pair numbers as an address has room for

struct Settings : RdmaSettings {
  uint32_t peers = 16;      // MKERNEL_IBGDA_PEERS: queue pairs made before it is known who connects
  uint32_t entries = 1024;  // MKERNEL_IBGDA_ENTRIES: basic blocks of a queue
};

// Values that the host does not know keep the defaults above.  Throws Failure naming the parameter, its value and what is
// legal.
Settings readSettings(const mkTransportHost_t& host);

}  // namespace mk::plugin::ibgda
