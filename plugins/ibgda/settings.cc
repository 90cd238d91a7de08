// See settings.h.
#include "settings.h"

#include "common/failure.h"
#include "common/params.h"

namespace mk::plugin::ibgda {

Settings readSettings(const mkTransportHost_t& host) {
  Settings s{readRdmaSettings(host)};
  readInto(host, "MKERNEL_IBGDA_PEERS", 2, kMostPeers, &s.peers);
  readInto(host, "MKERNEL_IBGDA_ENTRIES", 16, 4096, &s.entries);
  if ((s.entries & (s.entries - 1)) != 0)
    fail(mkErrorInvalidArgument, "MKERNEL_IBGDA_ENTRIES=%u: must be a power of two from 16 to 4096", s.entries);
  return s;
}

}  // namespace mk::plugin::ibgda
