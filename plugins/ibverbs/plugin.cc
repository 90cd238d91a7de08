// The exported table of the ibverbs transport.  Every call comes through here: exceptions end here and become a return value
// and the text of lastError.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "devices.h"
#include "endpoint.h"
#include "failure.h"
#include "settings.h"

namespace mk::ibverbs {
namespace {

struct Context {
  Settings settings;
  std::vector<Device> devices;
  uint32_t outstanding = 0;
  uint64_t maxBytes = 0;

  const Device& device(int index) const {
    if (index < 0 || static_cast<size_t>(index) >= devices.size())
      fail(mkErrorInvalidArgument, "device %d: must be 0 to %zu", index, devices.size() - 1);
    return devices[static_cast<size_t>(index)];
  }
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
  value.structSize = size;
  std::memcpy(to, &value, std::min<size_t>(size, sizeof(T)));
}

Endpoint& endpointOf(void* endpoint) { return required(static_cast<Endpoint*>(endpoint), "endpoint"); }

Context& contextOf(void* context) { return required(static_cast<Context*>(context), "context"); }

std::unique_ptr<Context> makeContext(const mkTransportHost_t& host) {
  auto made = std::make_unique<Context>();
  made->settings = readSettings(host);
  // So that a child's copies of registered pages are its own on kernels before 5.12; later ones see to it themselves.
  if (const int error = ibv_fork_init(); error != 0)
    MK_IBVERBS_INFO("no protection of registered memory in forked children: %s", std::strerror(error));
  std::vector<std::string> refused;
  made->devices = findDevices(made->settings, &refused);
  std::string reasons;
  for (const std::string& reason : refused) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
    MK_IBVERBS_INFO("not used: %s", reason.c_str());
  }
  if (made->devices.empty())
    fail(mkErrorTransport, "no usable RDMA port: %s", reasons.empty() ? "there is no RDMA device" : reasons.c_str());
  made->outstanding = made->settings.outstanding;
  made->maxBytes = UINT64_MAX;
  for (const Device& device : made->devices) {
    const int places = std::min(device.maxRequests - static_cast<int>(kOwnRequests),
                                device.maxCompletions - static_cast<int>(kOwnRequests * kMaxConnections));
    if (places < 2)
      fail(mkErrorTransport, "%s has queues of %d requests only", device.name().c_str(), device.maxRequests);
    made->outstanding = std::min(made->outstanding, static_cast<uint32_t>(places) / 2);
    made->maxBytes = std::min(made->maxBytes, device.maxBytes);
    MK_IBVERBS_INFO("%s: %.1f GB/s, PCI %s", device.name().c_str(), static_cast<double>(device.bytesPerSecond) * 1e-9,
                    device.pciBusId.empty() ? "none" : device.pciBusId.c_str());
  }
  return made;
}

int init(const mkTransportHost_t* host, void** context) {
  return guarded([&] {
    required(context, "context") = nullptr;
    const mkTransportHost_t& given = required(host, "host");
    if (given.abiMajor != MK_TRANSPORT_ABI_MAJOR)
      fail(mkErrorVersion, "the library's interface is %u.%u, this plugin is built for %u.%u", given.abiMajor,
           given.abiMinor, MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR);
    setHost(host);
    *context = makeContext(given).release();
  });
}

void fini(void* context) { delete static_cast<Context*>(context); }

int deviceCount(void* context, int* count) {
  return guarded([&] { required(count, "count") = static_cast<int>(contextOf(context).devices.size()); });
}

int deviceInfo(void* context, int index, mkTransportDevice_t* device) {
  return guarded([&] {
    const Device& found = contextOf(context).device(index);
    mkTransportDevice_t value = {};
    std::snprintf(value.name, sizeof(value.name), "%s", found.name().c_str());
    std::snprintf(value.pciBusId, sizeof(value.pciBusId), "%s", found.pciBusId.c_str());
    value.bytesPerSecond = found.bytesPerSecond;
    give(device, value);
  });
}

int properties(void* context, mkTransportProperties_t* result) {
  return guarded([&] {
    const Context& known = contextOf(context);
    mkTransportProperties_t value = {};
    value.contract = MK_CONTRACT_ORDERED;
    value.maxBatch = kMaxBatch;
    value.maxOutstanding = known.outstanding;
    value.maxBytes = known.maxBytes;
    give(result, value);
  });
}

int open(void* context, int device, void** endpoint, uint8_t* address) {
  return guarded([&] {
    const Context& known = contextOf(context);
    const Device& found = known.device(device);
    required(endpoint, "endpoint");
    required(address, "address");
    auto made = std::make_unique<Endpoint>(found, known.settings, known.outstanding);
    std::memset(address, 0, MK_TRANSPORT_ADDRESS_BYTES);
    std::memcpy(address, &made->address(), sizeof(Address));
    *endpoint = made.release();
  });
}

int connect(void* endpoint, int count, int self, const uint8_t* addresses, int timeoutMs) {
  return guarded([&] { endpointOf(endpoint).connect(count, self, addresses, timeoutMs); });
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

int importMemory(void* endpoint, int peer, const uint8_t* key, int timeoutMs, void** remote) {
  return guarded([&] {
    required(key, "key");
    required(remote, "remote") = endpointOf(endpoint).importMemory(peer, key, timeoutMs);
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

}  // namespace
}  // namespace mk::ibverbs

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 = {
    sizeof(mkTransport_t),
    MK_TRANSPORT_ABI_MAJOR,
    MK_TRANSPORT_ABI_MINOR,
    0,
    "ibverbs",
    mk::ibverbs::init,
    mk::ibverbs::fini,
    mk::ibverbs::lastError,
    mk::ibverbs::deviceCount,
    mk::ibverbs::deviceInfo,
    mk::ibverbs::properties,
    mk::ibverbs::open,
    mk::ibverbs::connect,
    mk::ibverbs::registerMemory,
    mk::ibverbs::deregisterMemory,
    mk::ibverbs::importMemory,
    mk::ibverbs::releaseMemory,
    mk::ibverbs::post,
    mk::ibverbs::poll,
    mk::ibverbs::close,
    nullptr,  // queueDescriptor: nothing a GPU could write
    nullptr,  // memoryDescriptor
};
