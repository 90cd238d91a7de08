// See devices.h.
#include "devices.h"

#include <algorithm>

namespace mk::plugin::ibverbs {

std::vector<Device> findDevices(const Settings& settings) {
  // Not InfiniBand's own semantics: iWARP connects by another way, others have no reliable connections.
  const auto unfit = [](ibv_device* device) {
    return device->transport_type == IBV_TRANSPORT_IB ? "" : "has no InfiniBand transport";
  };
  std::vector<Device> devices;
  for (const FoundPort& found : findPorts(settings.hca, settings.gidIndex, unfit))
    devices.push_back({found.port, std::min<uint64_t>(found.state.max_msg_sz, uint64_t{1} << 30),
                       found.limits.max_qp_wr, found.limits.max_cqe});
  return devices;
}

OpenDevice::OpenDevice(const Device& device, const Settings& settings)
    : OpenPort(openPort(device, settings.gidIndex)), info(device) {}

}  // namespace mk::plugin::ibverbs
