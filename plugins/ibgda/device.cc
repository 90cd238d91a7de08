// See device.h.
#include "device.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/failure.h"
#include "common/hca_filter.h"

namespace mk::plugin::ibgda {
namespace {

uint64_t bandwidth(const ibv_port_attr& port) {
  static constexpr struct {
    uint8_t code;
    double gigabits;  // of one lane, data
  } kSpeeds[] = {{1, 2}, {2, 4}, {4, 8}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  const uint32_t lanes = port.active_width == 1    ? 1
                         : port.active_width == 2  ? 4
                         : port.active_width == 4  ? 8
                         : port.active_width == 8  ? 12
                         : port.active_width == 16 ? 2
                                                   : 0;
  for (const auto& speed : kSpeeds)
    if (speed.code == port.active_speed) return static_cast<uint64_t>(speed.gigabits * lanes * 1e9 / 8);
  return 0;
}

std::string pciOf(const char* device) {
  char target[512];
  const std::string link = std::string("/sys/class/infiniband/") + device + "/device";
  const ssize_t length = readlink(link.c_str(), target, sizeof(target) - 1);
  if (length <= 0) return "";
  target[length] = '\0';
  const char* const slash = std::strrchr(target, '/');
  const std::string id = slash != nullptr ? slash + 1 : target;
  return id.size() < sizeof(mkTransportDevice_t::pciBusId) ? id : "";
}

// Where two ports of different networks may meet, a packet must be routable: RoCE v2 before v1, and addresses that are not
// bound to the link first, IPv4 before IPv6.
int rank(const ibv_gid_entry& entry) {
  const auto* b = entry.gid.raw;
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool ipv4 = std::memcmp(b, kMapped, sizeof(kMapped)) == 0;
  const bool ofLink = b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
  return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 4 : 0) + (ofLink ? 0 : 2) + (ipv4 ? 1 : 0);
}

bool isZero(const ibv_gid& gid) { return gid.global.subnet_prefix == 0 && gid.global.interface_id == 0; }

ibv_gid_entry chooseGid(ibv_context* context, const Device& device, const ibv_port_attr& port, int requested) {
  ibv_gid_entry best = {};
  bool found = false;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(context, device.port, static_cast<uint32_t>(i), &entry, 0) != 0 || isZero(entry.gid)) continue;
    if (requested >= 0) {
      if (i == requested) return entry;
      continue;
    }
    if (!found || rank(entry) > rank(best)) best = entry;
    found = true;
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) break;
  }
  if (!found && requested >= 0)
    fail(mkErrorInvalidArgument, "MKERNEL_IB_GID_INDEX=%d: %s has no address there; its table has %d places", requested,
         device.name().c_str(), port.gid_tbl_len);
  if (!found) fail(mkErrorTransport, "%s has no address (GID)", device.name().c_str());
  return best;
}

struct DeviceList {
  DeviceList() : devices(ibv_get_device_list(&count)) {
    if (devices == nullptr) failErrno(errno, "the RDMA devices cannot be listed");
  }
  ~DeviceList() { ibv_free_device_list(devices); }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  int count = 0;
  ibv_device** devices;
};

}  // namespace

std::vector<Device> findDevices(const Settings& settings, std::string* refused) {
  const HcaFilter filter(settings.hca);
  const DeviceList list;
  std::vector<Device> found;
  const auto refuse = [&](const std::string& name, const char* why) {
    *refused += (refused->empty() ? "" : ", ") + name + " " + why;
  };
  for (int i = 0; i < list.count; ++i) {
    const std::string name = ibv_get_device_name(list.devices[i]);
    if (!mlx5dv_is_supported(list.devices[i])) {
      refuse(name, "is not driven by mlx5");
      continue;
    }
    const ContextPtr context(ibv_open_device(list.devices[i]));
    if (context == nullptr) {
      refuse(name, "cannot be opened");
      continue;
    }
    ibv_device_attr attributes = {};
    if (ibv_query_device(context.get(), &attributes) != 0) {
      refuse(name, "cannot be asked for its properties");
      continue;
    }
    for (uint8_t port = 1; port <= attributes.phys_port_cnt; ++port) {
      Device device{name, port, pciOf(name.c_str()), 0};
      ibv_port_attr state = {};
      if (!filter.selects(name, port)) {
        refuse(device.name(), "is not selected by MKERNEL_IB_HCA");
      } else if (ibv_query_port(context.get(), port, &state) != 0 || state.state != IBV_PORT_ACTIVE) {
        refuse(device.name(), "is not up");
      } else {
        device.bytesPerSecond = bandwidth(state);
        found.push_back(device);
      }
    }
  }
  if (list.count == 0) *refused = "there is no RDMA device";
  return found;
}

OpenDevice::OpenDevice(const Device& device, const Settings& settings) : info(device) {
  const DeviceList list;
  for (int i = 0; i < list.count && context == nullptr; ++i) {
    if (device.device != ibv_get_device_name(list.devices[i])) continue;
    context.reset(ibv_open_device(list.devices[i]));
    if (context == nullptr) failErrno(errno, device.device + " cannot be opened");
  }
  if (context == nullptr) fail(mkErrorTransport, "%s is gone", device.device.c_str());
  ibv_port_attr port = {};
  if (const int r = ibv_query_port(context.get(), device.port, &port); r != 0)
    failErrno(r, device.name() + " cannot be asked for its state");
  const ibv_gid_entry gid = chooseGid(context.get(), device, port, settings.gidIndex);
  gidIndex = static_cast<int>(gid.gid_index);
  std::memcpy(address.gid, gid.gid.raw, sizeof(address.gid));
  address.lid = port.lid;
  address.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  address.mtu = static_cast<uint8_t>(port.active_mtu);
  domain.reset(ibv_alloc_pd(context.get()));
  if (domain == nullptr) failErrno(errno, device.name() + ": no protection domain");
  // Events are read in poll, which must not block.
  const int flags = fcntl(context->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    failErrno(errno, device.name() + ": its events cannot be read without blocking");
}

}  // namespace mk::plugin::ibgda
