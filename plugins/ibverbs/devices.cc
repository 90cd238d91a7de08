// See devices.h.
#include "devices.h"

#include <algorithm>
#include <cstring>

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
    : OpenPort(openPort(device, settings.gidIndex)), info(device) {
  address.ethernet = state.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
  address.gid = gid.gid;
  address.gidKind = gid.kind;
  address.lid = state.lid;
  address.mtu = static_cast<uint8_t>(state.active_mtu);
  address.needGlobal = (state.flags & IBV_QPF_GRH_REQUIRED) != 0 ? 1 : 0;
  address.connections = static_cast<uint8_t>(settings.connections);
}

ibv_ah_attr routeTo(const OpenDevice& device, const PortAddress& peer, bool global, const Settings& settings) {
  ibv_ah_attr route = {};
  route.dlid = peer.lid;
  route.sl = static_cast<uint8_t>(settings.serviceLevel);
  route.port_num = device.info.port;
  route.is_global = global ? 1 : 0;
  if (global) {
    std::memcpy(route.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    route.grh.sgid_index = static_cast<uint8_t>(device.gid.index);
    route.grh.hop_limit = 64;
    route.grh.traffic_class = static_cast<uint8_t>(settings.trafficClass);
  }
  return route;
}

}  // namespace mk::plugin::ibverbs
