// A plugin that passes everything to another one (parameter FAULTY_INNER: its path) but commits one fault (FAULTY_FAULT), so
// that the conformance suite can show that it finds it.  conformance_test.cc says which check is to find which.
//   none       nothing
// Of writes:
//   early      some notifications go out milliseconds before their payload
//   hasty      some completions come milliseconds before the write is carried out
//   lost       one write completes without having been delivered
//   long       some writes are one byte too long
//   late       some writes are delivered again after they have completed
//   twice      some completions come twice
//   altered    some notifications have another value
//   tail       writes of more than 32 MiB lack their last byte
//   batch      so does a call that takes more than 32 writes: the last completes without having been delivered
//   wrap       and the 65536th write to a peer
//   offset     offsets of destinations have 32 bits
//   flag       offsets of flags have
//   boundless  more writes are taken than may be outstanding
//   stuck      once there was no room, there never is again
// Of what is to be refused, and of memory:
//   unchecked  writes that make no sense complete
//   partial    what comes before such a write in its batch is carried out
//   anykind    memory of any kind is taken for host memory
//   oneimport  a second import of a key is the first
//   anykey     any key can be imported
// Of the end:
//   abrupt     an orderly close looks like a death
//   zombie     writes to a peer that is gone succeed
//   deaf       nobody tells of a death
//   lateclose  writing goes on after close
//   fdleak     every endpoint leaves a descriptor
//   mapleak    every endpoint leaves a mapping
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

  bool has(const char* name) const { return fault == name; }
};

struct Delayed {
  Clock::time_point due;
  int peer;
  mkTransportWrite_t write;
};

struct Peer {
  uint64_t posted = 0;
  uint32_t outstanding = 0;  // accepted, completion not handed out
  bool stuck = false;
};

struct Endpoint {
  Context* context;
  void* inner = nullptr;
  uint32_t maxOutstanding = 0;
  uint64_t posted = 0;
  std::map<int, Peer> peers;
  std::deque<Delayed> delayed;
  std::deque<mkTransportEvent_t> events;
  std::map<uint64_t, mkTransportWrite_t> underWay;     // for `late`, by cookie
  std::map<std::vector<uint8_t>, void*> imports;       // for `oneimport`, by key
  std::map<int, std::deque<mkTransportWrite_t>> held;  // for `boundless`, by peer
  Delayed last;                                        // for `lateclose`

