// See settings.h.
#include "settings.h"

#include "common/params.h"

namespace mk::plugin::ibverbs {

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings{readRdmaSettings(host)};
  readInto(host, "MKERNEL_IB_CONNECTIONS", 1, kMaxConnections, &settings.connections);
  readInto(host, "MKERNEL_IB_OUTSTANDING", 1, 4096, &settings.outstanding);
  readInto(host, "MKERNEL_IB_RELAXED_ORDERING", 0, 1, &settings.relaxedOrdering);
  return settings;
}

}  // namespace mk::plugin::ibverbs
