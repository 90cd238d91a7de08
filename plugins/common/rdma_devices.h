// RDMA devices through libibverbs: the ports that can be used, found by state and capability, and one of them opened.  What a
// transport asks of a device beside that is its own affair.  Linked into plugins that have a libibverbs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/rdma_path.h"
#include "common/verbs.h"

namespace mk::plugin {

// A port that can be used.
struct FoundPort {
  RdmaPort port;
  ibv_device_attr limits = {};
  ibv_port_attr state = {};
};

// Those of the ports that `hca` selects (see hca_filter.h) and that are up and have an address (see chooseGid).  unfit: "" or why
// the transport has no use for a device.  Why each of the others is not used goes to the log; throws Failure with all reasons if
// none is left.
std::vector<FoundPort> findPorts(const std::string& hca, int gidIndex,
                                 const std::function<std::string(ibv_device*)>& unfit);

// A port opened for one endpoint.
struct OpenPort {
  ContextPtr context;  // its events are read without blocking
  DomainPtr domain;
  ibv_port_attr state = {};
  GidEntry gid = {};

  PortAddress address() const;
};
// Throws Failure.
OpenPort openPort(const RdmaPort& port, int gidIndex);

}  // namespace mk::plugin
