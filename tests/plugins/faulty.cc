// A plugin that passes everything to another one (parameter FAULTY_INNER: its path) but commits one fault (FAULTY_FAULT), so
// that the conformance suite can show that it finds it:
//   none     nothing
//   early    some notifications go out milliseconds before their payload
//   lost     one write completes without having been delivered
//   long     some writes are one byte too long
//   late     some writes are delivered again after they have completed
//   twice    some completions come twice
//   altered  some notifications have another value
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "mkernel.h"
#include "mkernel/transport.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Completions with it are the wrapper's own business.
constexpr uint64_t kOwnCookie = uint64_t{1} << 63;

struct Context {
  void* object = nullptr;
  const mkTransport_t* inner = nullptr;
  void* context = nullptr;
  std::string fault;
};

struct Delayed {
  Clock::time_point due;
  int peer;
  mkTransportWrite_t write;
};

struct Endpoint {
  Context* context;
  void* inner = nullptr;
  uint32_t maxOutstanding = 0;
  uint64_t posted = 0;
  std::map<int, uint32_t> outstanding;  // by peer: accepted, completion not handed out
  std::deque<Delayed> delayed;
  std::deque<mkTransportEvent_t> events;
  std::map<uint64_t, mkTransportWrite_t> underWay;  // for `late`, by cookie
};

const mkTransport_t* known = nullptr;  // for lastError
const char* ownError = "";

const mkTransport_t& innerOf(void* endpoint) { return *static_cast<Endpoint*>(endpoint)->context->inner; }
void* innerEndpoint(void* endpoint) { return static_cast<Endpoint*>(endpoint)->inner; }

int init(const mkTransportHost_t* host, void** result) {
  auto context = std::make_unique<Context>();
  const char* path = host->param("FAULTY_INNER");
  const char* fault = host->param("FAULTY_FAULT");
  ownError = "FAULTY_INNER and FAULTY_FAULT must be given";
  if (path == nullptr || fault == nullptr) return mkErrorInvalidArgument;
  context->fault = fault;
  context->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ownError = "FAULTY_INNER cannot be loaded";
  if (context->object == nullptr) return mkErrorSystem;
  context->inner = known = static_cast<const mkTransport_t*>(dlsym(context->object, MK_TRANSPORT_SYMBOL));
  if (context->inner == nullptr) return mkErrorSystem;
  const int status = context->inner->init(host, &context->context);
  if (status != mkSuccess) return status;
  *result = context.release();
  return mkSuccess;
}

void fini(void* opaque) {
  const std::unique_ptr<Context> context(static_cast<Context*>(opaque));
  context->inner->fini(context->context);
  known = nullptr;
  dlclose(context->object);
}

const char* lastError() { return known != nullptr ? known->lastError() : ownError; }

int deviceCount(void* opaque, int* count) {
  const auto* context = static_cast<Context*>(opaque);
  return context->inner->deviceCount(context->context, count);
}

int deviceInfo(void* opaque, int index, mkTransportDevice_t* device) {
  const auto* context = static_cast<Context*>(opaque);
  return context->inner->deviceInfo(context->context, index, device);
}

int properties(void* opaque, mkTransportProperties_t* result) {
  const auto* context = static_cast<Context*>(opaque);
  return context->inner->properties(context->context, result);
}

int open(void* opaque, int device, void** endpoint, uint8_t* address) {
  auto made = std::make_unique<Endpoint>();
  made->context = static_cast<Context*>(opaque);
  mkTransportProperties_t limits = {};
  limits.structSize = sizeof(limits);
  int status = made->context->inner->properties(made->context->context, &limits);
  made->maxOutstanding = limits.maxOutstanding;
  if (status == mkSuccess) status = made->context->inner->open(made->context->context, device, &made->inner, address);
  if (status == mkSuccess) *endpoint = made.release();
  return status;
}

int connect(void* endpoint, int count, int self, const uint8_t* addresses, int timeoutMs) {
  return innerOf(endpoint).connect(innerEndpoint(endpoint), count, self, addresses, timeoutMs);
}

int registerMemory(void* endpoint, const mkTransportMemory_t* memory, void** handle, uint8_t* key) {
  return innerOf(endpoint).registerMemory(innerEndpoint(endpoint), memory, handle, key);
}

int deregisterMemory(void* endpoint, void* handle) {
  return innerOf(endpoint).deregisterMemory(innerEndpoint(endpoint), handle);
}

