// Layout of the unique id, all little-endian, unused bytes zero:
//    0 u32 magic    4 u16 format version    6 u16 family (4 or 6)    8 secret[16]
//   24 u16 port    28 u32 scope id         32 address[16]          124 u32 checksum of all before
// The checksum finds ids that were cut off, or sent as text, on their way to the ranks.
#include "host/unique_id.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/error.h"

namespace mk {
namespace {

constexpr uint32_t idMagic = 0x31696b6d;  // "mki1"
constexpr uint16_t idVersion = 1;
constexpr size_t checksumAt = MK_UNIQUE_ID_BYTES - 4;

using IdBytes = std::array<uint8_t, MK_UNIQUE_ID_BYTES>;

void put(IdBytes& bytes, size_t at, uint32_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<uint8_t>(value >> (8 * i));
}

uint32_t get(const IdBytes& bytes, size_t at, size_t width) {
  uint32_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= static_cast<uint32_t>(bytes[at + i]) << (8 * i);
  return value;
}

// FNV-1a.
uint32_t checksum(const IdBytes& bytes) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < checksumAt; ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

}  // namespace

Secret randomSecret() {
  Secret secret;
  size_t done = 0;
  while (done < secret.size()) {
    const ssize_t n = getrandom(secret.data() + done, secret.size() - done, 0);
    if (n < 0 && errno != EINTR) failErrno(errno, "getrandom");
    if (n > 0) done += static_cast<size_t>(n);
  }
  return secret;
}

bool sameSecret(std::span<const uint8_t> a, const Secret& b) {
  if (a.size() != b.size()) return false;
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < b.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

mkUniqueId_t encodeUniqueId(const HubPlace& place) {
  IdBytes bytes = {};
  const bool six = place.address.family() == AF_INET6;
  put(bytes, 0, idMagic, 4);
  put(bytes, 4, idVersion, 2);
  put(bytes, 6, six ? 6 : 4, 2);
  std::copy(place.secret.begin(), place.secret.end(), bytes.begin() + 8);
  put(bytes, 24, place.address.port(), 2);
  put(bytes, 28, place.address.scopeId(), 4);
  std::copy_n(place.address.bytes(), six ? 16 : 4, bytes.begin() + 32);
  put(bytes, checksumAt, checksum(bytes), 4);
  mkUniqueId_t id;
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

HubPlace decodeUniqueId(const mkUniqueId_t& id) {
  IdBytes bytes;
  std::memcpy(bytes.data(), id.internal, bytes.size());
  if (std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; }))
    fail(mkErrorInvalidArgument,
         "id: all bytes are zero; it must be the one that mkGetUniqueId filled in, carried to every rank");
  if (get(bytes, 0, 4) != idMagic)
    fail(mkErrorInvalidArgument,
         "id: begins with 0x%08x instead of 0x%08x; it must be the one that mkGetUniqueId filled in", get(bytes, 0, 4),
         idMagic);
  if (get(bytes, 4, 2) != idVersion)
    fail(mkErrorVersion, "id: made by a library whose ids have format version %u; this library (%d.%d.%d) knows %u",
         get(bytes, 4, 2), MK_MAJOR, MK_MINOR, MK_PATCH, idVersion);
  const uint32_t family = get(bytes, 6, 2);
  const auto port = static_cast<uint16_t>(get(bytes, 24, 2));
  if (get(bytes, checksumAt, 4) != checksum(bytes) || (family != 4 && family != 6) || port == 0)
    fail(mkErrorInvalidArgument, "id: damaged; all %d bytes must be carried to every rank as they are",
         MK_UNIQUE_ID_BYTES);
  HubPlace place;
  std::copy_n(bytes.begin() + 8, place.secret.size(), place.secret.begin());
  place.address = Address(family == 6 ? AF_INET6 : AF_INET, bytes.data() + 32, port, get(bytes, 28, 4));
  return place;
}

}  // namespace mk
