// Random words that name an endpoint, or prove that somebody has its address.
#pragma once

#include <array>
#include <cstdint>

namespace mk::plugin {

using Token = std::array<uint8_t, 16>;
// Throws Failure.
Token randomToken();

}  // namespace mk::plugin
