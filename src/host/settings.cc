#include "host/settings.h"

#include "host/bootstrap.h"
#include "host/cuda.h"
#include "host/error.h"
#include "host/params.h"
#include "sched/heap_layout.h"

namespace mk {

namespace {

// The configuration's value if it has one, else the parameter's.
uint64_t pick(uint64_t configured, int64_t parameter, const char* field, const char* name, uint64_t least,
              uint64_t most) {
  const bool fromConfig = configured != 0;
  const int64_t value = fromConfig ? static_cast<int64_t>(configured) : parameter;
  if (value < static_cast<int64_t>(least) || value > static_cast<int64_t>(most))
    fail(mkErrorInvalidArgument, "%s is %lld; legal: %llu to %llu", fromConfig ? field : name,
         static_cast<long long>(value), static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
  return static_cast<uint64_t>(value);
}

constexpr uint64_t kMostMs = 7 * 24 * 3600 * 1000u;
constexpr uint64_t kMostBytes = uint64_t{1} << 44;

}  // namespace

std::string choosePlatform(const std::string& wanted) {
  std::string platform = wanted.empty() ? params().platform : wanted;
  if (platform.empty()) platform = cuda::unusable().empty() ? "cuda" : "cpu";
  if (platform != "cpu" && platform != "cuda")
    fail(mkErrorInvalidArgument, "%s is \"%s\"; legal: \"cpu\", \"cuda\"",
         wanted.empty() ? "MKERNEL_PLATFORM" : "config.platform", platform.c_str());
  return platform;
}

Settings makeSettings(const mkConfig_t& config) {
  const Params& p = params();
  Settings s;
  s.platform = choosePlatform(config.platform != nullptr ? config.platform : "");
  s.hostId = config.hostId != nullptr && *config.hostId != 0 ? config.hostId : p.hostId;
  if (s.hostId.empty()) s.hostId = defaultHostId();
  if (s.hostId.size() > 255)
    fail(mkErrorInvalidArgument, "the host identity has %zu characters; legal: up to 255", s.hostId.size());
  s.transport = config.transport != nullptr && *config.transport != 0 ? config.transport : p.net;

  s.heapMaxBytes = pick(0, p.heapMaxBytes, "", "MKERNEL_HEAP_MAX_BYTES", sched::kWorkspaceUnit, kMostBytes);
  s.heapBytes = pick(config.heapBytes, p.heapBytes, "config.heapBytes", "MKERNEL_HEAP_BYTES", 0, s.heapMaxBytes);
  s.ringSlots = pick(0, p.ringSlots, "", "MKERNEL_RING_SLOTS", 2, 1u << 16);
  if ((s.ringSlots & (s.ringSlots - 1)) != 0)
    fail(mkErrorInvalidArgument, "MKERNEL_RING_SLOTS is %llu; legal: a power of two, 2 to 65536",
         static_cast<unsigned long long>(s.ringSlots));
  s.epochStart = pick(0, p.epochStart, "", "MKERNEL_EPOCH_START", 0, uint64_t{1} << 62);
  s.timeoutMs =
      static_cast<int>(pick(config.timeoutMs, p.timeoutMs, "config.timeoutMs", "MKERNEL_TIMEOUT_MS", 1, kMostMs));
  s.initTimeoutMs = static_cast<int>(
      pick(config.initTimeoutMs, p.initTimeoutMs, "config.initTimeoutMs", "MKERNEL_INIT_TIMEOUT_MS", 1, kMostMs));
  s.teardownTimeoutMs = static_cast<int>(pick(config.teardownTimeoutMs, p.teardownTimeoutMs, "config.teardownTimeoutMs",
                                              "MKERNEL_TEARDOWN_TIMEOUT_MS", 1, kMostMs));
  s.agents = static_cast<uint32_t>(pick(0, p.cpuAgents, "", "MKERNEL_CPU_AGENTS", 1, 256));
  s.maxSMs = config.maxSMs;
  if (config.maxSMs != 0 && config.maxSMs < s.agents) s.agents = config.maxSMs;
  return s;
}

std::string Settings::agreed() const {
  return format("platform=%s\nMKERNEL_HEAP_MAX_BYTES=%llu\nheapBytes=%llu\nMKERNEL_EPOCH_START=%llu\n",
                platform.c_str(), static_cast<unsigned long long>(heapMaxBytes),
                static_cast<unsigned long long>(heapBytes), static_cast<unsigned long long>(epochStart));
}

}  // namespace mk
