// What one end of a connection has to know of a port, its own or a peer's, and what follows when two of them are to talk:
// the choice of a GID, the MTU, the kind of path.  Pure functions; devices.cc fills in the facts.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mk::plugin::ibverbs {

using Gid = std::array<uint8_t, 16>;

enum class GidKind : uint8_t { infiniband = 0, roceV1 = 1, roceV2 = 2 };

// An entry of a port's table.
struct GidEntry {
  int index;
  Gid gid;
  GidKind kind;
};

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

// "10.0.0.1" for an IPv4 one, else as IPv6.
std::string gidText(const Gid& gid);
std::string describe(const PortAddress& port);

// requested -1: on Ethernet RoCE v2 before v1, and routable addresses before those of the link, IPv4 before IPv6; on
// InfiniBand the first.  Throws Failure, naming `port`, if there is none, or none with the requested index.
GidEntry chooseGid(const std::vector<GidEntry>& table, bool ethernet, int requested, const std::string& port);

// Throws Failure, naming both, if they cannot talk.
Path agree(const PortAddress& own, const PortAddress& peer);

// From the codes of ibv_port_attr; 0: unknown.
uint64_t bytesPerSecond(uint8_t width, uint8_t speed);
int mtuBytes(uint8_t code);

}  // namespace mk::plugin::ibverbs
