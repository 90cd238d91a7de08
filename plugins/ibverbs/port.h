// What one end of a connection has to know of a port, its own or a peer's, and what follows when two of them are to talk:
// the MTU, the kind of path.  Pure functions; devices.cc fills in the facts.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "common/rdma_port.h"

namespace mk::plugin::ibverbs {

// Part of an endpoint's address, sent as it is.
struct PortAddress {
  Gid gid;
  uint16_t lid;
  uint8_t ethernet;  // 0: InfiniBand
  GidKind gidKind;
  uint8_t mtu;         // code of ibv_mtu, 1 to 5
  uint8_t needGlobal;  // packets without a global header do not leave this port
  uint8_t connections;
  uint8_t reserved;
};

// How two ports talk.
struct Path {
  ibv_mtu mtu;
  bool global;  // with a global header
  uint32_t connections;
};

std::string describe(const PortAddress& port);

// Throws Failure, naming both, if they cannot talk.
Path agree(const PortAddress& own, const PortAddress& peer);

int mtuBytes(uint8_t code);

}  // namespace mk::plugin::ibverbs
