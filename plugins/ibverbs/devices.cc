// See devices.h.
#include "devices.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/failure.h"
#include "common/hca_filter.h"

namespace mk::plugin::ibverbs {
namespace {

struct ListDeleter {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};
using DeviceList = std::unique_ptr<ibv_device*[], ListDeleter>;

DeviceList listDevices(int* count) {
  *count = 0;
  DeviceList list(ibv_get_device_list(count));
  if (list == nullptr) {
    if (errno == ENOSYS || errno == ENOENT) return list;  // the kernel has no verbs at all
    failErrno(errno, "ibv_get_device_list");
  }
  return list;
}

std::vector<GidEntry> gidTable(ibv_context* context, uint8_t port) {
  std::vector<GidEntry> table;
  std::vector<ibv_gid_entry> raw(1024);
  const ssize_t count = ibv_query_gid_table(context, raw.data(), raw.size(), 0);
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& one = raw[static_cast<size_t>(i)];
    if (one.port_num != port) continue;
    GidEntry entry = {static_cast<int>(one.gid_index), {}, GidKind::infiniband};
    std::memcpy(entry.gid.data(), one.gid.raw, entry.gid.size());
    if (one.gid_type == IBV_GID_TYPE_ROCE_V1) entry.kind = GidKind::roceV1;
    if (one.gid_type == IBV_GID_TYPE_ROCE_V2) entry.kind = GidKind::roceV2;
    table.push_back(entry);
  }
  return table;
}

std::string pciBusIdOf(const std::string& device) {
  std::error_code error;
  const auto path = std::filesystem::canonical("/sys/class/infiniband/" + device + "/device", error);
  if (error) return "";
  const std::string last = path.filename().string();  // 0000:17:00.0
  return last.size() == 12 && std::count(last.begin(), last.end(), ':') == 2 ? last : "";
}

// "" or why the port is of no use.
std::string examine(ibv_context* context, const ibv_device_attr& limits, const Settings& settings, Device* device) {
  ibv_port_attr port = {};
  if (const int error = ibv_query_port(context, device->port, &port); error != 0)
    return std::string("cannot be queried: ") + std::strerror(error);
  if (port.state != IBV_PORT_ACTIVE) return std::string("its state is ") + ibv_port_state_str(port.state);
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (!ethernet && port.lid == 0 && (port.flags & IBV_QPF_GRH_REQUIRED) == 0) return "it has no LID yet";
  try {
    chooseGid(gidTable(context, device->port), ethernet, settings.gidIndex, device->name());
  } catch (const Failure& failure) {
    return failure.what();
  }
  device->bytesPerSecond = bytesPerSecond(port.active_width, port.active_speed);
  device->maxBytes = std::min<uint64_t>(port.max_msg_sz, uint64_t{1} << 30);
  device->maxRequests = limits.max_qp_wr;
  device->maxCompletions = limits.max_cqe;
  return "";
}

}  // namespace

std::vector<Device> findDevices(const Settings& settings, std::vector<std::string>* refused) {
  const HcaFilter filter(settings.hca);
  std::vector<Device> found;
  int count = 0;
  const DeviceList list = listDevices(&count);
  for (int i = 0; i < count; ++i) {
    ibv_device* one = list[static_cast<size_t>(i)];
    const std::string name = ibv_get_device_name(one);
    // Not InfiniBand's own semantics: iWARP connects by another way, others have no reliable connections.
    if (one->transport_type != IBV_TRANSPORT_IB) {
      refused->push_back(name + ": has no InfiniBand transport");
      continue;
    }
    const ContextPtr context(ibv_open_device(one));
    ibv_device_attr limits = {};
    int error = context == nullptr ? errno : 0;
    if (error == 0) error = ibv_query_device(context.get(), &limits);
    if (error != 0) {
      refused->push_back(name + ": cannot be opened: " + std::strerror(error));
      continue;
    }
    for (int port = 1; port <= limits.phys_port_cnt; ++port) {
      Device device;
      device.device = name;
      device.port = static_cast<uint8_t>(port);
      device.pciBusId = pciBusIdOf(name);
      const std::string why = filter.selects(name, port) ? examine(context.get(), limits, settings, &device)
                                                         : "MKERNEL_IB_HCA=" + settings.hca + " leaves it out";
      if (why.empty())
        found.push_back(device);
      else
        refused->push_back(device.name() + ": " + why);
    }
  }
  return found;
}

OpenDevice::OpenDevice(const Device& device, const Settings& settings) : info(device) {
  int count = 0;
  const DeviceList list = listDevices(&count);
  for (int i = 0; i < count && context == nullptr; ++i) {
    if (info.device != ibv_get_device_name(list[static_cast<size_t>(i)])) continue;
    context.reset(ibv_open_device(list[static_cast<size_t>(i)]));
    if (context == nullptr) failErrno(errno, "cannot open " + info.device);
  }
  if (context == nullptr) fail(mkErrorTransport, "device %s is gone", info.device.c_str());
  // Looked at in passing, so it must not block.
  const int flags = fcntl(context->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    failErrno(errno, "cannot watch events of " + info.device);
  domain.reset(ibv_alloc_pd(context.get()));
  if (domain == nullptr) failErrno(errno, "no protection domain on " + info.device);

  ibv_port_attr port = {};
  if (const int error = ibv_query_port(context.get(), info.port, &port); error != 0)
    failErrno(error, "cannot query " + info.name());
  if (port.state != IBV_PORT_ACTIVE)
    fail(mkErrorTransport, "%s is not up: its state is %s", info.name().c_str(), ibv_port_state_str(port.state));
  address.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
  const GidEntry gid =
      chooseGid(gidTable(context.get(), info.port), address.ethernet != 0, settings.gidIndex, info.name());
  gidIndex = gid.index;
  address.gid = gid.gid;
  address.gidKind = gid.kind;
  address.lid = port.lid;
  address.mtu = static_cast<uint8_t>(port.active_mtu);
  address.needGlobal = (port.flags & IBV_QPF_GRH_REQUIRED) != 0 ? 1 : 0;
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
    route.grh.sgid_index = static_cast<uint8_t>(device.gidIndex);
    route.grh.hop_limit = 64;
    route.grh.traffic_class = static_cast<uint8_t>(settings.trafficClass);
  }
  return route;
}

}  // namespace mk::plugin::ibverbs
