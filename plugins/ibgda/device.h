// The ports of mlx5 cards that can be used, found by driver and state rather than by name, and one of them opened.  Called by
// plugin.cc and the endpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "settings.h"
#include "verbs.h"

namespace mk::plugin::ibgda {

struct Device {
  std::string device;  // as verbs calls it
  uint8_t port = 1;
  std::string pciBusId;  // "" if none
  uint64_t bytesPerSecond = 0;

  std::string name() const { return device + ":" + std::to_string(port); }
};

// Those that MKERNEL_IB_HCA selects and that are up.  Why each of the others is not used goes into *refused.
std::vector<Device> findDevices(const Settings& settings, std::string* refused);

// What a peer has to know of a port; part of an endpoint's address, sent as it is.
struct PortAddress {
  uint8_t gid[16];
  uint16_t lid;
  uint8_t ethernet;  // 0: InfiniBand
  uint8_t mtu;       // code of ibv_mtu
};

// A device opened for one endpoint.
struct OpenDevice {
  OpenDevice(const Device& device, const Settings& settings);

  Device info;
  ContextPtr context;
  DomainPtr domain;
  PortAddress address = {};
  int gidIndex = 0;
};

}  // namespace mk::plugin::ibgda
