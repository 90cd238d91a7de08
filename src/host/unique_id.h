// What the 128 bytes of mkUniqueId_t say: where the hub listens, and the secret that proves membership.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "host/socket.h"
#include "mkernel.h"

namespace mk {

using Secret = std::array<uint8_t, 16>;

struct HubPlace {
  Secret secret = {};
  Address address;
};

// From getrandom.  Throws Error(mkErrorSystem).
Secret randomSecret();
// In a time that does not depend on where they differ.
bool sameSecret(std::span<const uint8_t> a, const Secret& b);

mkUniqueId_t encodeUniqueId(const HubPlace& place);
// Throws Error: mkErrorInvalidArgument for bytes that mkGetUniqueId did not write, mkErrorVersion for another format.
HubPlace decodeUniqueId(const mkUniqueId_t& id);

}  // namespace mk
