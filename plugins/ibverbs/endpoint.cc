// See endpoint.h.  Events and ends are in endpoint_events.cc.
#include "endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/checks.h"
#include "common/failure.h"

namespace mk::plugin::ibverbs {
namespace {

constexpr int kLongestQueue = 1 << 15;  // of completions; endpoints with many peers have several

}  // namespace

std::string Endpoint::Peer::name(size_t index) const {
  return format("peer %zu (%s, host %s, process %lld)", index, address.device, address.host,
                static_cast<long long>(address.pid));
}

// ---- Opening and connecting ----------------------------------------------------------------------------------------

Endpoint::Endpoint(const Device& device, const Settings& settings, uint32_t outstanding)
    : settings_(settings),
      outstanding_(outstanding),
      device_(device, settings),
      datagrams_(std::make_unique<UdPort>(device_, settings)),
      registrar_(device_.domain.get()) {
  address_.magic = kMagic;
  address_.version = kWireVersion;
  address_.id = randomToken();
  address_.secret = randomToken();
  address_.port = device_.address();
  address_.connections = settings.connections;
  address_.datagrams = datagrams_->address();
  address_.pid = getpid();
  gethostname(address_.host, sizeof(address_.host) - 1);
  std::snprintf(address_.device, sizeof(address_.device), "%s", device.name().c_str());
  MK_PLUGIN_INFO("%s: %s, MTU %d, GID index %d", address_.device, describe(address_.port).c_str(),
                 mtuBytes(address_.port.mtu), device_.gid.index);
}

void Endpoint::readAddresses(int count, int self, const uint8_t* addresses) {
  peers_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    Peer& peer = peers_[static_cast<size_t>(i)];
    Address& address = peer.address;
    peer.self = i == self;
    std::memcpy(&address, addresses + static_cast<size_t>(i) * MK_TRANSPORT_ADDRESS_BYTES, sizeof(Address));
    if (address.magic != kMagic)
      fail(mkErrorInvalidArgument, "address %d of %d is not one of an ibverbs endpoint", i, count);
    if (address.version != kWireVersion)
      fail(mkErrorVersion, "peer %d runs ibverbs version %u, this one is %u", i, address.version, kWireVersion);
    if (peer.self != (address.id == address_.id))
      fail(mkErrorInvalidArgument, "address %d of %d %s this endpoint's own", i, count, peer.self ? "is not" : "is");
    address.host[sizeof(address.host) - 1] = address.device[sizeof(address.device) - 1] = '\0';
    try {
      peer.path = agree(address_.port, address.port);
    } catch (const Failure& failure) {
      fail(failure.code(), "%s: %s", nameOf(peer).c_str(), failure.what());
    }
    if (address.connections < 1 || address.connections > kMaxConnections)
      fail(mkErrorInvalidArgument, "peer %d wants %u connections; legal are 1 to %u", i, address.connections,
           kMaxConnections);
    peer.agreed = std::min(address_.connections, address.connections);
  }
}

void Endpoint::makeConnections(int self) {
  // When a connection fails, each of its requests completes, so the queues have room for all.
  const int limit = std::min(kLongestQueue, device_.info.maxCompletions);
  int room = 0;
  std::vector<ibv_cq*> queueOf(peers_.size());
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].self) continue;
    // However the writes spread over the connections, there are no more than `outstanding`.
    const int need = static_cast<int>(2 * outstanding_ + kOwnRequests * peers_[i].agreed);
    if (room < need) {
      const size_t left = peers_.size() - i;
      room = static_cast<int>(std::max<int64_t>(need, std::min<int64_t>(limit, static_cast<int64_t>(left) * need)));
      queues_.emplace_back(ibv_create_cq(device_.context.get(), room, nullptr, nullptr, 0));
      if (queues_.back() == nullptr)
        failErrno(errno, format("%s gives no completion queue of %d entries", device_.info.device.c_str(), room));
    }
    room -= need;
    queueOf[i] = queues_.back().get();
  }
  board_ = std::make_unique<Board>(device_.domain.get(), peers_.size());
  std::vector<WireupPeer> told;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    WireupPeer& one = told.emplace_back();
    if (peer.self) {
      datagrams_->addSelf();
      continue;
    }
    datagrams_->addPeer(peer.address.port, peer.address.datagrams);
    one.id = peer.address.id;
    one.secret = peer.address.secret;
    one.hello.words = board_->wordsAddress(static_cast<int>(i));
    one.hello.ledger = board_->listAddress();
    one.hello.boardKey = board_->remoteKey();
    one.hello.connections = peer.agreed;
    peer.connections.reserve(peer.agreed);
    for (uint32_t c = 0; c < peer.agreed; ++c) {
      peer.connections.emplace_back(device_, queueOf[i], requestsFor(outstanding_));
      one.hello.connection[c] = peer.connections.back().address();
    }
  }
  wireup_ = std::make_unique<Wireup>(std::move(datagrams_), address_.id, address_.secret, self, std::move(told));
}

