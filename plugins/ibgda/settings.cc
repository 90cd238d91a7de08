// See settings.h.
#include "settings.h"

#include <cerrno>
#include <cstdlib>

#include "failure.h"

namespace mk::ibgda {
namespace {

const char* valueOf(const mkTransportHost_t& host, const char* name) {
  return host.param != nullptr ? host.param(name) : nullptr;
}

long readInteger(const mkTransportHost_t& host, const char* name, long least, long most, long value) {
  const char* text = valueOf(host, name);
  if (text == nullptr) return value;
  char* end = nullptr;
  errno = 0;
  const long read = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || read < least || read > most)
    fail(mkErrorInvalidArgument, "%s=%s: must be an integer from %ld to %ld", name, text, least, most);
  return read;
}

}  // namespace

Settings readSettings(const mkTransportHost_t& host) {
  Settings s;
  if (const char* hca = valueOf(host, "MKERNEL_IB_HCA")) s.hca = hca;
  s.gidIndex = static_cast<int>(readInteger(host, "MKERNEL_IB_GID_INDEX", -1, 255, s.gidIndex));
  s.peers = static_cast<uint32_t>(readInteger(host, "MKERNEL_IBGDA_PEERS", 2, kMostPeers, s.peers));
  s.entries = static_cast<uint32_t>(readInteger(host, "MKERNEL_IBGDA_ENTRIES", 16, 4096, s.entries));
  if ((s.entries & (s.entries - 1)) != 0)
    fail(mkErrorInvalidArgument, "MKERNEL_IBGDA_ENTRIES=%u: must be a power of two from 16 to 4096", s.entries);
  return s;
}

}  // namespace mk::ibgda
