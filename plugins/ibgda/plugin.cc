// The exported table of the ibgda transport.
#include <memory>
#include <vector>

#include "common/table.h"
#include "endpoint.h"
#include "settings.h"

namespace mk::plugin::ibgda {
namespace {

class Context {
 public:
  explicit Context(const mkTransportHost_t& host) : settings_(readSettings(host)), devices_(findDevices(settings_)) {}

  int devices() const { return static_cast<int>(devices_.size()); }
  mkTransportDevice_t device(int index) const {
    const RdmaPort& found = devices_[static_cast<size_t>(index)];
    return tellDevice(found.name(), found.pciBusId, found.bytesPerSecond);
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
  const std::vector<RdmaPort> devices_;
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
