// See settings.h.
#include "settings.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "failure.h"

namespace mk::ibverbs {
namespace {

const char* valueOf(const mkTransportHost_t& host, const char* name) {
  return host.param != nullptr ? host.param(name) : nullptr;
}

template <typename T>
void readInteger(const mkTransportHost_t& host, const char* name, long long least, long long most, T& value) {
  const char* text = valueOf(host, name);
  if (text == nullptr) return;
  char* end = nullptr;
  errno = 0;
  const long long read = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || read < least || read > most)
    fail(mkErrorInvalidArgument, "%s=%s: must be an integer from %lld to %lld", name, text, least, most);
  value = static_cast<T>(read);
}

}  // namespace

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings;
  if (const char* hca = valueOf(host, "MKERNEL_IB_HCA")) settings.hca = hca;
  readInteger(host, "MKERNEL_IB_GID_INDEX", -1, 255, settings.gidIndex);
  readInteger(host, "MKERNEL_IB_CONNECTIONS", 1, kMaxConnections, settings.connections);
  readInteger(host, "MKERNEL_IB_OUTSTANDING", 1, 4096, settings.outstanding);
  readInteger(host, "MKERNEL_IB_TIMEOUT", 8, 22, settings.timeout);
  readInteger(host, "MKERNEL_IB_RETRY_COUNT", 0, 6, settings.retryCount);
  readInteger(host, "MKERNEL_IB_SL", 0, 15, settings.serviceLevel);
  readInteger(host, "MKERNEL_IB_TC", 0, 255, settings.trafficClass);
  readInteger(host, "MKERNEL_IB_RELAXED_ORDERING", 0, 1, settings.relaxedOrdering);
  return settings;
}

uint64_t patienceMs(const Settings& settings) {
  return (uint64_t{4096} << settings.timeout) * (settings.retryCount + 1) / 1'000'000;
}

}  // namespace mk::ibverbs
