// The exported table of the ibgda transport.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/table.h"
#include "endpoint.h"
#include "settings.h"

namespace mk::plugin::ibgda {
namespace {

class Context {
 public:
  explicit Context(const mkTransportHost_t& host) : settings_(readSettings(host)) {
    std::string refused;
    devices_ = findDevices(settings_, &refused);
    if (devices_.empty()) fail(mkErrorTransport, "no port of an mlx5 card can be used: %s", refused.c_str());
    if (!refused.empty()) MK_PLUGIN_INFO("not used: %s", refused.c_str());
  }

  int devices() const { return static_cast<int>(devices_.size()); }
  mkTransportDevice_t device(int index) const {
    const Device& found = devices_[static_cast<size_t>(index)];
    mkTransportDevice_t device = {};
    std::snprintf(device.name, sizeof(device.name), "%s", found.name().c_str());
    std::snprintf(device.pciBusId, sizeof(device.pciBusId), "%s", found.pciBusId.c_str());
    device.bytesPerSecond = found.bytesPerSecond;
    return device;
  }
  mkTransportProperties_t properties() const {
    mkTransportProperties_t properties = {};
    properties.contract = MK_CONTRACT_ORDERED;
    properties.maxBatch = kMaxBatch;
    properties.maxOutstanding = settings_.entries / kEntriesPerWrite;
    properties.devicePosted = 1;
    properties.maxBytes = kMaxBytes;
    return properties;
  }
  std::unique_ptr<Endpoint> open(int index) const {
    return std::make_unique<Endpoint>(devices_[static_cast<size_t>(index)], settings_);
  }

 private:
  const Settings settings_;
  std::vector<Device> devices_;
};

using OwnTable = Table<Context, Endpoint>;

int queueDescriptor(void* endpoint, int peer, void* descriptor, size_t bytes) {
  return guarded([&] {
    auto& asked = required(static_cast<mkQueueDescriptor_t*>(descriptor), "descriptor");
    if (bytes < sizeof(asked) || asked.structSize < sizeof(asked) || asked.kind != MK_QUEUE_KIND_MLX5 ||
        asked.version != MK_QUEUE_MLX5_VERSION)
      fail(mkErrorVersion,
           "a queue of kind %u, version %u in %zu bytes was asked for; this one is of kind %u, version %u, in %zu",
           asked.kind, asked.version, bytes, MK_QUEUE_KIND_MLX5, MK_QUEUE_MLX5_VERSION, sizeof(asked));
    give(&asked, OwnTable::endpointOf(endpoint).handOut(peer));
  });
}

int memoryDescriptor(void* endpoint, void* local, void* remote, void* descriptor, size_t bytes) {
  return guarded([&] {
    auto& asked = required(static_cast<mkQueueMemory_t*>(descriptor), "descriptor");
    if (bytes < sizeof(asked)) fail(mkErrorVersion, "a descriptor of %zu bytes; %zu are needed", bytes, sizeof(asked));
    give(&asked, OwnTable::endpointOf(endpoint).describe(local, remote));
  });
}

}  // namespace
}  // namespace mk::plugin::ibgda

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 =
    mk::plugin::ibgda::OwnTable::make("ibgda", mk::plugin::ibgda::queueDescriptor, mk::plugin::ibgda::memoryDescriptor);
