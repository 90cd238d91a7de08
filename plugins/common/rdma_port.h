// A port of an RDMA device: its name, its speed, and which of its addresses (GID) is taken.  No device is needed here;
// rdma_devices.h fills in the facts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mk::plugin {

struct RdmaPort {
  std::string device;  // as verbs calls it
  uint8_t port = 1;
  std::string pciBusId;  // "" if none
  uint64_t bytesPerSecond = 0;

  std::string name() const { return device + ":" + std::to_string(port); }
};

using Gid = std::array<uint8_t, 16>;

enum class GidKind : uint8_t { infiniband = 0, roceV1 = 1, roceV2 = 2 };

// An entry of a port's table.
struct GidEntry {
  int index;
  Gid gid;
  GidKind kind;
};

// As IPv6 maps it.
bool isIpv4(const Gid& gid);
// "10.0.0.1" for an IPv4 one, else as IPv6.
std::string gidText(const Gid& gid);

// requested -1: on Ethernet RoCE v2 before v1, and routable addresses before those of the link, IPv4 before IPv6; on
// InfiniBand the first.  Throws Failure, naming `port`, if there is none, or none with the requested index.
GidEntry chooseGid(const std::vector<GidEntry>& table, bool ethernet, int requested, const std::string& port);

// From the codes of ibv_port_attr; 0: unknown.
uint64_t bytesPerSecond(uint8_t width, uint8_t speed);

// "0000:17:00.0", or "" if the device is none on a PCI bus.  devices: where the kernel lists RDMA devices.
std::string pciBusIdOf(const std::string& device, const std::string& devices = "/sys/class/infiniband");

}  // namespace mk::plugin
