// See settings.h.
#include "settings.h"

#include <sys/auxv.h>

#include "common/failure.h"
#include "common/params.h"

namespace mk::plugin::efa {

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings;
  settings.provider = readText(host, "MKERNEL_EFA_PROVIDER", settings.provider);
  if (settings.provider.empty() || settings.provider.find_first_of("^,") != std::string::npos)
    fail(mkErrorInvalidArgument, "MKERNEL_EFA_PROVIDER=%s: one provider's name is legal, as efa or tcp;ofi_rxm",
         settings.provider.c_str());
  std::string domains = readText(host, "MKERNEL_EFA_DOMAIN", "");
  for (size_t comma = 0; !domains.empty(); domains.erase(0, comma == domains.npos ? comma : comma + 1)) {
    comma = domains.find(',');
    if (comma != 0) settings.domains.push_back(domains.substr(0, comma));
  }
  // It names code to be run, so in a set-user-id program the environment has no say in it.
  if (getauxval(AT_SECURE) == 0) settings.library = readText(host, "MKERNEL_EFA_LIBRARY", settings.library);
  settings.outstanding =
      static_cast<uint32_t>(readInteger(host, "MKERNEL_EFA_OUTSTANDING", 1, 4096, settings.outstanding));
  settings.teardownMs = readInteger(host, "MKERNEL_TEARDOWN_TIMEOUT_MS", 0, INT64_MAX / 2, settings.teardownMs);
  return settings;
}

}  // namespace mk::plugin::efa
