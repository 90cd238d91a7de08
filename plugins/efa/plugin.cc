// The exported table of the efa transport.  Every call comes through here: exceptions end here and become a return value
// and the text of lastError.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "endpoint.h"
#include "failure.h"
#include "provider.h"
#include "settings.h"

namespace mk::efa {
namespace {

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

int init(const mkTransportHost_t* host, void** context) {
  return guarded([&] {
    required(context, "context") = nullptr;
    const mkTransportHost_t& given = required(host, "host");
    if (given.abiMajor != MK_TRANSPORT_ABI_MAJOR)
      fail(mkErrorVersion, "the library's interface is %u.%u, this plugin is built for %u.%u", given.abiMajor,
           given.abiMinor, MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR);
    setHost(host);
    *context = std::make_unique<Provider>(readSettings(given)).release();
  });
}

void fini(void* context) { delete static_cast<Provider*>(context); }

Provider& providerOf(void* context) { return required(static_cast<Provider*>(context), "context"); }

const Device& deviceOf(const Provider& provider, int index) {
  if (index < 0 || static_cast<size_t>(index) >= provider.devices().size())
    fail(mkErrorInvalidArgument, "device %d: must be 0 to %zu", index, provider.devices().size() - 1);
  return provider.devices()[static_cast<size_t>(index)];
}

int deviceCount(void* context, int* count) {
  return guarded([&] { required(count, "count") = static_cast<int>(providerOf(context).devices().size()); });
}

int deviceInfo(void* context, int index, mkTransportDevice_t* device) {
  return guarded([&] {
    const Device& found = deviceOf(providerOf(context), index);
    mkTransportDevice_t value = {};
    std::snprintf(value.name, sizeof(value.name), "%s", found.name.c_str());
    std::snprintf(value.pciBusId, sizeof(value.pciBusId), "%s", found.pciBusId.c_str());
    value.bytesPerSecond = found.bytesPerSecond;
    give(device, value);
  });
}

int properties(void* context, mkTransportProperties_t* result) {
  return guarded([&] {
    const Provider& provider = providerOf(context);
    mkTransportProperties_t value = {};
    value.contract = MK_CONTRACT_COMPLETION;
    value.immediateBits = 32;
    value.maxBatch = kMaxBatch;
    value.maxOutstanding = provider.settings().outstanding;
    value.maxBytes = provider.maxBytes();
    give(result, value);
  });
}

int open(void* context, int device, void** endpoint, uint8_t* address) {
  return guarded([&] {
    const Provider& provider = providerOf(context);
    const Device& found = deviceOf(provider, device);
    required(endpoint, "endpoint");
    required(address, "address");
    auto made = std::make_unique<Endpoint>(provider, found);
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
}  // namespace mk::efa

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 = {
    sizeof(mkTransport_t),
    MK_TRANSPORT_ABI_MAJOR,
    MK_TRANSPORT_ABI_MINOR,
    0,
    "efa",
    mk::efa::init,
    mk::efa::fini,
    mk::efa::lastError,
    mk::efa::deviceCount,
    mk::efa::deviceInfo,
    mk::efa::properties,
    mk::efa::open,
    mk::efa::connect,
    mk::efa::registerMemory,
    mk::efa::deregisterMemory,
    mk::efa::importMemory,
    mk::efa::releaseMemory,
    mk::efa::post,
    mk::efa::poll,
    mk::efa::close,
    nullptr,  // queueDescriptor: nothing a GPU could write
    nullptr,  // memoryDescriptor
};