int importMemory(void* endpoint, int peer, const uint8_t* key, int timeoutMs, void** remote) {
  return innerOf(endpoint).importMemory(innerEndpoint(endpoint), peer, key, timeoutMs, remote);
}

int releaseMemory(void* endpoint, void* remote) {
  return innerOf(endpoint).releaseMemory(innerEndpoint(endpoint), remote);
}

int postOne(Endpoint& endpoint, int peer, const mkTransportWrite_t& original, int* accepted) {
  // The inner plugin does not know of all.
  if (endpoint.outstanding[peer] >= endpoint.maxOutstanding) return mkSuccess;
  const std::string& fault = endpoint.context->fault;
  const bool chosen = ++endpoint.posted % 5 == 0 && original.bytes > 0;
  mkTransportWrite_t write = original;
  if (fault == "lost" && endpoint.posted == 10) {
    endpoint.events.push_back({MK_EVENT_SENT, peer, mkSuccess, 0, write.cookie});
    *accepted = 1;
    return mkSuccess;
  }
  if (fault == "long" && chosen) ++write.bytes;
  if (fault == "altered" && chosen) {
    write.flagValue ^= 0x10;
    write.immediate ^= 0x100000;
  }
  if (fault == "early" && chosen) {
    write.bytes = 0;
    write.cookie = kOwnCookie;
  }
  const int status = endpoint.context->inner->post(endpoint.inner, peer, &write, 1, accepted);
  if (status != mkSuccess || *accepted == 0) {
    --endpoint.posted;
    return status;
  }
  if (fault == "early" && chosen) endpoint.delayed.push_back({Clock::now() + 3ms, peer, original});
  if (fault == "late" && chosen) endpoint.underWay[original.cookie] = original;
  return mkSuccess;
}

int post(void* opaque, int peer, const mkTransportWrite_t* writes, int count, int* accepted) {
  Endpoint& endpoint = *static_cast<Endpoint*>(opaque);
  *accepted = 0;
  for (; *accepted < count; ++*accepted) {
    int one = 0;
    const int status = postOne(endpoint, peer, writes[*accepted], &one);
    if (status != mkSuccess) return *accepted > 0 ? int{mkSuccess} : status;
    if (one == 0) break;
    ++endpoint.outstanding[peer];
  }
  return mkSuccess;
}

int poll(void* opaque, mkTransportEvent_t* events, int capacity, int* count) {
  Endpoint& endpoint = *static_cast<Endpoint*>(opaque);
  const std::string& fault = endpoint.context->fault;
  while (!endpoint.delayed.empty() && endpoint.delayed.front().due <= Clock::now()) {
    const Delayed& first = endpoint.delayed.front();
    int accepted = 0;
    endpoint.context->inner->post(endpoint.inner, first.peer, &first.write, 1, &accepted);
    if (accepted == 0) break;
    endpoint.delayed.pop_front();
  }
  const int status = endpoint.context->inner->poll(endpoint.inner, events, capacity, count);
  if (status != mkSuccess) return status;
  for (int i = 0; i < *count; ++i) {
    const mkTransportEvent_t& event = events[i];
    if (event.kind == MK_EVENT_SENT && event.cookie == kOwnCookie) continue;
    endpoint.events.push_back(event);
    if (event.kind != MK_EVENT_SENT) continue;
    if (fault == "twice" && event.cookie % 8 == 0) endpoint.events.push_back(event);
    const auto again = endpoint.underWay.find(event.cookie);
    if (again == endpoint.underWay.end()) continue;
    endpoint.delayed.push_back({Clock::now() + 10ms, event.peer, again->second});
    endpoint.delayed.back().write.cookie = kOwnCookie;
    endpoint.underWay.erase(again);
  }
  *count = 0;
  for (; *count < capacity && !endpoint.events.empty(); endpoint.events.pop_front()) {
    const mkTransportEvent_t& event = events[(*count)++] = endpoint.events.front();
    uint32_t& outstanding = endpoint.outstanding[event.peer];
    if (event.kind == MK_EVENT_SENT && outstanding > 0) --outstanding;
  }
  return mkSuccess;
}

int close(void* opaque) {
  const std::unique_ptr<Endpoint> endpoint(static_cast<Endpoint*>(opaque));
  return endpoint->context->inner->close(endpoint->inner);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const mkTransport_t mkTransport_v1 = {
    sizeof(mkTransport_t),
    MK_TRANSPORT_ABI_MAJOR,
    MK_TRANSPORT_ABI_MINOR,
    0,
    "faulty",
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
    nullptr,
    nullptr,
};
