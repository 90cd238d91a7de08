// The exported table of the ibgda transport.  Every call comes through here: exceptions end here and become a return value and
// the text of lastError.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "endpoint.h"
#include "failure.h"
#include "settings.h"

namespace mk::ibgda {
namespace {

struct Context {
  Settings settings;
  std::vector<Device> devices;
};

template <typename Body>
int guarded(Body&& body) {
  try {
    body();
    return mkSuccess;
  } catch (const Failure& failure) {
    setLastError(failure.what());
    return failure.code();
  } catch (const std::bad_alloc&) {
    setLastError("out of memory");
    return mkErrorSystem;
  } catch (const std::exception& other) {
    setLastError(other.what());
    return mkErrorInternal;
  }
}

template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) fail(mkErrorInvalidArgument, "%s is NULL", name);
  return *pointer;
}

// Fills in as much as the caller's version of the structure has.
template <typename T>
void give(T* to, T value) {
  const uint32_t size = required(to, "the structure").structSize;
  if (size < sizeof(uint32_t)) fail(mkErrorVersion, "structSize %u: must be set before the call", size);
  value.structSize = static_cast<uint32_t>(std::min<size_t>(size, sizeof(T)));
  std::memcpy(to, &value, value.structSize);
}

Endpoint& endpointOf(void* endpoint) { return required(static_cast<Endpoint*>(endpoint), "endpoint"); }

const Device& deviceAt(void* context, int index) {
  const Context& c = required(static_cast<Context*>(context), "context");
  if (index < 0 || static_cast<size_t>(index) >= c.devices.size())
    fail(mkErrorInvalidArgument, "device %d: there are %zu, counted from 0", index, c.devices.size());
  return c.devices[static_cast<size_t>(index)];
}

int init(const mkTransportHost_t* host, void** context) {
  return guarded([&] {
    required(context, "context") = nullptr;
    const mkTransportHost_t& given = required(host, "host");
    if (given.abiMajor != MK_TRANSPORT_ABI_MAJOR)
      fail(mkErrorVersion, "the library's interface is %u.%u, this plugin is built for %u.%u", given.abiMajor,
           given.abiMinor, MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR);
    setHost(host);
    auto made = std::make_unique<Context>();
    made->settings = readSettings(given);
    std::string refused;
    made->devices = findDevices(made->settings, &refused);
    if (made->devices.empty()) fail(mkErrorTransport, "no port of an mlx5 card can be used: %s", refused.c_str());
    if (!refused.empty()) MK_IBGDA_INFO("not used: %s", refused.c_str());
    *context = made.release();
  });
}

void fini(void* context) { delete static_cast<Context*>(context); }

int deviceCount(void* context, int* count) {
  return guarded([&] {
    const Context& c = required(static_cast<Context*>(context), "context");
    required(count, "count") = static_cast<int>(c.devices.size());
  });
}

int deviceInfo(void* context, int index, mkTransportDevice_t* device) {
  return guarded([&] {
    const Device& d = deviceAt(context, index);
    mkTransportDevice_t value = {};
    std::snprintf(value.name, sizeof(value.name), "%s", d.name().c_str());
    std::memcpy(value.pciBusId, d.pciBusId.c_str(), std::min(d.pciBusId.size(), sizeof(value.pciBusId) - 1));
    value.bytesPerSecond = d.bytesPerSecond;
    give(device, value);
  });
}

int properties(void* context, mkTransportProperties_t* result) {
  return guarded([&] {
    const Settings& settings = required(static_cast<Context*>(context), "context").settings;
    mkTransportProperties_t value = {};
    value.contract = MK_CONTRACT_ORDERED;
    value.maxBatch = kMaxBatch;
    value.maxOutstanding = settings.entries / kEntriesPerWrite;
    value.devicePosted = 1;
    value.maxBytes = kMaxBytes;
    give(result, value);
  });
}

