// How a rank reaches the hub and joins: connecting, saying hello, waiting for the welcome, all by one deadline.  Called by
// bootstrap.cc, in the user's thread.
#pragma once

#include "host/wire.h"

namespace mk {

struct JoinedHub {
  FramedSocket socket;
  Welcome welcome;
};

// Throws Error: the hub's own, or that the hub at the id's address cannot be reached.
JoinedHub joinHub(const HubPlace& place, Hello hello, int timeoutMs);

}  // namespace mk
