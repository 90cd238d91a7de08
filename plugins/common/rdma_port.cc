// See rdma_port.h.
#include "common/rdma_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/failure.h"
#include "mkernel/transport.h"

namespace mk::plugin {
namespace {

bool isZero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool isRoutable(const Gid& gid) {
  if (isIpv4(gid)) return gid[12] != 127 && !(gid[12] == 169 && gid[13] == 254);
  return !(gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80);
}

// The smaller the better.
int rankOf(const GidEntry& entry) {
  return (entry.kind == GidKind::roceV2 ? 0 : 4) + (isRoutable(entry.gid) ? 0 : 2) + (isIpv4(entry.gid) ? 0 : 1);
}

}  // namespace

bool isIpv4(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), gid.begin());
}

std::string gidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (isIpv4(gid))
    inet_ntop(AF_INET, &gid[12], text, sizeof(text));
  else
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return text;
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

uint64_t bytesPerSecond(uint8_t width, uint8_t speed) {
  const uint64_t lanes = width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 0;
  constexpr struct {
    uint8_t code;
    uint64_t megabits;  // of a lane, data only
  } kSpeeds[] = {{1, 2'000},   {2, 4'000},   {4, 8'000},   {8, 10'000},
                 {16, 14'000}, {32, 25'000}, {64, 50'000}, {128, 100'000}};  // SDR to NDR
  for (const auto& known : kSpeeds)
    if (known.code == speed) return lanes * known.megabits * 1'000'000 / 8;
  return 0;
}

std::string pciBusIdOf(const std::string& device, const std::string& devices) {
  std::error_code error;
  const auto path = std::filesystem::canonical(devices + "/" + device + "/device", error);
  if (error) return "";
  const std::string last = path.filename().string();
  // Others are not on a PCI bus themselves, as a function that is made from a part of a card.
  const bool pci = std::count(last.begin(), last.end(), ':') == 2;
  return pci && last.size() < sizeof(mkTransportDevice_t::pciBusId) ? last : "";
}

}  // namespace mk::plugin
