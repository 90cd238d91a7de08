// The exported table of the loopback transport.  Every call comes through here: exceptions end here and become a return value
// and the text of lastError.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "endpoint.h"
#include "failure.h"
#include "settings.h"

namespace mk::loopback {
namespace {

struct Context {
  Settings settings;
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

int init(const mkTransportHost_t* host, void** context) {
  return guarded([&] {
    required(context, "context") = nullptr;
    const mkTransportHost_t& given = required(host, "host");
    if (given.abiMajor != MK_TRANSPORT_ABI_MAJOR)
      fail(mkErrorVersion, "the library's interface is %u.%u, this plugin is built for %u.%u", given.abiMajor,
           given.abiMinor, MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR);
    setHost(host);
    *context = new Context{readSettings(given)};
  });
}

void fini(void* context) { delete static_cast<Context*>(context); }

int deviceCount(void* context, int* count) {
  return guarded([&] {
    required(static_cast<Context*>(context), "context");
    required(count, "count") = 1;
  });
}

int deviceInfo(void* context, int index, mkTransportDevice_t* device) {
  return guarded([&] {
    const Settings& settings = required(static_cast<Context*>(context), "context").settings;
    if (index != 0) fail(mkErrorInvalidArgument, "device %d: the loopback transport has device 0 only", index);
    mkTransportDevice_t value = {};
    std::snprintf(value.name, sizeof(value.name), "loopback");
    value.bytesPerSecond = static_cast<uint64_t>(settings.gigabytesPerSecond * 1e9);
    give(device, value);
  });
}

int properties(void* context, mkTransportProperties_t* result) {
  return guarded([&] {
    const Settings& settings = required(static_cast<Context*>(context), "context").settings;
    mkTransportProperties_t value = {};
    value.contract = settings.contract;
    value.immediateBits = settings.contract == MK_CONTRACT_COMPLETION ? 32 : 0;
    value.maxBatch = kMaxBatch;
    value.maxOutstanding = settings.outstanding;
    value.maxBytes = kMaxBytes;
    give(result, value);
  });
}

int open(void* context, int device, void** endpoint, uint8_t* address) {
  return guarded([&] {
    const Settings& settings = required(static_cast<Context*>(context), "context").settings;
    if (device != 0) fail(mkErrorInvalidArgument, "device %d: the loopback transport has device 0 only", device);
    required(endpoint, "endpoint");
    required(address, "address");
    auto made = std::make_unique<Endpoint>(settings);
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
}  // namespace mk::loopback

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 = {
    sizeof(mkTransport_t),
    MK_TRANSPORT_ABI_MAJOR,
    MK_TRANSPORT_ABI_MINOR,
    0,
    "loopback",
    mk::loopback::init,
    mk::loopback::fini,
    mk::loopback::lastError,
    mk::loopback::deviceCount,
    mk::loopback::deviceInfo,
    mk::loopback::properties,
    mk::loopback::open,
    mk::loopback::connect,
    mk::loopback::registerMemory,
    mk::loopback::deregisterMemory,
    mk::loopback::importMemory,
    mk::loopback::releaseMemory,
    mk::loopback::post,
    mk::loopback::poll,
    mk::loopback::close,
    nullptr,  // queueDescriptor: nothing a GPU could write
    nullptr,  // memoryDescriptor
};
