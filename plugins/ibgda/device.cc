// See device.h.
#include "device.h"

namespace mk::plugin::ibgda {

std::vector<RdmaPort> findDevices(const Settings& settings) {
  const auto unfit = [](ibv_device* device) { return mlx5dv_is_supported(device) ? "" : "is not driven by mlx5"; };
  std::vector<RdmaPort> ports;
  for (const FoundPort& found : findPorts(settings.hca, settings.gidIndex, unfit)) ports.push_back(found.port);
  return ports;
}

OpenDevice::OpenDevice(const RdmaPort& port, const Settings& settings)
    : OpenPort(openPort(port, settings.gidIndex)), info(port) {}

}  // namespace mk::plugin::ibgda
