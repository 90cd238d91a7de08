// The server of a bootstrap: a listening socket and a thread for one unique id, in the process that made it.  It ends by
// itself once all ranks have left or died, or if none comes.  Started by Bootstrap::createId.
#pragma once

#include <cstdint>
#include <string>

#include "host/unique_id.h"

namespace mk {

struct HubOptions {
  std::string interfaces, family;  // as MKERNEL_SOCKET_IFNAME and MKERNEL_SOCKET_FAMILY
  int64_t initTimeoutMs = 120000;  // for the first rank to come
  // Connections that have not shown the secret: how long one may take, and how many there may be.
  int strangerMs = 3000;
  size_t maxStrangers = 128;
};

// Throws Error.
mkUniqueId_t startHub(const HubOptions& options);

// Whether the hub with this secret runs in this process.  Any thread.
bool hubRunsHere(const Secret& secret);
// Joins the threads of hubs that have ended, and returns how many run.  Any thread.
int reapHubs();
// Ends all hubs of this process at once; at the process's end, and for tests.
void stopHubs();

// The host's name, for messages.
std::string hostName();

}  // namespace mk
