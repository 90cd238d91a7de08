// See settings.h.
#include "settings.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "failure.h"

namespace mk::loopback {
namespace {

const char* valueOf(const mkTransportHost_t& host, const char* name) {
  return host.param != nullptr ? host.param(name) : nullptr;
}

void readDouble(const mkTransportHost_t& host, const char* name, double most, double& value) {
  const char* text = valueOf(host, name);
  if (text == nullptr) return;
  char* end = nullptr;
  const double read = std::strtod(text, &end);
  // The negation also refuses a NaN.
  if (end == text || *end != '\0' || !(read >= 0 && read <= most))
    fail(mkErrorInvalidArgument, "%s=%s: must be a number from 0 to %g", name, text, most);
  value = read;
}

int64_t readInteger(const mkTransportHost_t& host, const char* name, int64_t least, int64_t most, int64_t value) {
  const char* text = valueOf(host, name);
  if (text == nullptr) return value;
  char* end = nullptr;
  errno = 0;
  const long long read = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || read < least || read > most)
    fail(mkErrorInvalidArgument, "%s=%s: must be an integer from %lld to %lld", name, text,
         static_cast<long long>(least), static_cast<long long>(most));
  return read;
}

}  // namespace

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings;
  if (const char* contract = valueOf(host, "MKERNEL_LOOPBACK_CONTRACT")) {
    if (std::strcmp(contract, "ordered") == 0)
      settings.contract = MK_CONTRACT_ORDERED;
    else if (std::strcmp(contract, "completion") == 0)
      settings.contract = MK_CONTRACT_COMPLETION;
    else
      fail(mkErrorInvalidArgument, "MKERNEL_LOOPBACK_CONTRACT=%s: must be ordered or completion", contract);
  }
  readDouble(host, "MKERNEL_LOOPBACK_GBPS", 1e6, settings.gigabytesPerSecond);
  readDouble(host, "MKERNEL_LOOPBACK_LATENCY_US", 1e9, settings.latencyUs);
  readDouble(host, "MKERNEL_LOOPBACK_JITTER_US", 1e9, settings.jitterUs);
  readDouble(host, "MKERNEL_LOOPBACK_REORDER", 1, settings.reorder);
  readDouble(host, "MKERNEL_LOOPBACK_REPEAT", 1, settings.repeat);
  settings.failAfter = readInteger(host, "MKERNEL_LOOPBACK_FAIL_AFTER", 0, INT64_MAX, settings.failAfter);
  settings.dropAfter = readInteger(host, "MKERNEL_LOOPBACK_DROP_AFTER", 0, INT64_MAX, settings.dropAfter);
  settings.outstanding =
      static_cast<uint32_t>(readInteger(host, "MKERNEL_LOOPBACK_OUTSTANDING", 1, 65536, settings.outstanding));
  settings.seed = static_cast<uint64_t>(
      readInteger(host, "MKERNEL_LOOPBACK_SEED", INT64_MIN, INT64_MAX, static_cast<int64_t>(settings.seed)));
  return settings;
}

}  // namespace mk::loopback
