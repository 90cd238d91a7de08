// What one end of a connection has to know of a port, its own or a peer's, and what follows when two of them are to talk: the
// MTU and the route.  Pure functions; rdma_devices.h fills in the facts.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "common/rdma_port.h"
#include "common/rdma_settings.h"

namespace mk::plugin {

// Part of an endpoint's address, sent as it is.
struct PortAddress {
  Gid gid;
  uint16_t lid;
  uint8_t ethernet;  // 0: InfiniBand
  GidKind gidKind;
  uint8_t mtu;         // code of ibv_mtu, 1 to 5
  uint8_t needGlobal;  // packets without a global header do not leave this port
  uint8_t reserved[2];
};

// How two ports talk.
struct RdmaPath {
  ibv_mtu mtu;
  bool global;  // with a global header
};

std::string describe(const PortAddress& port);

// Throws Failure, naming both, if they cannot talk.
RdmaPath agree(const PortAddress& own, const PortAddress& peer);

// From a port, by its GID of that index.
ibv_ah_attr routeTo(const PortAddress& peer, bool global, uint8_t ownPort, int gidIndex, const RdmaSettings& settings);

int mtuBytes(uint8_t code);

}  // namespace mk::plugin
