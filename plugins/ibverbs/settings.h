// The parameters MKERNEL_IB_..., read once when the plugin is initialised and checked there.
#pragma once

#include <cstdint>
#include <string>

#include "mkernel/transport.h"

namespace mk::plugin::ibverbs {

constexpr uint32_t kMaxConnections = 8;  // to one peer

struct Settings {
  std::string hca;             // see hca_filter.h
  int gidIndex = -1;           // -1: chosen, see rdma_port.h
  uint32_t connections = 2;    // to one peer; the ends take the smaller number
  uint32_t outstanding = 128;  // writes to one peer
  uint32_t timeout = 18;       // of an acknowledgement: 4.096 us * 2^timeout
  uint32_t retryCount = 6;     // not 7, which soft-RoCE takes for "for ever"
  uint32_t serviceLevel = 0, trafficClass = 0;
  bool relaxedOrdering = true;  // for payload; never for flags
};

// Values that the host does not know keep the defaults above.  Throws Failure naming the parameter, its value and what is
// legal.
Settings readSettings(const mkTransportHost_t& host);

// How long a connection goes on without an acknowledgement, at least, in milliseconds.
uint64_t patienceMs(const Settings& settings);

}  // namespace mk::plugin::ibverbs