void Endpoint::connect(int count, int self, const uint8_t* addresses, int timeoutMs) {
  checkConnect(connectTried_, count, self, addresses, timeoutMs);
  if (count > 65535) fail(mkErrorInvalidArgument, "count %d: must be 1 to 65535", count);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeoutMs);
  connectTried_ = true;
  readAddresses(count, self, addresses);
  makeConnections(self);
  for (int left = count - 1; left > 0; --left) {
    int index = -1;
    Hello hello = {};
    if (!wireup_->next(deadline, &index, &hello)) break;
    Peer& peer = peers_[static_cast<size_t>(index)];
    if (hello.connections != peer.agreed)
      fail(mkErrorTransport, "%s has %u connections where %u were agreed", nameOf(peer).c_str(), hello.connections,
           peer.agreed);
    peer.hello = hello;
    for (size_t c = 0; c < peer.connections.size(); ++c)
      peer.connections[c].connect(device_, peer.address.port, peer.path, hello.connection[c], settings_);
    wireup_->markReady(index);
    MK_PLUGIN_INFO("%s: %u connections, MTU %d%s", nameOf(peer).c_str(), peer.agreed,
                   mtuBytes(static_cast<uint8_t>(peer.path.mtu)), peer.path.global ? ", global" : "");
  }
  if (!wireup_->waitAll(deadline))
    fail(mkErrorTimeout, "not connected within %d ms: %s", timeoutMs, wireup_->missing().c_str());
  for (Peer& peer : peers_) peer.heardAt = Clock::now();
  for (uint32_t c = 0; c < settings_.connections; ++c) chains_.emplace_back(kMaxBatch);
  connected_ = true;
}

Endpoint::Peer& Endpoint::peerAt(int index) { return peerOf(connected_, peers_, index); }

// ---- Memory --------------------------------------------------------------------------------------------------------

void* Endpoint::registerMemory(const mkTransportMemory_t& memory, uint8_t* key) {
  checkMemory(connected_, memory);
  std::unique_ptr<LocalMemory> made = registerWith(registrar_, memory, settings_.relaxedOrdering);
  if (!board_->announce(*made))
    fail(mkErrorNotSupported, "%u registrations already; legal are up to %u", kSlots, kSlots);
  Key named = {};
  named.magic = kMagic;
  named.slot = made->slot;
  named.endpoint = address_.id;
  named.sequence = made->sequence;
  named.address = made->address;
  named.bytes = made->bytes;
  named.flagKey = made->flagKey;
  named.payloadKey = made->payloadKey;
  std::memset(key, 0, MK_TRANSPORT_KEY_BYTES);
  std::memcpy(key, &named, sizeof(named));
  void* const handle = made.get();
  registrations_[handle] = std::move(made);
  return handle;
}

