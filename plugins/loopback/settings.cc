// See settings.h.
#include "settings.h"

#include <string_view>

#include "common/failure.h"
#include "common/params.h"

namespace mk::plugin::loopback {

Settings readSettings(const mkTransportHost_t& host) {
  Settings settings;
  if (const char* const contract = valueOf(host, "MKERNEL_LOOPBACK_CONTRACT")) {
    const std::string_view name = contract;
    if (name != "ordered" && name != "completion")
      fail(mkErrorInvalidArgument, "MKERNEL_LOOPBACK_CONTRACT=%s: must be ordered or completion", contract);
    settings.contract = name == "ordered" ? MK_CONTRACT_ORDERED : MK_CONTRACT_COMPLETION;
  }
  settings.gigabytesPerSecond = readNumber(host, "MKERNEL_LOOPBACK_GBPS", 1e6, settings.gigabytesPerSecond);
  settings.latencyUs = readNumber(host, "MKERNEL_LOOPBACK_LATENCY_US", 1e9, settings.latencyUs);
  settings.jitterUs = readNumber(host, "MKERNEL_LOOPBACK_JITTER_US", 1e9, settings.jitterUs);
  settings.reorder = readNumber(host, "MKERNEL_LOOPBACK_REORDER", 1, settings.reorder);
  settings.repeat = readNumber(host, "MKERNEL_LOOPBACK_REPEAT", 1, settings.repeat);
  settings.failAfter = readInteger(host, "MKERNEL_LOOPBACK_FAIL_AFTER", 0, INT64_MAX, settings.failAfter);
  settings.dropAfter = readInteger(host, "MKERNEL_LOOPBACK_DROP_AFTER", 0, INT64_MAX, settings.dropAfter);
  settings.outstanding =
      static_cast<uint32_t>(readInteger(host, "MKERNEL_LOOPBACK_OUTSTANDING", 1, 65536, settings.outstanding));
  settings.seed = static_cast<uint64_t>(
      readInteger(host, "MKERNEL_LOOPBACK_SEED", INT64_MIN, INT64_MAX, static_cast<int64_t>(settings.seed)));
  return settings;
}

}  // namespace mk::plugin::loopback
