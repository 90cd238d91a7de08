// The exported table of the efa transport.
#include <memory>

#include "common/table.h"
#include "endpoint.h"
#include "provider.h"
#include "settings.h"

namespace mk::plugin::efa {
namespace {

class Context {
 public:
  explicit Context(const mkTransportHost_t& host) : provider_(readSettings(host)) {}

  int devices() const { return static_cast<int>(provider_.devices().size()); }
  mkTransportDevice_t device(int index) const {
    const Device& found = provider_.devices()[static_cast<size_t>(index)];
    return tellDevice(found.name, found.pciBusId, found.bytesPerSecond);
  }
  mkTransportProperties_t properties() const {
    mkTransportProperties_t properties = {};
    properties.contract = MK_CONTRACT_COMPLETION;
    properties.immediateBits = 32;
    properties.maxBatch = kMaxBatch;
    properties.maxOutstanding = provider_.settings().outstanding;
    properties.maxBytes = provider_.maxBytes();
    return properties;
  }
  std::unique_ptr<Endpoint> open(int index) const {
    return std::make_unique<Endpoint>(provider_, provider_.devices()[static_cast<size_t>(index)]);
  }

 private:
  const Provider provider_;
};

}  // namespace
}  // namespace mk::plugin::efa

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 =
    mk::plugin::Table<mk::plugin::efa::Context, mk::plugin::efa::Endpoint>::make("efa");
