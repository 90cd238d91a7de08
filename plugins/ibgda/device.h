// The ports of mlx5 cards that can be used, found by driver and state rather than by name, and one of them opened.  Called by
// plugin.cc and the endpoint.
#pragma once

#include <infiniband/mlx5dv.h>

#include <vector>

#include "common/rdma_devices.h"
#include "settings.h"

namespace mk::plugin::ibgda {

// Throws Failure if there is none.
std::vector<RdmaPort> findDevices(const Settings& settings);

// A device opened for one endpoint.
struct OpenDevice : OpenPort {
  OpenDevice(const RdmaPort& port, const Settings& settings);

  RdmaPort info;
};

}  // namespace mk::plugin::ibgda
