// See rdma_path.h.
#include "common/rdma_path.h"

#include <algorithm>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin {
namespace {

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

std::string describe(const PortAddress& port) {
  if (port.ethernet != 0) return format("%s at %s", nameOf(port.gidKind), gidText(port.gid).c_str());
  return format("InfiniBand, LID %u, GID %s", port.lid, gidText(port.gid).c_str());
}

RdmaPath agree(const PortAddress& own, const PortAddress& peer) {
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
  RdmaPath path = {};
  path.mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
  path.global = own.ethernet != 0 || own.needGlobal != 0 || peer.needGlobal != 0 || !sameSubnet(own.gid, peer.gid);
  return path;
}

ibv_ah_attr routeTo(const PortAddress& peer, bool global, uint8_t ownPort, int gidIndex, const RdmaSettings& settings) {
  ibv_ah_attr route = {};
  route.dlid = peer.lid;
  route.sl = static_cast<uint8_t>(settings.serviceLevel);
  route.port_num = ownPort;
  route.is_global = global ? 1 : 0;
  if (global) {
    std::memcpy(route.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    route.grh.sgid_index = static_cast<uint8_t>(gidIndex);
    route.grh.hop_limit = 255;
    route.grh.traffic_class = static_cast<uint8_t>(settings.trafficClass);
  }
  return route;
}

int mtuBytes(uint8_t code) { return 128 << code; }

}  // namespace mk::plugin