  const mkTransport_t& table() const { return *context->inner; }
  void sent(int peer, uint64_t cookie) { events.push_back({MK_EVENT_SENT, peer, mkSuccess, 0, cookie}); }
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

int registerMemory(void* opaque, const mkTransportMemory_t* memory, void** handle, uint8_t* key) {
  const Endpoint& endpoint = *static_cast<Endpoint*>(opaque);
  mkTransportMemory_t taken = *memory;
  if (endpoint.context->has("anykind")) taken.kind = MK_MEMORY_KIND_HOST;
  return endpoint.table().registerMemory(endpoint.inner, &taken, handle, key);
}

int deregisterMemory(void* endpoint, void* handle) {
  return innerOf(endpoint).deregisterMemory(innerEndpoint(endpoint), handle);
}

int importMemory(void* opaque, int peer, const uint8_t* key, int timeoutMs, void** remote) {
  Endpoint& endpoint = *static_cast<Endpoint*>(opaque);
  const std::vector<uint8_t> name(key, key + MK_TRANSPORT_KEY_BYTES);
  const auto earlier = endpoint.imports.find(name);
  if (endpoint.context->has("oneimport") && earlier != endpoint.imports.end()) {
    *remote = earlier->second;
    return mkSuccess;
  }
  const int status = endpoint.table().importMemory(endpoint.inner, peer, key, timeoutMs, remote);
  if (status == mkSuccess) endpoint.imports[name] = *remote;
  return endpoint.context->has("anykey") ? int{mkSuccess} : status;
}

int releaseMemory(void* endpoint, void* remote) {
  return innerOf(endpoint).releaseMemory(innerEndpoint(endpoint), remote);
}

// Whether the write number `number` to the peer, at `place` of a call with `count`, is to be swallowed.
bool swallowed(const Endpoint& endpoint, const Peer& peer, int place, int count) {
  const auto n = static_cast<uint64_t>(place) + 1;
  const Context& context = *endpoint.context;
  return (context.has("lost") && endpoint.posted + n == 10) ||
         (context.has("batch") && count > 32 && place == count - 1) ||
         (context.has("wrap") && peer.posted + n == uint64_t{1} << 16);
}

mkTransportWrite_t spoilt(const Endpoint& endpoint, const mkTransportWrite_t& original, bool chosen) {
  const Context& context = *endpoint.context;
  mkTransportWrite_t write = original;
  if (context.has("long") && chosen) ++write.bytes;
  if (context.has("tail") && write.bytes > 32 << 20) --write.bytes;
  if (context.has("offset")) write.remoteOffset &= UINT32_MAX;
  if (context.has("flag")) write.flagOffset &= UINT32_MAX;
  if (context.has("altered") && chosen) {
    write.flagValue ^= 0x10;
    write.immediate ^= 0x100000;
  }
  if (context.has("early") && chosen) {
    write.bytes = 0;
    write.cookie = kOwnCookie;
  }
  return write;
}

// The first of them, up to one that is swallowed.
int postSome(Endpoint& endpoint, int index, const mkTransportWrite_t* writes, int count, int* accepted) {
  const Context& context = *endpoint.context;
  Peer& peer = endpoint.peers[index];
  std::vector<mkTransportWrite_t> passed;
  std::vector<bool> chosen;
  int swallow = 0;
  for (int i = 0; i < count && swallow == 0; ++i) {
    chosen.push_back((endpoint.posted + static_cast<uint64_t>(i) + 1) % 5 == 0 && writes[i].bytes > 0);
    if (swallowed(endpoint, peer, i, count) || (context.has("hasty") && chosen.back())) {
      swallow = 1;
    } else {
      passed.push_back(spoilt(endpoint, writes[i], chosen.back()));
    }
  }
  const int whole = static_cast<int>(passed.size());
  if (whole > 0 || swallow == 0) {
    const int status = endpoint.table().post(endpoint.inner, index, passed.data(), whole, accepted);
    if (status != mkSuccess) return status;
  }
  for (int i = 0; i < *accepted; ++i) {
    if (context.has("early") && chosen[static_cast<size_t>(i)])
      endpoint.delayed.push_back({Clock::now() + 3ms, index, writes[i]});
    if (context.has("late") && chosen[static_cast<size_t>(i)]) endpoint.underWay[writes[i].cookie] = writes[i];
    endpoint.last = {Clock::now(), index, writes[i]};
  }
  if (*accepted == whole && swallow != 0) {
    endpoint.sent(index, writes[whole].cookie);
    if (context.has("hasty")) {
      endpoint.delayed.push_back({Clock::now() + 3ms, index, writes[whole]});
      endpoint.delayed.back().write.cookie = kOwnCookie;
    }
    ++*accepted;
  }
  return mkSuccess;
}

int post(void* opaque, int index, const mkTransportWrite_t* writes, int count, int* accepted) {
  Endpoint& endpoint = *static_cast<Endpoint*>(opaque);
  const Context& context = *endpoint.context;
  *accepted = 0;
  if (context.has("partial") && count > 1) {
    // One by one, with completions that nobody hears of, if the whole is refused.
    int status = endpoint.table().post(endpoint.inner, index, writes, count, accepted);
    for (int i = 0; status != mkSuccess && i < count; ++i) {
      mkTransportWrite_t one = writes[i];
      one.cookie = kOwnCookie;
      int taken = 0;
      if (endpoint.table().post(endpoint.inner, index, &one, 1, &taken) != mkSuccess) break;
    }
    if (status == mkSuccess) endpoint.peers[index].outstanding += static_cast<uint32_t>(*accepted);
    return status;
  }
  Peer& peer = endpoint.peers[index];
  // The inner plugin does not know of all.
  const int room = static_cast<int>(endpoint.maxOutstanding - peer.outstanding);
  if (peer.stuck) return mkSuccess;
  const bool bounded = !context.has("boundless");
  const int offered = bounded && count > 0 ? std::min(count, room) : count;
  int status = mkSuccess;
  if (offered > 0 || count <= 0) status = postSome(endpoint, index, writes, offered, accepted);
  if (status != mkSuccess) {
    const bool pretends = context.has(status == mkErrorInvalidArgument ? "unchecked" : "zombie");
    if (!pretends) return status;
    for (*accepted = 0; *accepted < count; ++*accepted) endpoint.sent(index, writes[*accepted].cookie);
  }
  for (; !bounded && *accepted < count; ++*accepted) endpoint.held[index].push_back(writes[*accepted]);
  if (context.has("stuck") && count > 0 && *accepted == 0) peer.stuck = true;
  peer.outstanding += static_cast<uint32_t>(*accepted);
  peer.posted += static_cast<uint64_t>(*accepted);
  endpoint.posted += static_cast<uint64_t>(*accepted);
  return mkSuccess;
}

void postWhatWaits(Endpoint& endpoint) {
  const auto posted = [&](int peer, const mkTransportWrite_t& write) {
    int accepted = 0;
    endpoint.table().post(endpoint.inner, peer, &write, 1, &accepted);
    return accepted == 1;
  };
  while (!endpoint.delayed.empty() && endpoint.delayed.front().due <= Clock::now()) {
    if (!posted(endpoint.delayed.front().peer, endpoint.delayed.front().write)) break;
    endpoint.delayed.pop_front();
  }
  for (auto& [peer, held] : endpoint.held)
    while (!held.empty() && posted(peer, held.front())) held.pop_front();
}

// An event of the inner plugin's, passed on or not.
void hear(Endpoint& endpoint, mkTransportEvent_t event) {
  const Context& context = *endpoint.context;
  if (event.kind == MK_EVENT_SENT && event.cookie == kOwnCookie) return;
  const bool pretends = context.has("zombie") && endpoint.peers[event.peer].posted > 0;
  if (event.kind == MK_EVENT_ERROR && (context.has("deaf") || pretends)) return;
  if (event.kind == MK_EVENT_SENT && pretends) event.status = mkSuccess;
  endpoint.events.push_back(event);
  if (event.kind != MK_EVENT_SENT) return;
  if (context.has("twice") && event.cookie % 8 == 0) endpoint.events.push_back(event);
  const auto again = endpoint.underWay.find(event.cookie);
  if (again == endpoint.underWay.end()) return;
  endpoint.delayed.push_back({Clock::now() + 10ms, event.peer, again->second});
  endpoint.delayed.back().write.cookie = kOwnCookie;
  endpoint.underWay.erase(again);
}

int poll(void* opaque, mkTransportEvent_t* events, int capacity, int* count) {
  Endpoint& endpoint = *static_cast<Endpoint*>(opaque);
  postWhatWaits(endpoint);
  const int status = endpoint.table().poll(endpoint.inner, events, capacity, count);
  if (status != mkSuccess) return status;
  for (int i = 0; i < *count; ++i) hear(endpoint, events[i]);
  *count = 0;
  for (; *count < capacity && !endpoint.events.empty(); endpoint.events.pop_front()) {
    const mkTransportEvent_t& event = events[(*count)++] = endpoint.events.front();
    uint32_t& outstanding = endpoint.peers[event.peer].outstanding;
    if (event.kind == MK_EVENT_SENT && outstanding > 0) --outstanding;
  }
  return mkSuccess;
}

// Ends the inner plugin's connections without a word.  They have names, of which the tests' own sockets have none.
void cutConnections() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_un own = {}, other = {};
    socklen_t ownBytes = sizeof(own), otherBytes = sizeof(other);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &ownBytes) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr*>(&other), &otherBytes) != 0)
      continue;
    if (std::max(ownBytes, otherBytes) > sizeof(sa_family_t)) shutdown(fd, SHUT_RDWR);
  }
}

