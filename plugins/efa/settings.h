// The parameters MKERNEL_EFA_..., read once when the plugin is initialised and checked there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mkernel/transport.h"

namespace mk::plugin::efa {

struct Settings {
  std::string provider = "efa";
  std::vector<std::string> domains;        // names of those used; empty: all
  std::string library = "libfabric.so.1";  // loaded when the plugin is initialised
  uint32_t outstanding = 128;              // writes to one peer
  int64_t teardownMs = 5000;               // for writes under way and for peers, when an endpoint closes
};

// Values that the host does not know keep the defaults above.  Throws Failure naming the parameter, its value and what is
// legal.
Settings readSettings(const mkTransportHost_t& host);

}  // namespace mk::plugin::efa
