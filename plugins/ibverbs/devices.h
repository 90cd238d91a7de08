// The ports that can be used, and one of them opened: what this transport has to know beside common/rdma_devices.h.  Called by
// plugin.cc and the endpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "common/rdma_devices.h"
#include "settings.h"

namespace mk::plugin::ibverbs {

// A usable port of a device.
struct Device : RdmaPort {
  uint64_t maxBytes = 0;   // of one message
  int maxRequests = 0;     // of one queue pair
  int maxCompletions = 0;  // of one completion queue
};

// Throws Failure if there is none.
std::vector<Device> findDevices(const Settings& settings);

// A device opened for one endpoint.  Throws Failure.
struct OpenDevice : OpenPort {
  OpenDevice(const Device& device, const Settings& settings);

  // In the way that they have agreed on.
  ibv_ah_attr routeTo(const PortAddress& peer, bool global, const Settings& settings) const {
    return plugin::routeTo(peer, global, info.port, gid.index, settings);
  }

  Device info;
};

}  // namespace mk::plugin::ibverbs