// Writes its last write again and again for a while, in a process that has this one's memory.
void writeOn(const Endpoint& endpoint) {
  if (fork() != 0) return;
  mkTransportWrite_t write = endpoint.last.write;
  write.cookie = kOwnCookie;
  for (int i = 0; i < 50; ++i) {
    int count = 0;
    mkTransportEvent_t events[16];
    endpoint.table().post(endpoint.inner, endpoint.last.peer, &write, 1, &count);
    endpoint.table().poll(endpoint.inner, events, 16, &count);
    std::this_thread::sleep_for(2ms);
  }
  _exit(0);
}

int close(void* opaque) {
  const std::unique_ptr<Endpoint> endpoint(static_cast<Endpoint*>(opaque));
  const Context& context = *endpoint->context;
  if (context.has("abrupt")) {
    cutConnections();
    return mkSuccess;
  }
  if (context.has("lateclose") && endpoint->last.write.bytes > 0) writeOn(*endpoint);
  if (context.has("fdleak") && ::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) return mkErrorSystem;
  if (context.has("mapleak")) {
    const int fd = memfd_create("mkernel-faulty", MFD_CLOEXEC);
    if (ftruncate(fd, 4096) != 0) return mkErrorSystem;
    void* const left = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (left == MAP_FAILED) return mkErrorSystem;
  }
  return endpoint->table().close(endpoint->inner);
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
