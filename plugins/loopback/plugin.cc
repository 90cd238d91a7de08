// The exported table of the loopback transport.
#include <memory>

#include "common/table.h"
#include "endpoint.h"
#include "settings.h"

namespace mk::plugin::loopback {
namespace {

class Context {
 public:
  explicit Context(const mkTransportHost_t& host) : settings_(readSettings(host)) {}

  int devices() const { return 1; }
  mkTransportDevice_t device(int) const {
    return tellDevice("loopback", "", static_cast<uint64_t>(settings_.gigabytesPerSecond * 1e9));
  }
  mkTransportProperties_t properties() const {
    mkTransportProperties_t properties = {};
    properties.contract = settings_.contract;
    properties.immediateBits = settings_.contract == MK_CONTRACT_COMPLETION ? 32 : 0;
    properties.maxBatch = kMaxBatch;
    properties.maxOutstanding = settings_.outstanding;
    properties.maxBytes = kMaxBytes;
    return properties;
  }
  std::unique_ptr<Endpoint> open(int) const { return std::make_unique<Endpoint>(settings_); }

 private:
  const Settings settings_;
};

}  // namespace
}  // namespace mk::plugin::loopback

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 =
    mk::plugin::Table<mk::plugin::loopback::Context, mk::plugin::loopback::Endpoint>::make("loopback");
