// See endpoint.h.
#include "endpoint.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/checks.h"
#include "common/failure.h"
#include "common/verbs_events.h"

namespace mk::plugin::ibgda {
namespace {

constexpr uint32_t kMagic = 0x6d6b4744;  // "mkGD"
constexpr uint32_t kWireVersion = 2;
constexpr uint32_t kPollsPerLook = 64;  // at the device's events

// How a peer names registered memory.
struct Key {
  uint32_t magic, key;
  uint64_t endpoint, address, bytes;
};
static_assert(sizeof(Key) <= MK_TRANSPORT_KEY_BYTES);

}  // namespace

Endpoint::Endpoint(const RdmaPort& port, const Settings& settings)
    : device_(port, settings), registrar_(device_.domain.get()) {
  address_.magic = kMagic;
  address_.version = kWireVersion;
  if (getrandom(&address_.id, sizeof(address_.id), 0) != sizeof(address_.id)) failErrno(errno, "getrandom");
  address_.port = device_.address();
  address_.count = settings.peers;
  for (uint32_t i = 0; i < settings.peers; ++i) {
    connections_.push_back(std::make_unique<Connection>(device_, settings));
    address_.numbers[i] = connections_.back()->number();
  }
}

void Endpoint::connect(int count, int self, const uint8_t* addresses, int timeoutMs) {
  checkConnect(connected_, count, self, addresses, timeoutMs);
  if (static_cast<uint32_t>(count) > address_.count)
    fail(mkErrorNotSupported, "%d peers; MKERNEL_IBGDA_PEERS=%u is the limit, and %u the highest", count,
         address_.count, kMostPeers);
  ids_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (i == self) continue;
    Address peer = {};
    std::memcpy(&peer, addresses + size_t{MK_TRANSPORT_ADDRESS_BYTES} * static_cast<size_t>(i), sizeof(peer));
    const std::string name = "peer " + std::to_string(i);
    if (peer.magic != kMagic || peer.version != kWireVersion)
      fail(mkErrorInvalidArgument, "the address of %s is not one of this version of the ibgda transport", name.c_str());
    if (static_cast<uint32_t>(count) > peer.count || peer.count > kMostPeers)
      fail(mkErrorNotSupported, "%d peers, but %s has MKERNEL_IBGDA_PEERS=%u", count, name.c_str(), peer.count);
    RdmaPath path = {};
    try {
      path = agree(address_.port, peer.port);
    } catch (const Failure& failure) {
      fail(failure.code(), "%s: %s", name.c_str(), failure.what());
    }
    connections_[static_cast<size_t>(i)]->connect(device_, peer.port, path, peer.numbers[self], name);
    ids_[static_cast<size_t>(i)] = peer.id;
  }
  connections_.resize(static_cast<size_t>(count));
  connections_[static_cast<size_t>(self)].reset();
  self_ = self;
  connected_ = true;
}

Connection& Endpoint::connectionTo(int peer) const {
  checkPeer(connected_, connections_.size(), peer);
  checkNotSelf(peer == self_, peer);
  return *connections_[static_cast<size_t>(peer)];
}

void* Endpoint::registerMemory(const mkTransportMemory_t& memory, uint8_t* key) {
  checkMemory(connected_, memory);
  // Never with relaxed ordering: flags lie in the same memory as what they announce.
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  auto made = std::make_unique<LocalMemory>();
  made->address = static_cast<char*>(memory.address);
  made->bytes = memory.bytes;
  made->region = Reached(registrar_, memory, kAccess).take();
  const Key bytes{kMagic, made->region->rkey, address_.id, reinterpret_cast<uint64_t>(made->address), made->bytes};
  std::memset(key, 0, MK_TRANSPORT_KEY_BYTES);
  std::memcpy(key, &bytes, sizeof(bytes));
  LocalMemory* const handle = made.get();
  registrations_.emplace(handle, std::move(made));
  return handle;
}

void Endpoint::deregisterMemory(void* handle) {
  if (registrations_.erase(handle) == 0)
    fail(mkErrorInvalidArgument, "handle %p is not a registration of this endpoint", handle);
}

void* Endpoint::importMemory(int peer, const uint8_t* keyBytes, int) {
  connectionTo(peer);
  Key key = {};
  std::memcpy(&key, keyBytes, sizeof(key));
  if (key.magic != kMagic) fail(mkErrorInvalidArgument, "the key is not one of the ibgda transport");
  if (key.endpoint != ids_[static_cast<size_t>(peer)])
    fail(mkErrorInvalidArgument, "the key is not one of peer %d", peer);
  auto made = std::make_unique<RemoteMemory>(RemoteMemory{peer, key.key, key.address, key.bytes});
  RemoteMemory* const handle = made.get();
  imports_.emplace(handle, std::move(made));
  return handle;
}

void Endpoint::releaseMemory(void* remote) {
  if (imports_.erase(remote) == 0) fail(mkErrorInvalidArgument, "remote %p is not an import of this endpoint", remote);
}

