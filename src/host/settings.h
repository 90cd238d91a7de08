// A communicator's settings: mkConfig_t over the parameters.
#pragma once

#include <cstdint>
#include <string>

#include "mkernel.h"

namespace mk {

struct Settings {
  std::string platform, hostId, transport;
  uint64_t heapBytes = 0, heapMaxBytes = 0, ringSlots = 0, epochStart = 0;
  int timeoutMs = 0, initTimeoutMs = 0, teardownTimeoutMs = 0;
  uint32_t agents = 0;  // CPU platform: what an operation is spread over, maxSMs at most
  uint32_t maxSMs = 0;  // at most, in SMs or agents: an operation that needs more is refused; 0: all

  // Lines name=value that must be the same on all ranks.
  std::string agreed() const;
};

// The platform to use: `wanted`, else MKERNEL_PLATFORM, else cuda where the current device can be used, else cpu.
std::string choosePlatform(const std::string& wanted);

// Throws mkErrorInvalidArgument or mkErrorNotSupported, naming the field or parameter, its value and what is legal.
Settings makeSettings(const mkConfig_t& config);

}  // namespace mk
