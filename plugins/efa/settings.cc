// See settings.h.
#include "settings.h"

#include <sys/auxv.h>

#include <cerrno>
#include <cstdlib>

#include "failure.h"

namespace mk::efa {
namespace {

// "" and what the host does not know: the default.
std::string readText(const mkTransportHost_t& host, const char* name, const std::string& value) {
  const char* text = host.param != nullptr ? host.param(name) : nullptr;
  return text == nullptr || *text == '\0' ? value : text;
}

int64_t readInteger(const mkTransportHost_t& host, const char* name, int64_t least, int64_t most, int64_t value) {
  const std::string text = readText(host, name, "");
  if (text.empty()) return value;
  char* end = nullptr;
  errno = 0;
  const long long read = std::strtoll(text.c_str(), &end, 10);
  if (*end != '\0' || errno != 0 || read < least || read > most)
    fail(mkErrorInvalidArgument, "%s=%s: must be an integer from %lld to %lld", name, text.c_str(),
         static_cast<long long>(least), static_cast<long long>(most));
  return read;
}

}  // namespace

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings;
  settings.provider = readText(host, "MKERNEL_EFA_PROVIDER", settings.provider);
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

}  // namespace mk::efa
