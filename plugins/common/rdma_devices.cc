// See rdma_devices.h.
#include "common/rdma_devices.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "common/failure.h"
#include "common/hca_filter.h"

namespace mk::plugin {
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
  if (count < 0) failErrno(static_cast<int>(-count), format("the GIDs of %s", ibv_get_device_name(context->device)));
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

GidEntry gidOf(ibv_context* context, const ibv_port_attr& state, const RdmaPort& port, int requested) {
  return chooseGid(gidTable(context, port.port), state.link_layer == IBV_LINK_LAYER_ETHERNET, requested, port.name());
}

// "" or why the port is of no use.
std::string examine(ibv_context* context, int gidIndex, FoundPort* found) {
  ibv_port_attr& state = found->state;
  if (const int error = ibv_query_port(context, found->port.port, &state); error != 0)
    return std::string("cannot be queried: ") + std::strerror(error);
  if (state.state != IBV_PORT_ACTIVE) return std::string("its state is ") + ibv_port_state_str(state.state);
  if (state.link_layer != IBV_LINK_LAYER_ETHERNET && state.lid == 0 && (state.flags & IBV_QPF_GRH_REQUIRED) == 0)
    return "it has no LID yet";
  try {
    gidOf(context, state, found->port, gidIndex);
  } catch (const Failure& failure) {
    return failure.what();
  }
  found->port.bytesPerSecond = bytesPerSecond(state.active_width, state.active_speed);
  return "";
}

}  // namespace

std::vector<FoundPort> findPorts(const std::string& hca, int gidIndex,
                                 const std::function<std::string(ibv_device*)>& unfit) {
  const HcaFilter filter(hca);
  std::vector<FoundPort> ports;
  std::string reasons;
  const auto refuse = [&](const std::string& name, const std::string& why) {
    reasons += (reasons.empty() ? "" : "; ") + name + ": " + why;
    MK_PLUGIN_INFO("not used: %s: %s", name.c_str(), why.c_str());
  };
  int count = 0;
  const DeviceList list = listDevices(&count);
  for (int i = 0; i < count; ++i) {
    ibv_device* one = list[static_cast<size_t>(i)];
    const std::string name = ibv_get_device_name(one);
    if (const std::string why = unfit(one); !why.empty()) {
      refuse(name, why);
      continue;
    }
    const ContextPtr context(ibv_open_device(one));
    ibv_device_attr limits = {};
    int error = context == nullptr ? errno : 0;
    if (error == 0) error = ibv_query_device(context.get(), &limits);
    if (error != 0) {
      refuse(name, std::string("cannot be opened: ") + std::strerror(error));
      continue;
    }
    for (int port = 1; port <= limits.phys_port_cnt; ++port) {
      FoundPort found = {{name, static_cast<uint8_t>(port), pciBusIdOf(name), 0}, limits, {}};
      const std::string why = filter.selects(name, port) ? examine(context.get(), gidIndex, &found)
                                                         : "MKERNEL_IB_HCA=" + hca + " leaves it out";
      if (why.empty())
        ports.push_back(found);
      else
        refuse(found.port.name(), why);
    }
  }
  if (ports.empty())
    fail(mkErrorTransport, "no usable RDMA port: %s", reasons.empty() ? "there is no RDMA device" : reasons.c_str());
  return ports;
}

OpenPort openPort(const RdmaPort& port, int gidIndex) {
  OpenPort made;
  int count = 0;
  const DeviceList list = listDevices(&count);
  for (int i = 0; i < count && made.context == nullptr; ++i) {
    if (port.device != ibv_get_device_name(list[static_cast<size_t>(i)])) continue;
    made.context.reset(ibv_open_device(list[static_cast<size_t>(i)]));
    if (made.context == nullptr) failErrno(errno, "cannot open " + port.device);
  }
  if (made.context == nullptr) fail(mkErrorTransport, "device %s is gone", port.device.c_str());
  // Looked at in passing, so it must not block.
  const int flags = fcntl(made.context->async_fd, F_GETFL);
  if (flags < 0 || fcntl(made.context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    failErrno(errno, "cannot watch events of " + port.device);
  made.domain.reset(ibv_alloc_pd(made.context.get()));
  if (made.domain == nullptr) failErrno(errno, "no protection domain on " + port.device);
  if (const int error = ibv_query_port(made.context.get(), port.port, &made.state); error != 0)
    failErrno(error, "cannot query " + port.name());
  if (made.state.state != IBV_PORT_ACTIVE)
    fail(mkErrorTransport, "%s is not up: its state is %s", port.name().c_str(), ibv_port_state_str(made.state.state));
  made.gid = gidOf(made.context.get(), made.state, port, gidIndex);
  return made;
}

PortAddress OpenPort::address() const {
  PortAddress own = {};
  own.gid = gid.gid;
  own.lid = state.lid;
  own.ethernet = state.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
  own.gidKind = gid.kind;
  own.mtu = static_cast<uint8_t>(state.active_mtu);
  own.needGlobal = (state.flags & IBV_QPF_GRH_REQUIRED) != 0 ? 1 : 0;
  return own;
}

}  // namespace mk::plugin
