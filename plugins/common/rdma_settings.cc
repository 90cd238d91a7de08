// See rdma_settings.h.
#include "common/rdma_settings.h"

#include "common/failure.h"
#include "common/params.h"

namespace mk::plugin {

RdmaSettings readRdmaSettings(const mkTransportHost_t& host) {
  RdmaSettings settings;
  settings.hca = readText(host, "MKERNEL_IB_HCA", settings.hca);
  readInto(host, "MKERNEL_IB_GID_INDEX", -1, 255, &settings.gidIndex);
  readInto(host, "MKERNEL_IB_TIMEOUT", 8, 22, &settings.timeout);
  readInto(host, "MKERNEL_IB_RETRY_COUNT", 0, 6, &settings.retryCount);
  readInto(host, "MKERNEL_IB_SL", 0, 15, &settings.serviceLevel);
  readInto(host, "MKERNEL_IB_TC", 0, 255, &settings.trafficClass);
  return settings;
}

std::string patienceText(const RdmaSettings& settings) {
  const uint64_t ms = (uint64_t{4096} << settings.timeout) * (settings.retryCount + 1) / 1'000'000;
  return format("no acknowledgement for %llu ms or more (MKERNEL_IB_TIMEOUT=%u, MKERNEL_IB_RETRY_COUNT=%u)",
                static_cast<unsigned long long>(ms), settings.timeout, settings.retryCount);
}

}  // namespace mk::plugin
