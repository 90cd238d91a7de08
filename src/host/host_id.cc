// The identity of this host, for finding out which ranks share a node.
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "host/bootstrap.h"
#include "host/log.h"

namespace mk {
namespace {

uint64_t fnv1a(const std::string& text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

// The boot id tells machines apart that were cloned with one name, the name tells containers of one machine apart.
std::string defaultHostId() {
  std::string bootId;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> bootId;
  if (bootId.empty()) MK_WARN(bootstrap, "cannot read the boot id: hosts are told apart by their names alone");
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) name[0] = '\0';
  const std::string both = bootId + "\n" + name;
  return format("%016llx%016llx", static_cast<unsigned long long>(fnv1a(both, 14695981039346656037u)),
                static_cast<unsigned long long>(fnv1a(both, 0x6d6b65726e656cu)));
}

}  // namespace mk