void Endpoint::deregisterMemory(void* handle) {
  const auto found = registrations_.find(handle);
  if (found == registrations_.end())
    fail(mkErrorInvalidArgument, "handle %p is no registration of this endpoint", handle);
  LocalMemory& memory = *found->second;
  board_->withdraw(memory);
  // A device that loses memory it is reading from breaks the connection, so it is given a moment.
  progressUntil(Clock::now() + std::chrono::seconds(2), [&] { return memory.underWay == 0; });
  const auto reads = [&](const Connection& c) { return c.ledger.holds(&memory); };
  for (Peer& peer : peers_)
    if (std::any_of(peer.connections.begin(), peer.connections.end(), reads))
      endOf(peer, mkErrorInvalidUsage, "memory was deregistered with writes from it under way", false);
  registrations_.erase(found);
}

void* Endpoint::importMemory(int index, const uint8_t* keyBytes, int timeoutMs) {
  Peer& peer = peerAt(index);
  if (timeoutMs < 0) fail(mkErrorInvalidArgument, "timeoutMs %d: must not be negative", timeoutMs);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeoutMs);
  Key key = {};
  std::memcpy(&key, keyBytes, sizeof(key));
  if (key.magic != kMagic || key.endpoint != peer.address.id || key.slot >= kSlots)
    fail(mkErrorInvalidArgument, "the key is not of a registration of %s", nameOf(peer).c_str());
  if (!peer.connected()) fail(mkErrorRemote, "%s", peer.reason.c_str());

  // Whether it still lasts is asked of the peer's list, by a read that needs nobody there.
  ibv_sge place = {board_->lookedAddress(index), sizeof(uint64_t), board_->localKey()};
  ibv_send_wr request = {};
  request.sg_list = &place;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer.hello.ledger + key.slot * sizeof(uint64_t);
  request.wr.rdma.rkey = peer.hello.boardKey;
  const uint64_t ticket = peer.lookupsAsked + 1;
  const bool answered = progressUntil(deadline, [&] {
    if (peer.lookupsAsked < ticket && postOwn(peer, Posted::Kind::lookup, request)) ++peer.lookupsAsked;
    return peer.lookupsDone >= ticket || !peer.connected();
  });
  if (!peer.connected()) fail(mkErrorRemote, "%s", peer.reason.c_str());
  if (!answered) fail(mkErrorTimeout, "%s has not answered within %d ms", nameOf(peer).c_str(), timeoutMs);
  if (board_->looked(index) != key.sequence)
    fail(mkErrorInvalidArgument, "%s has deregistered the memory", nameOf(peer).c_str());
  auto remote = std::make_unique<RemoteMemory>();
  remote->peer = index;
  remote->address = key.address;
  remote->bytes = key.bytes;
  remote->flagKey = key.flagKey;
  remote->payloadKey = key.payloadKey;
  void* const handle = remote.get();
  imports_[handle] = std::move(remote);
  return handle;
}

void Endpoint::releaseMemory(void* remote) {
  // Writes under way have all they need.
  if (imports_.erase(remote) == 0) fail(mkErrorInvalidArgument, "%p is no import of this endpoint", remote);
}

// ---- Writing -------------------------------------------------------------------------------------------------------

void Endpoint::checkPayload(int index, const mkTransportWrite_t& write, WirePlan& plan, LocalMemory** source) {
  checkSize(write, device_.info.maxBytes);
  const auto local = registrations_.find(write.localMemory);
  if (local == registrations_.end())
    fail(mkErrorInvalidArgument, "localMemory %p is no registration of this endpoint", write.localMemory);
  *source = local->second.get();
  checkSource(write, reinterpret_cast<const void*>((*source)->address), (*source)->bytes);
  const auto remote = imports_.find(write.remoteMemory);
  if (remote == imports_.end() || remote->second->peer != index)
    fail(mkErrorInvalidArgument, "remoteMemory %p is no import from peer %d", write.remoteMemory, index);
  checkDestination(write, remote->second->bytes);
  plan.source = reinterpret_cast<uint64_t>(write.source);
  plan.sourceKey = (*source)->readKey;
  plan.bytes = write.bytes;
  plan.destination = remote->second->address + write.remoteOffset;
  plan.destinationKey = remote->second->payloadKey;
}

