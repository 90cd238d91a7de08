// The exported table over a plugin's classes.  Every call comes through here: exceptions end here and become a return value and
// the text of lastError.  Each plugin.cc says what its context is:
//   Context(const mkTransportHost_t&)            loads and checks whatever the transport needs
//   int devices() const
//   mkTransportDevice_t device(int index) const  structSize is filled in here, as in what follows
//   mkTransportProperties_t properties() const
//   std::unique_ptr<Endpoint> open(int index) const
// and Endpoint has the calls of an endpoint by their names in the table.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "common/failure.h"

namespace mk::plugin {

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

// pciBusId: "" if none.
inline mkTransportDevice_t tellDevice(const std::string& name, const std::string& pciBusId, uint64_t bytesPerSecond) {
  mkTransportDevice_t device = {};
  std::snprintf(device.name, sizeof(device.name), "%s", name.c_str());
  std::snprintf(device.pciBusId, sizeof(device.pciBusId), "%s", pciBusId.c_str());
  device.bytesPerSecond = bytesPerSecond;
  return device;
}

template <typename Context, typename Endpoint>
class Table {
 public:
  static Endpoint& endpointOf(void* endpoint) { return required(static_cast<Endpoint*>(endpoint), "endpoint"); }

  // queueDescriptor, memoryDescriptor: NULL where agents cannot write the queues.
  static constexpr mkTransport_t make(const char* name,
                                      decltype(mkTransport_t::queueDescriptor) queueDescriptor = nullptr,
                                      decltype(mkTransport_t::memoryDescriptor) memoryDescriptor = nullptr) {
    return {sizeof(mkTransport_t),
            MK_TRANSPORT_ABI_MAJOR,
            MK_TRANSPORT_ABI_MINOR,
            0,
            name,
            init,
            fini,
            lastError,
            deviceCount,
            deviceInfo,
            properties,
            open,
            connect,
            registerMemory,
            deregisterMemory,
            importMemory,
            releaseMemory,
            post,
            poll,
            close,
            queueDescriptor,
            memoryDescriptor};
  }

 private:
  static Context& contextOf(void* context) { return required(static_cast<Context*>(context), "context"); }

  static const Context& withDevice(void* context, int index) {
    const Context& known = contextOf(context);
    if (index < 0 || index >= known.devices())
      fail(mkErrorInvalidArgument, "device %d: must be 0 to %d", index, known.devices() - 1);
    return known;
  }

  static int init(const mkTransportHost_t* host, void** context) {
    return guarded([&] {
      required(context, "context") = nullptr;
      const mkTransportHost_t& given = required(host, "host");
      if (given.abiMajor != MK_TRANSPORT_ABI_MAJOR)
        fail(mkErrorVersion, "the library's interface is %u.%u, this plugin is built for %u.%u", given.abiMajor,
             given.abiMinor, MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR);
      setHost(host);
      *context = std::make_unique<Context>(given).release();
    });
  }

  static void fini(void* context) { delete static_cast<Context*>(context); }

  static int deviceCount(void* context, int* count) {
    return guarded([&] { required(count, "count") = contextOf(context).devices(); });
  }

  static int deviceInfo(void* context, int index, mkTransportDevice_t* device) {
    return guarded([&] { give(device, withDevice(context, index).device(index)); });
  }

  static int properties(void* context, mkTransportProperties_t* result) {
    return guarded([&] { give(result, contextOf(context).properties()); });
  }

  static int open(void* context, int device, void** endpoint, uint8_t* address) {
    return guarded([&] {
      const Context& known = withDevice(context, device);
      required(endpoint, "endpoint");
      required(address, "address");
      auto made = known.open(device);
      std::memset(address, 0, MK_TRANSPORT_ADDRESS_BYTES);
      std::memcpy(address, &made->address(), sizeof(made->address()));
      *endpoint = made.release();
    });
  }

  static int connect(void* endpoint, int count, int self, const uint8_t* addresses, int timeoutMs) {
    return guarded([&] { endpointOf(endpoint).connect(count, self, addresses, timeoutMs); });
  }

  static int registerMemory(void* endpoint, const mkTransportMemory_t* memory, void** handle, uint8_t* key) {
    return guarded([&] {
      required(key, "key");
      required(handle, "handle") = endpointOf(endpoint).registerMemory(required(memory, "memory"), key);
    });
  }

  static int deregisterMemory(void* endpoint, void* handle) {
    return guarded([&] { endpointOf(endpoint).deregisterMemory(handle); });
  }

  static int importMemory(void* endpoint, int peer, const uint8_t* key, int timeoutMs, void** remote) {
    return guarded([&] {
      required(key, "key");
      required(remote, "remote") = endpointOf(endpoint).importMemory(peer, key, timeoutMs);
    });
  }

  static int releaseMemory(void* endpoint, void* remote) {
    return guarded([&] { endpointOf(endpoint).releaseMemory(remote); });
  }

  static int post(void* endpoint, int peer, const mkTransportWrite_t* writes, int count, int* accepted) {
    return guarded([&] {
      required(accepted, "accepted") = 0;
      *accepted = endpointOf(endpoint).post(peer, writes, count);
    });
  }

  static int poll(void* endpoint, mkTransportEvent_t* events, int capacity, int* count) {
    return guarded([&] {
      required(count, "count") = 0;
      *count = endpointOf(endpoint).poll(events, capacity);
    });
  }

  static int close(void* endpoint) {
    return guarded([&] { delete &endpointOf(endpoint); });
  }
};

}  // namespace mk::plugin
