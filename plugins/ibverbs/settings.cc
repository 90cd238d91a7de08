// See settings.h.
#include "settings.h"

#include <type_traits>

#include "common/params.h"

namespace mk::plugin::ibverbs {

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings;
  settings.hca = readText(host, "MKERNEL_IB_HCA", settings.hca);
  const auto read = [&host](const char* name, long long least, long long most, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(readInteger(host, name, least, most, value));
  };
  read("MKERNEL_IB_GID_INDEX", -1, 255, settings.gidIndex);
  read("MKERNEL_IB_CONNECTIONS", 1, kMaxConnections, settings.connections);
  read("MKERNEL_IB_OUTSTANDING", 1, 4096, settings.outstanding);
  read("MKERNEL_IB_TIMEOUT", 8, 22, settings.timeout);
  read("MKERNEL_IB_RETRY_COUNT", 0, 6, settings.retryCount);
  read("MKERNEL_IB_SL", 0, 15, settings.serviceLevel);
  read("MKERNEL_IB_TC", 0, 255, settings.trafficClass);
  read("MKERNEL_IB_RELAXED_ORDERING", 0, 1, settings.relaxedOrdering);
  return settings;
}

uint64_t patienceMs(const Settings& settings) {
  return (uint64_t{4096} << settings.timeout) * (settings.retryCount + 1) / 1'000'000;
}

}  // namespace mk::plugin::ibverbs
