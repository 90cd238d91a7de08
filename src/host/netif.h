// Which network interface the bootstrap listens on: MKERNEL_SOCKET_IFNAME and MKERNEL_SOCKET_FAMILY, in NCCL's syntax.
#pragma once

#include <string>
#include <vector>

#include "host/socket.h"

namespace mk {

struct Interface {
  std::string name;
  Address address;  // port 0
  bool loopback = false;
};

// Addresses of the interfaces that are up, in the system's order.  Throws Error(mkErrorSystem).
std::vector<Interface> listInterfaces();

// names: comma list of prefixes, "=" in front: exact names, "^" in front (also "^="): all but these; "": all but docker*.
// family: "inet", "inet6", or "" for either.  The first that fits, but loopback and then link-local addresses only where
// there is nothing else.  Throws Error(mkErrorInvalidUsage), with what there is.
const Interface& chooseInterface(const std::vector<Interface>& interfaces, const std::string& names,
                                 const std::string& family);

}  // namespace mk
