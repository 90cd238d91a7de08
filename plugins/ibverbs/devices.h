// The ports that can be used, found by state and capability, and one of them opened.  Called by plugin.cc and the endpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "port.h"
#include "settings.h"
#include "verbs.h"

namespace mk::plugin::ibverbs {

// A usable port of a device.
struct Device {
  std::string device;  // as verbs calls it
  uint8_t port = 1;
  std::string pciBusId;  // "" if none
  uint64_t bytesPerSecond = 0;
  uint64_t maxBytes = 0;   // of one message
  int maxRequests = 0;     // of one queue pair
  int maxCompletions = 0;  // of one completion queue

  std::string name() const { return device + ":" + std::to_string(port); }
};

// Those that MKERNEL_IB_HCA selects, that are up and that have what is needed.  Why each of the others is not used goes into
// *refused, one clause each.
std::vector<Device> findDevices(const Settings& settings, std::vector<std::string>* refused);

// A device opened for one endpoint.  Throws Failure.
struct OpenDevice {
  OpenDevice(const Device& device, const Settings& settings);

  Device info;
  ContextPtr context;
  DomainPtr domain;
  PortAddress address = {};
  int gidIndex = 0;
};

// Fills in everything but GRH and LID questions that depend on who is talked to.
ibv_ah_attr routeTo(const OpenDevice& device, const PortAddress& peer, bool global, const Settings& settings);

}  // namespace mk::plugin::ibverbs
