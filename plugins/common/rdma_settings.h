// The parameters MKERNEL_IB_... that every transport over RDMA devices obeys: which ports it uses, and how its connections
// travel and persist.
#pragma once

#include <cstdint>
#include <string>

#include "mkernel/transport.h"

namespace mk::plugin {

struct RdmaSettings {
  std::string hca;            // MKERNEL_IB_HCA, see hca_filter.h
  int gidIndex = -1;          // MKERNEL_IB_GID_INDEX; -1: chosen, see rdma_port.h
  uint32_t timeout = 18;      // MKERNEL_IB_TIMEOUT, of an acknowledgement: 4.096 us * 2^timeout
  uint32_t retryCount = 6;    // MKERNEL_IB_RETRY_COUNT; not 7, which soft-RoCE takes for "for ever"
  uint32_t serviceLevel = 0;  // MKERNEL_IB_SL
  uint32_t trafficClass = 0;  // MKERNEL_IB_TC, of the global header
};

// Values that the host does not know keep the defaults above.  Throws Failure naming the parameter, its value and what is
// legal.
RdmaSettings readRdmaSettings(const mkTransportHost_t& host);

// What it means that a connection has given up waiting: "no acknowledgement for 7516 ms or more (MKERNEL_IB_TIMEOUT=18, ...)".
std::string patienceText(const RdmaSettings& settings);

}  // namespace mk::plugin
