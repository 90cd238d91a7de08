// See port.h.
#include "port.h"

#include <arpa/inet.h>

#include <algorithm>

#include "common/failure.h"

namespace mk::plugin::ibverbs {
namespace {

bool isZero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool isIpv4(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), gid.begin());
}

bool isRoutable(const Gid& gid) {
  if (isIpv4(gid)) return gid[12] != 127 && !(gid[12] == 169 && gid[13] == 254);
  return !(gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80);
}

// The smaller the better.
int rankOf(const GidEntry& entry) {
  return (entry.kind == GidKind::roceV2 ? 0 : 4) + (isRoutable(entry.gid) ? 0 : 2) + (isIpv4(entry.gid) ? 0 : 1);
}

const char* nameOf(GidKind kind) {
  switch (kind) {
    case GidKind::infiniband:
      return "InfiniBand";
    case GidKind::roceV1:
      return "RoCE v1";
    case GidKind::roceV2:
      return "RoCE v2";
  }
  return "unknown";
}

bool sameSubnet(const Gid& a, const Gid& b) { return std::equal(a.begin(), a.begin() + 8, b.begin()); }

}  // namespace

std::string gidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (isIpv4(gid))
    inet_ntop(AF_INET, &gid[12], text, sizeof(text));
  else
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return text;
}

std::string describe(const PortAddress& port) {
  if (port.ethernet != 0) return format("%s at %s", nameOf(port.gidKind), gidText(port.gid).c_str());
  return format("InfiniBand, LID %u, GID %s", port.lid, gidText(port.gid).c_str());
}

GidEntry chooseGid(const std::vector<GidEntry>& table, bool ethernet, int requested, const std::string& port) {
  if (requested >= 0) {
    for (const GidEntry& entry : table)
      if (entry.index == requested && !isZero(entry.gid)) return entry;
    std::string legal;
    for (const GidEntry& entry : table)
      if (!isZero(entry.gid)) legal += format("%s%d", legal.empty() ? "" : ", ", entry.index);
    fail(mkErrorInvalidArgument, "MKERNEL_IB_GID_INDEX=%d: %s has no GID there; it has %s", requested, port.c_str(),
         legal.empty() ? "none at all" : legal.c_str());
  }
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : table) {
    if (isZero(entry.gid)) continue;
    const bool better = best == nullptr || (ethernet && rankOf(entry) < rankOf(*best)) ||
                        ((!ethernet || rankOf(entry) == rankOf(*best)) && entry.index < best->index);
    if (better) best = &entry;
  }
  if (best == nullptr) fail(mkErrorTransport, "%s has no GID: has its network interface an address?", port.c_str());
  return *best;
}

Path agree(const PortAddress& own, const PortAddress& peer) {
  const auto differ = [&](const char* what) {
    fail(mkErrorTransport, "%s: %s here, %s there", what, describe(own).c_str(), describe(peer).c_str());
  };
  if ((own.ethernet != 0) != (peer.ethernet != 0)) differ("InfiniBand and Ethernet do not talk");
  if (own.ethernet != 0 && own.gidKind != peer.gidKind)
    differ("versions of RoCE differ; MKERNEL_IB_GID_INDEX chooses the GID");
  if (own.ethernet != 0 && own.gidKind == GidKind::roceV2 && isIpv4(own.gid) != isIpv4(peer.gid))
    differ("IPv4 and IPv6 do not talk; MKERNEL_IB_GID_INDEX chooses the GID");
  const auto valid = [](uint8_t mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096; };
  if (!valid(own.mtu) || !valid(peer.mtu))
    fail(mkErrorTransport, "MTU codes %u and %u; legal are 1 to 5", own.mtu, peer.mtu);
  Path path = {};
  path.mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
  path.global = own.ethernet != 0 || own.needGlobal != 0 || peer.needGlobal != 0 || !sameSubnet(own.gid, peer.gid);
  path.connections = std::min(own.connections, peer.connections);
  return path;
}

uint64_t bytesPerSecond(uint8_t width, uint8_t speed) {
  const uint64_t lanes = width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 0;
  uint64_t megabits = 0;  // of a lane, data only
  switch (speed) {
    case 1:
      megabits = 2'000;
      break;  // SDR
    case 2:
      megabits = 4'000;
      break;  // DDR
    case 4:
      megabits = 8'000;
      break;  // QDR
    case 8:
      megabits = 10'000;
      break;  // FDR10
    case 16:
      megabits = 14'000;
      break;  // FDR
    case 32:
      megabits = 25'000;
      break;  // EDR
    case 64:
      megabits = 50'000;
      break;  // HDR
    case 128:
      megabits = 100'000;
      break;  // NDR
    default:
      break;
  }
  return lanes * megabits * 1'000'000 / 8;
}

int mtuBytes(uint8_t code) { return 128 << code; }

}  // namespace mk::plugin::ibverbs