const RemoteMemory& Endpoint::remoteOf(int peer, const void* remote, const char* what) const {
  const auto found = imports_.find(remote);
  if (found == imports_.end()) fail(mkErrorInvalidArgument, "%s %p is not an import of this endpoint", what, remote);
  if (found->second->peer != peer)
    fail(mkErrorInvalidArgument, "%s belongs to peer %d, the write goes to peer %d", what, found->second->peer, peer);
  return *found->second;
}

void Endpoint::check(int peer, const mkTransportWrite_t& w) const {
  if (w.bytes != 0) {
    const auto local = registrations_.find(w.localMemory);
    if (local == registrations_.end())
      fail(mkErrorInvalidArgument, "localMemory %p is not a registration of this endpoint", w.localMemory);
    checkSource(w, local->second->address, local->second->bytes);
    checkDestination(w, remoteOf(peer, w.remoteMemory, "remoteMemory").bytes);
    checkSize(w, kMaxBytes);
  }
  const RemoteMemory& flag = remoteOf(peer, w.flagMemory, "flagMemory");
  checkFlag(w, flag.address, flag.bytes);
}

int Endpoint::post(int peer, const mkTransportWrite_t* writes, int count) {
  Connection& connection = connectionTo(peer);
  checkBatch(writes, count);
  if (connection.handedOut())
    fail(mkErrorInvalidUsage, "the queue to peer %d has been handed out: agents write it themselves", peer);
  count = std::min(count, static_cast<int>(kMaxBatch));
  for (int i = 0; i < count; ++i) check(peer, writes[i]);
  return connection.post(peer, writes, count, events_);
}

// What the device says of itself and of connections.
void Endpoint::hearDevice() {
  ibv_async_event event = {};
  while (ibv_get_async_event(device_.context.get(), &event) == 0) {
    const EventMeaning meaning = meaningOf(event.event_type);
    const std::string text = format("%s: %s", device_.info.name().c_str(), ibv_event_type_str(event.event_type));
    const bool otherPort = meaning == EventMeaning::portEnds && event.element.port_num != device_.info.port;
    if (meaning == EventMeaning::deviceEnds || (meaning == EventMeaning::portEnds && !otherPort)) {
      if (deviceReason_.empty()) {
        deviceReason_ = text;
        events_.push_back({MK_EVENT_ERROR, -1, mkErrorTransport, 0, 0});
      }
      for (size_t i = 0; i < connections_.size(); ++i)
        if (connections_[i] != nullptr) connections_[i]->breakOff(static_cast<int>(i), text, false, events_);
    } else if (meaning == EventMeaning::pairEnds) {
      for (size_t i = 0; i < connections_.size(); ++i)
        if (connections_[i] != nullptr && connections_[i]->number() == event.element.qp->qp_num)
          connections_[i]->breakOff(static_cast<int>(i), text, true, events_);
    } else if (meaning == EventMeaning::mayBreak) {
      MK_PLUGIN_WARN("%s: connections made before may break", text.c_str());
    } else {
      MK_PLUGIN_INFO("%s%s", text.c_str(), otherPort ? ", of another port" : "");
    }
    ibv_ack_async_event(&event);
  }
}

int Endpoint::poll(mkTransportEvent_t* events, int capacity) {
  checkEvents(events, capacity);
  if (polls_++ % kPollsPerLook == 0) hearDevice();
  for (size_t i = 0; connected_ && i < connections_.size(); ++i)
    if (connections_[i] != nullptr) connections_[i]->poll(static_cast<int>(i), events_);
  int count = 0;
  for (; count < capacity && !events_.empty(); ++count) {
    events[count] = events_.front();
    events_.pop_front();
    if (events[count].kind == MK_EVENT_SENT) connectionTo(events[count].peer).told();
    if (events[count].kind == MK_EVENT_ERROR)
      setLastError(events[count].peer < 0 ? deviceReason_ : connectionTo(events[count].peer).reason());
  }
  return count;
}

mkQueueDescriptor_t Endpoint::handOut(int peer) { return connectionTo(peer).handOut(); }

mkQueueMemory_t Endpoint::describe(void* local, void* remote) const {
  mkQueueMemory_t m = {};
  m.structSize = sizeof(m);
  if ((local == nullptr) == (remote == nullptr))
    fail(mkErrorInvalidArgument, "local %p, remote %p: exactly one must be given", local, remote);
  if (local != nullptr) {
    const auto found = registrations_.find(local);
    if (found == registrations_.end())
      fail(mkErrorInvalidArgument, "local %p is not a registration of this endpoint", local);
    m.key = found->second->region->lkey;
    m.address = reinterpret_cast<uint64_t>(found->second->address);
    m.bytes = found->second->bytes;
  } else {
    const auto found = imports_.find(remote);
    if (found == imports_.end()) fail(mkErrorInvalidArgument, "remote %p is not an import of this endpoint", remote);
    m.key = found->second->key;
    m.address = found->second->address;
    m.bytes = found->second->bytes;
  }
  return m;
}

}  // namespace mk::plugin::ibgda
