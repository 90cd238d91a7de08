// Transport `blind`: loopback, but for a card that cannot reach the memory agents use.  It refuses what an endpoint is asked to
// register first, the heap, as memory of a GPU would be refused, and whatever else lies there; other memory it takes.
#include <dlfcn.h>

#include <cstdio>
#include <map>

#include "mkernel.h"
#include "mkernel/transport.h"

namespace {

constexpr uint64_t kHeapBytes = uint64_t{1} << 30;  // of addresses, at least (MKERNEL_HEAP_MAX_BYTES in the tests)

const mkTransport_t* inner = nullptr;
thread_local bool refused = false;
// By endpoint; each is used by one process, whose ranks are one.
std::map<void*, uint64_t>& heaps() {
  static std::map<void*, uint64_t> all;
  return all;
}

const char* lastError() { return refused ? "blind to the heap" : inner->lastError(); }

int registerMemory(void* endpoint, const mkTransportMemory_t* memory, void** handle, uint8_t* key) {
  const auto at = reinterpret_cast<uint64_t>(memory->address);
  const uint64_t heap = heaps().emplace(endpoint, at).first->second;
  refused = at >= heap && at - heap < kHeapBytes;
  return refused ? int{mkErrorNotSupported} : inner->registerMemory(endpoint, memory, handle, key);
}

mkTransport_t make() {
  void* const object = dlopen(MK_TEST_LOOPBACK, RTLD_NOW | RTLD_LOCAL);
  if (object != nullptr) inner = static_cast<const mkTransport_t*>(dlsym(object, MK_TRANSPORT_SYMBOL));
  if (inner == nullptr) {
    std::fprintf(stderr, "blind: no loopback: %s\n", dlerror());
    return {};
  }
  mkTransport_t table = *inner;
  table.name = "blind";
  table.lastError = lastError;
  table.registerMemory = registerMemory;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 = make();
