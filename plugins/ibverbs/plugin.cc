// The exported table of the ibverbs transport.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/table.h"
#include "devices.h"
#include "endpoint.h"
#include "settings.h"

namespace mk::plugin::ibverbs {
namespace {

class Context {
 public:
  explicit Context(const mkTransportHost_t& host);

  int devices() const { return static_cast<int>(devices_.size()); }
  mkTransportDevice_t device(int index) const {
    const Device& found = devices_[static_cast<size_t>(index)];
    return tellDevice(found.name(), found.pciBusId, found.bytesPerSecond);
  }
  mkTransportProperties_t properties() const {
    mkTransportProperties_t properties = {};
    properties.contract = MK_CONTRACT_ORDERED;
    properties.maxBatch = kMaxBatch;
    properties.maxOutstanding = outstanding_;
    properties.maxBytes = maxBytes_;
    return properties;
  }
  std::unique_ptr<Endpoint> open(int index) const {
    return std::make_unique<Endpoint>(devices_[static_cast<size_t>(index)], settings_, outstanding_);
  }

 private:
  const Settings settings_;
  std::vector<Device> devices_;
  uint32_t outstanding_ = 0;
  uint64_t maxBytes_ = UINT64_MAX;
};

Context::Context(const mkTransportHost_t& host) : settings_(readSettings(host)) {
  // So that a child's copies of registered pages are its own on kernels before 5.12; later ones see to it themselves.
  if (const int error = ibv_fork_init(); error != 0)
    MK_PLUGIN_INFO("no protection of registered memory in forked children: %s", std::strerror(error));
  devices_ = findDevices(settings_);
  outstanding_ = settings_.outstanding;
  for (const Device& device : devices_) {
    const int places = std::min(device.maxRequests - static_cast<int>(kOwnRequests),
                                device.maxCompletions - static_cast<int>(kOwnRequests * kMaxConnections));
    if (places < 2)
      fail(mkErrorTransport, "%s has queues of %d requests only", device.name().c_str(), device.maxRequests);
    outstanding_ = std::min(outstanding_, static_cast<uint32_t>(places) / 2);
    maxBytes_ = std::min(maxBytes_, device.maxBytes);
    MK_PLUGIN_INFO("%s: %.1f GB/s, PCI %s", device.name().c_str(), static_cast<double>(device.bytesPerSecond) * 1e-9,
                   device.pciBusId.empty() ? "none" : device.pciBusId.c_str());
  }
}

}  // namespace
}  // namespace mk::plugin::ibverbs

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 =
    mk::plugin::Table<mk::plugin::ibverbs::Context, mk::plugin::ibverbs::Endpoint>::make("ibverbs");