WirePlan Endpoint::plan(int index, const mkTransportWrite_t& write, LocalMemory** source) {
  WirePlan made;
  *source = nullptr;
  if (write.bytes > 0) checkPayload(index, write, made, source);
  const auto place = imports_.find(write.flagMemory);
  if (place == imports_.end() || place->second->peer != index)
    fail(mkErrorInvalidArgument, "flagMemory %p is no import from peer %d", write.flagMemory, index);
  checkFlag(write, place->second->address, place->second->bytes);
  made.flag = place->second->address + write.flagOffset;
  made.flagValue = write.flagValue;
  made.flagKey = place->second->flagKey;
  return made;
}

int Endpoint::post(int index, const mkTransportWrite_t* writes, int count) {
  Peer& peer = peerAt(index);
  checkBatch(writes, count);
  const uint32_t take = std::min({static_cast<uint32_t>(count), outstanding_ - peer.outstanding, kMaxBatch});
  // All are checked before the first one is sent.
  WirePlan plans[kMaxBatch];
  Posted posted[kMaxBatch];
  for (uint32_t i = 0; i < take; ++i) {
    plans[i] = plan(index, writes[i], &posted[i].source);
    posted[i].cookie = writes[i].cookie;
  }
  if (take == 0) return 0;
  if (peer.connected() && board_->saidFarewell(index)) look(Clock::now());
  if (peer.connected() && !peer.doom.empty()) return 0;
  peer.outstanding += take;
  if (!peer.connected()) {
    raiseError(peer, mkErrorRemote);
    for (uint32_t i = 0; i < take; ++i) events_.push_back({MK_EVENT_SENT, index, mkErrorRemote, 0, posted[i].cookie});
    return static_cast<int>(take);
  }
  for (uint32_t i = 0; i < take; ++i) {
    const uint32_t c = writes[i].queue % peer.agreed;
    SendLedger& ledger = peer.connections[c].ledger;
    const uint64_t tag = static_cast<uint64_t>(index) << 48 | static_cast<uint64_t>(c) << 40;
    if (posted[i].source != nullptr) ++posted[i].source->underWay;
    ++peer.writesUnderWay;
    ledger.add(posted[i], chains_[c].add(plans[i], tag, ledger.next()));
  }
  for (uint32_t c = 0; c < peer.agreed; ++c) {
    if (chains_[c].empty()) continue;
    const int error = peer.doom.empty() ? peer.connections[c].post(chains_[c].finish()) : 0;
    chains_[c].clear();
    // They have been taken, so they complete: with an error.
    if (error != 0)
      failed(peer, mkErrorTransport, format("%s: posting failed: %s", nameOf(peer).c_str(), std::strerror(error)));
  }
  return static_cast<int>(take);
}

bool Endpoint::postOwn(Peer& peer, Posted::Kind kind, ibv_send_wr& request) {
  if (!peer.connected() || !peer.doom.empty() || peer.ownUnderWay == kOwnRequests) return false;
  ++peer.ownUnderWay;
  Connection& connection = peer.connections.front();
  request.wr_id = static_cast<uint64_t>(indexOf(peer)) << 48 | (connection.ledger.next() & kNumberMask);
  Posted posted;
  posted.kind = kind;
  connection.ledger.add(posted, 1);
  if (const int error = connection.post(&request); error != 0)
    failed(peer, mkErrorTransport, format("%s: posting failed: %s", nameOf(peer).c_str(), std::strerror(error)));
  return true;
}

bool Endpoint::postWord(Peer& peer, Posted::Kind kind, uint64_t offset, uint64_t value) {
  ibv_sge place = {reinterpret_cast<uint64_t>(&value), sizeof(value), 0};
  ibv_send_wr request = {};
  request.sg_list = &place;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer.hello.words + offset;
  request.wr.rdma.rkey = peer.hello.boardKey;
  return postOwn(peer, kind, request);
}

}  // namespace mk::plugin::ibverbs