int open(void* context, int device, void** endpoint, uint8_t* address) {
  return guarded([&] {
    const Device& chosen = deviceAt(context, device);
    required(endpoint, "endpoint");
    required(address, "address");
    auto made = std::make_unique<Endpoint>(chosen, static_cast<Context*>(context)->settings);
    std::memset(address, 0, MK_TRANSPORT_ADDRESS_BYTES);
    std::memcpy(address, &made->address(), sizeof(Address));
    *endpoint = made.release();
  });
}

int connect(void* endpoint, int count, int self, const uint8_t* addresses, int) {
  return guarded([&] { endpointOf(endpoint).connect(count, self, addresses); });
}

int registerMemory(void* endpoint, const mkTransportMemory_t* memory, void** handle, uint8_t* key) {
  return guarded([&] {
    required(key, "key");
    required(handle, "handle") = endpointOf(endpoint).registerMemory(required(memory, "memory"), key);
  });
}

int deregisterMemory(void* endpoint, void* handle) {
  return guarded([&] { endpointOf(endpoint).deregisterMemory(handle); });
}

int importMemory(void* endpoint, int peer, const uint8_t* key, int, void** remote) {
  return guarded([&] {
    required(key, "key");
    required(remote, "remote") = endpointOf(endpoint).importMemory(peer, key);
  });
}

int releaseMemory(void* endpoint, void* remote) {
  return guarded([&] { endpointOf(endpoint).releaseMemory(remote); });
}

int post(void* endpoint, int peer, const mkTransportWrite_t* writes, int count, int* accepted) {
  return guarded([&] {
    required(accepted, "accepted") = 0;
    *accepted = endpointOf(endpoint).post(peer, writes, count);
  });
}

int poll(void* endpoint, mkTransportEvent_t* events, int capacity, int* count) {
  return guarded([&] {
    required(count, "count") = 0;
    *count = endpointOf(endpoint).poll(events, capacity);
  });
}

int close(void* endpoint) {
  return guarded([&] { delete &endpointOf(endpoint); });
}

int queueDescriptor(void* endpoint, int peer, void* descriptor, size_t bytes) {
  return guarded([&] {
    auto& asked = required(static_cast<mkQueueDescriptor_t*>(descriptor), "descriptor");
    if (bytes < sizeof(asked) || asked.structSize < sizeof(asked) || asked.kind != MK_QUEUE_KIND_MLX5 ||
        asked.version != MK_QUEUE_MLX5_VERSION)
      fail(mkErrorVersion,
           "a queue of kind %u, version %u in %zu bytes was asked for; this one is of kind %u, version %u, in %zu",
           asked.kind, asked.version, bytes, MK_QUEUE_KIND_MLX5, MK_QUEUE_MLX5_VERSION, sizeof(asked));
    give(&asked, endpointOf(endpoint).handOut(peer));
  });
}

int memoryDescriptor(void* endpoint, void* local, void* remote, void* descriptor, size_t bytes) {
  return guarded([&] {
    auto& asked = required(static_cast<mkQueueMemory_t*>(descriptor), "descriptor");
    if (bytes < sizeof(asked)) fail(mkErrorVersion, "a descriptor of %zu bytes; %zu are needed", bytes, sizeof(asked));
    give(&asked, endpointOf(endpoint).describe(local, remote));
  });
}

}  // namespace
}  // namespace mk::ibgda

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 = {
    sizeof(mkTransport_t),
    MK_TRANSPORT_ABI_MAJOR,
    MK_TRANSPORT_ABI_MINOR,
    0,
    "ibgda",
    mk::ibgda::init,
    mk::ibgda::fini,
    mk::ibgda::lastError,
    mk::ibgda::deviceCount,
    mk::ibgda::deviceInfo,
    mk::ibgda::properties,
    mk::ibgda::open,
    mk::ibgda::connect,
    mk::ibgda::registerMemory,
    mk::ibgda::deregisterMemory,
    mk::ibgda::importMemory,
    mk::ibgda::releaseMemory,
    mk::ibgda::post,
    mk::ibgda::poll,
    mk::ibgda::close,
    mk::ibgda::queueDescriptor,
    mk::ibgda::memoryDescriptor,
};
