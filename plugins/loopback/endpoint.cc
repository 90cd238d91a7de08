// See endpoint.h.
#include "endpoint.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "common/checks.h"
#include "common/failure.h"

namespace mk::plugin::loopback {
namespace {

using namespace std::chrono_literals;

// How often the connections are looked at: they tell of registrations and of the peers' ends.
constexpr auto kHearEvery = 1ms;
constexpr auto kPassEvery = 10us;

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::string hex(const Token& token) {
  std::string text;
  for (const uint8_t byte : token) text += format("%02x", byte);
  return text;
}

// Room for several times what the peer may have under way, so that a receiver that polls late rarely holds it up.
uint32_t ringSlots(uint32_t outstanding) { return std::bit_ceil(std::max(1024u, 4 * outstanding)); }

}  // namespace

// ---- Opening, connecting, closing ----------------------------------------------------------------------------------

Endpoint::Endpoint(const Settings& settings) : settings_(settings), presence_(std::make_shared<Presence>()) {
  address_.magic = kMagic;
  address_.version = kWireVersion;
  address_.contract = settings_.contract;
  address_.pid = getpid();
  address_.id = randomToken();
  address_.secret = randomToken();
  const std::string name = "mkernel-loopback-" + hex(randomToken());
  std::memcpy(address_.name, name.c_str(), name.size() + 1);
  listener_ = listenOn(name);
  announcePresence(address_.id, presence_);
}

Endpoint::~Endpoint() {
  withdrawPresence(address_.id);
  // Peers in this process may be writing this instant; afterwards they do not.
  for (const auto& [handle, region] : registrations_) region->end();
  nic_.reset();
  imports_.clear();
  gpu_.reset();
  // The goodbye, seen by a peer once its connection has ended.
  for (const Peer& peer : peers_)
    if (peer.inbox != nullptr) peer.inbox->markClosed();
}

void Endpoint::connect(int count, int self, const uint8_t* addresses, int timeoutMs) {
  checkConnect(connectTried_, count, self, addresses, timeoutMs);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeoutMs);
  connectTried_ = true;

  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  for (int i = 0; i < count; ++i) {
    Peer& peer = peers_.emplace_back();
    peer.index = i;
    peer.self = i == self;
    std::memcpy(&peer.address, addresses + static_cast<size_t>(i) * MK_TRANSPORT_ADDRESS_BYTES, sizeof(Address));
    const Address& address = peer.address;
    if (address.magic != kMagic || address.name[sizeof(address.name) - 1] != '\0')
      fail(mkErrorInvalidArgument, "address %d of %d is not one of a loopback endpoint", i, count);
    if (address.version != kWireVersion)
      fail(mkErrorVersion, "peer %d runs loopback version %u, this one is %u", i, address.version, kWireVersion);
    if (peer.self != (address.id == address_.id))
      fail(mkErrorInvalidArgument, "address %d of %d %s this endpoint's own", i, count, peer.self ? "is not" : "is");
    if (address.contract != settings_.contract)
      fail(mkErrorInvalidUsage, "peer %d runs contract %u, this endpoint %u: MKERNEL_LOOPBACK_CONTRACT must agree", i,
           address.contract, settings_.contract);
    peer.inbox = peer.self ? nullptr : Mailbox::create(ringSlots(settings_.outstanding));
    mailboxes.push_back(peer.inbox);
  }
  presence_->setMailboxes(std::move(mailboxes));
  rendezvous(listener_.get(), address_, self, peers_, deadline);
  listener_.reset();
  for (Peer& peer : peers_)
    if (peer.inbox != nullptr) peer.inbox->dropFd();
  states_.resize(peers_.size());
  nic_ = std::make_unique<Nic>(settings_, settings_.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(self),
                               peers_.size());
  connected_ = true;
}

Peer& Endpoint::peerAt(int peer) { return peerOf(connected_, peers_, peer); }

// ---- Memory --------------------------------------------------------------------------------------------------------

void* Endpoint::registerMemory(const mkTransportMemory_t& memory, uint8_t* key) {
  checkMemory(connected_, memory);
  const bool onGpu = memory.kind == MK_MEMORY_KIND_CUDA;
  if (onGpu) {
    gpu().checkMemory(memory);
  } else if (memory.fd >= 0) {
    checkFile(memory.fd, memory.fdOffset, memory.bytes);
    // Mapped from the descriptor, both have the same place in their page.
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (reinterpret_cast<uintptr_t>(memory.address) % page != memory.fdOffset % page)
      fail(mkErrorInvalidArgument, "address %p is not mapped from offset %llu of the descriptor", memory.address,
           wide(memory.fdOffset));
  }
  const auto region =
      std::make_shared<LocalRegion>(static_cast<std::byte*>(memory.address), memory.bytes, ++sequence_, onGpu);
  Key made = {};
  made.magic = kMagic;
  made.hasFd = memory.fd >= 0;
  made.endpoint = address_.id;
  made.sequence = region->sequence();
  made.bytes = region->bytes();
  made.kind = memory.kind;
  if (memory.fd >= 0) {
    Message message = makeMessage(MessageType::region);
    message.sequence = region->sequence();
    message.bytes = memory.bytes;
    message.fdOffset = memory.fdOffset;
    message.kind = memory.kind;
    sendAll(message, memory.fd);
  }
  registrations_[region.get()] = region;
  if (!onGpu) presence_->addRegion(region);
  std::memset(key, 0, MK_TRANSPORT_KEY_BYTES);
  std::memcpy(key, &made, sizeof(made));
  return region.get();
}

void Endpoint::deregisterMemory(void* handle) {
  const auto found = registrations_.find(handle);
  if (found == registrations_.end())
    fail(mkErrorInvalidArgument, "handle %p is no registration of this endpoint", handle);
  const std::shared_ptr<LocalRegion> region = found->second;
  registrations_.erase(found);
  presence_->removeRegion(region->sequence());
  region->end();
  const std::list<Flight> taken = nic_->takeFrom(region.get());
  const bool quiet = !region->onGpu() || gpu_->drain();
  for (const Flight& flight : taken) {
    const bool delivered = flight.stage == Flight::Stage::repeat;
    events_.push_back({MK_EVENT_SENT, flight.peer, delivered ? mkSuccess : mkErrorTransport, 0, flight.write.cookie});
  }
  Message message = makeMessage(MessageType::withdraw);
  message.sequence = region->sequence();
  message.kind = region->onGpu() ? MK_MEMORY_KIND_CUDA : MK_MEMORY_KIND_HOST;
  sendAll(message, -1);
  if (!quiet)
    fail(mkErrorTimeout, "copies from the deregistered CUDA memory are under way still after %lld s",
         static_cast<long long>(cuda::Lanes::kDrainTime.count()));
}

// To every peer that must be told: those of this process know of its host memory without.
void Endpoint::sendAll(const Message& message, int fd) {
  for (Peer& peer : peers_)
    if (!peer.self && (peer.presence == nullptr || message.kind == MK_MEMORY_KIND_CUDA)) peer.out.send(message, fd);
}

cuda::Lanes& Endpoint::gpu() {
  if (gpu_ == nullptr) gpu_ = std::make_unique<cuda::Lanes>(peers_.size());
  return *gpu_;
}

void* Endpoint::importMemory(int index, const uint8_t* keyBytes, int timeoutMs) {
  Peer& peer = peerAt(index);
  if (timeoutMs < 0) fail(mkErrorInvalidArgument, "timeoutMs %d: must not be negative", timeoutMs);
  Key key = {};
  std::memcpy(&key, keyBytes, sizeof(key));
  if (key.magic != kMagic || key.endpoint != peer.address.id)
    fail(mkErrorInvalidArgument, "the key is not of a registration of %s", peer.name().c_str());

  std::shared_ptr<RemoteRegion> remote;
  if (peer.presence != nullptr && key.kind == MK_MEMORY_KIND_HOST) {
    const std::shared_ptr<LocalRegion> region = peer.presence->region(key.sequence);
    if (region == nullptr) fail(mkErrorInvalidArgument, "%s has deregistered the memory", peer.name().c_str());
    remote = std::make_shared<RemoteRegion>(index, region);
  } else if (const auto announcement = awaitAnnouncement(peer, key, timeoutMs); announcement->onGpu) {
    std::shared_ptr<cuda::Mapping> mapping = announcement->gpuMapping.lock();
    if (mapping == nullptr) mapping = gpu().map(index, announcement->fd.get(), announcement->bytes);
    announcement->gpuMapping = mapping;
    remote = std::make_shared<RemoteRegion>(index, announcement, std::move(mapping));
  } else {
    std::shared_ptr<Mapping> mapping = announcement->mapping.lock();
    if (mapping == nullptr)
      mapping = std::make_shared<Mapping>(announcement->fd.get(), announcement->fdOffset, announcement->bytes);
    announcement->mapping = mapping;
    remote = std::make_shared<RemoteRegion>(index, announcement, std::move(mapping));
  }
  imports_[remote.get()] = remote;
  return remote.get();
}

// With a descriptor.
std::shared_ptr<Announcement> Endpoint::awaitAnnouncement(Peer& peer, const Key& key, int timeoutMs) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeoutMs);
  if (key.hasFd == 0)
    fail(mkErrorNotRegistered, "%s registered %llu bytes without a descriptor, and lives in another process",
         peer.name().c_str(), wide(key.bytes));
  for (;;) {
    hearPeers();
    if (peer.newest >= key.sequence) break;
    if (peer.state != Peer::State::connected) fail(mkErrorRemote, "%s", peer.reason.c_str());
    const auto now = Clock::now();
    if (now >= deadline)
      fail(mkErrorTimeout, "%s has not told of its memory within %d ms", peer.name().c_str(), timeoutMs);
    progress(now);
    pollfd wait = {peer.in.fd(), POLLIN, 0};
    ::poll(&wait, 1, 1);
  }
  const auto found = peer.announcements.find(key.sequence);
  if (found == peer.announcements.end())
    fail(mkErrorInvalidArgument, "%s has deregistered the memory", peer.name().c_str());
  if (!found->second->fd)
    fail(mkErrorSystem, "no free descriptor here when %s sent that of its memory", peer.name().c_str());
  return found->second;
}

void Endpoint::releaseMemory(void* remote) {
  // Writes under way keep the mapping until they have completed.
  if (imports_.erase(remote) == 0) fail(mkErrorInvalidArgument, "%p is no import of this endpoint", remote);
  if (gpu_ != nullptr) gpu_->sweep();
}

// ---- Writing -------------------------------------------------------------------------------------------------------

void Endpoint::checkPayload(int peer, const mkTransportWrite_t& write, Flight& flight) {
  checkSize(write, kMaxBytes);
  const auto source = registrations_.find(write.localMemory);
  if (source == registrations_.end())
    fail(mkErrorInvalidArgument, "localMemory %p is no registration of this endpoint", write.localMemory);
  flight.source = source->second;
  checkSource(write, flight.source->base(), flight.source->bytes());
  const auto destination = imports_.find(write.remoteMemory);
  if (destination == imports_.end() || destination->second->peer() != peer)
    fail(mkErrorInvalidArgument, "remoteMemory %p is no import from peer %d", write.remoteMemory, peer);
  flight.destination = destination->second;
  checkDestination(write, flight.destination->bytes());
  if (flight.source->onGpu() != flight.destination->onGpu())
    fail(mkErrorNotSupported, "source in %s memory, destination in %s memory: both must be of one kind",
         flight.source->onGpu() ? "CUDA" : "host", flight.destination->onGpu() ? "CUDA" : "host");
}

Flight Endpoint::prepare(int peer, const mkTransportWrite_t& write) {
  Flight flight;
  flight.write = write;
  flight.peer = peer;
  if (write.bytes > 0) checkPayload(peer, write, flight);
  if (settings_.contract != MK_CONTRACT_ORDERED) return flight;
  const auto place = imports_.find(write.flagMemory);
  if (place == imports_.end() || place->second->peer() != peer)
    fail(mkErrorInvalidArgument, "flagMemory %p is no import from peer %d", write.flagMemory, peer);
  flight.flagPlace = place->second;
  checkFlag(write, flight.flagPlace->address(0), flight.flagPlace->bytes());
  if (write.bytes > 0 && flight.flagPlace->onGpu() != flight.destination->onGpu())
    fail(mkErrorNotSupported, "payload to %s memory, flag to %s memory: both must be of one kind",
         flight.destination->onGpu() ? "CUDA" : "host", flight.flagPlace->onGpu() ? "CUDA" : "host");
  return flight;
}

int Endpoint::post(int index, const mkTransportWrite_t* writes, int count) {
  Peer& peer = peerAt(index);
  checkBatch(writes, count);
  const auto now = Clock::now();
  progress(now);
  PeerState& state = stateAt(index);
  const uint32_t room = settings_.outstanding - state.outstanding;
  const uint32_t take = std::min({static_cast<uint32_t>(count), room, kMaxBatch});
  // All are checked before the first one moves.
  std::vector<Flight> flights;
  flights.reserve(take);
  for (uint32_t i = 0; i < take; ++i) flights.push_back(prepare(index, writes[i]));
  // A peer that left in order is no error until now.
  if (take > 0 && peer.state != Peer::State::connected) raiseError(index, mkErrorRemote, peer.reason);
  for (Flight& flight : flights) {
    ++state.outstanding;
    nic_->submit(std::move(flight), nanoseconds(now));
  }
  advance(now);
  if (gpu_ != nullptr) gpu_->flush();
  return static_cast<int>(take);
}

Carrier::Outcome Endpoint::copy(const Flight& flight, uint64_t from, uint64_t to, bool again) {
  if (from >= to) return Outcome::done;
  if (flight.onGpu()) {
    if (flight.destination->withdrawn()) return Outcome::gone;
    gpu_->lane(flight.peer).copy(flight, from, to);
    return Outcome::done;
  }
  const std::byte* source = static_cast<const std::byte*>(flight.write.source) + from;
  const bool stored = flight.destination->copy(flight.write.remoteOffset + from, source, to - from, again);
  return stored ? Outcome::done : Outcome::gone;
}

Carrier::Outcome Endpoint::notify(const Flight& flight) {
  if (flight.onGpu()) {
    if (flight.flagPlace != nullptr && flight.flagPlace->withdrawn()) return Outcome::gone;
    gpu_->lane(flight.peer).notify(flight);
    return Outcome::done;
  }
  if (flight.flagPlace != nullptr)
    return flight.flagPlace->storeFlag(flight.write.flagOffset, flight.write.flagValue) ? Outcome::done : Outcome::gone;
  const Peer& peer = peers_[static_cast<size_t>(flight.peer)];
  return peer.outbox->push(flight.write.immediate) ? Outcome::done : Outcome::full;
}

void Endpoint::finished(const Flight& flight, mkResult_t status, const std::string& reason) {
  // What a GPU write has posted must have passed even if it has failed: its memory is the caller's afterwards.
  if (flight.onGpu())
    gpu_->lane(flight.peer).finish(flight, status);
  else
    sent(flight.peer, flight.write.cookie, status);
  if (status != mkSuccess) raiseError(flight.peer, status, reason);
}

// ---- What the lanes to GPU memory tell ------------------------------------------------------------------------------

Carrier::Outcome Endpoint::arrive(int index, uint32_t immediate) {
  const Peer& peer = peers_[static_cast<size_t>(index)];
  if (peer.outbox->push(immediate)) return Outcome::done;
  if (peer.state == Peer::State::connected) return Outcome::full;
  raiseError(index, mkErrorRemote, peer.reason);
  return Outcome::gone;
}

void Endpoint::sent(int peer, uint64_t cookie, mkResult_t status) {
  events_.push_back({MK_EVENT_SENT, peer, status, 0, cookie});
}

void Endpoint::failed(int peer, const std::string& reason) { raiseError(peer, mkErrorTransport, reason); }

// ---- Progress and events -------------------------------------------------------------------------------------------

void Endpoint::raiseError(int peer, mkResult_t status, const std::string& reason) {
  nic_->breakPeer(peer, status, reason);
  PeerState& state = stateAt(peer);
  if (state.errorRaised) return;
  state.errorRaised = true;
  state.errorReason = reason;
  events_.push_back({MK_EVENT_ERROR, peer, status, 0, 0});
  MK_PLUGIN_WARN("writes to peer %d fail from now on: %s", peer, reason.c_str());
}

void Endpoint::hearPeers() {
  for (Peer& peer : peers_) {
    if (peer.self || peer.state != Peer::State::connected) continue;
    if (peer.out.backlogged()) peer.out.flush();
    peer.readMessages();
    if (peer.state == Peer::State::dead) raiseError(peer.index, mkErrorRemote, peer.reason);
    // Writes still under way to a peer that left can no longer arrive; without any there is no error.
    if (peer.state == Peer::State::closed) nic_->breakPeer(peer.index, mkErrorRemote, peer.reason);
  }
}

void Endpoint::advance(Clock::time_point now) {
  if (gpu_ == nullptr) return nic_->progress(nanoseconds(now), *this);
  // On a link of limited rate writes come due one by one, and what a pass costs would be more than they take: those of some time
  // are posted together.  Half of it, and what posting takes at least, is made up for by looking ahead.
  if (settings_.gigabytesPerSecond > 0 && now - advancedAt_ < kPassEvery) return;
  advancedAt_ = now;
  nic_->progress(nanoseconds(now + kPassEvery / 2), *this);
}

void Endpoint::progress(Clock::time_point now) {
  if (now - heardAt_ >= kHearEvery) {
    heardAt_ = now;
    hearPeers();
  }
  advance(now);
  if (gpu_ == nullptr) return;
  gpu_->flush();
  gpu_->collect(*this);
}

int Endpoint::takeArrivals(mkTransportEvent_t* events, int capacity) {
  int count = 0;
  for (size_t turn = 0; turn < peers_.size() && count < capacity; ++turn) {
    arrivalTurn_ = (arrivalTurn_ + 1) % peers_.size();
    const Peer& peer = peers_[arrivalTurn_];
    if (peer.self || stateAt(peer.index).ringSpoilt) continue;
    uint32_t immediate = 0;
    Mailbox::Popped popped = Mailbox::Popped::empty;
    while (count < capacity && (popped = peer.inbox->pop(&immediate)) == Mailbox::Popped::one)
      events[count++] = {MK_EVENT_ARRIVED, peer.index, mkSuccess, immediate, 0};
    if (popped != Mailbox::Popped::nonsense) continue;
    stateAt(peer.index).ringSpoilt = true;
    raiseError(peer.index, mkErrorTransport, peer.name() + " has spoilt its arrival ring");
  }
  return count;
}

int Endpoint::takeCompletions(mkTransportEvent_t* events, int capacity) {
  int count = 0;
  for (; count < capacity && !events_.empty(); events_.pop_front()) {
    const mkTransportEvent_t& event = events[count++] = events_.front();
    // A write is outstanding until the caller knows of its end, so events_ is bounded too.
    if (event.kind == MK_EVENT_SENT) --stateAt(event.peer).outstanding;
    if (event.kind == MK_EVENT_ERROR) setLastError(stateAt(event.peer).errorReason);
  }
  return count;
}

int Endpoint::poll(mkTransportEvent_t* events, int capacity) {
  checkConnected(connected_);
  checkEvents(events, capacity);
  progress(Clock::now());
  // In turn, so that neither kind starves when the caller's array is small.
  arrivalsFirst_ = !arrivalsFirst_;
  int count = arrivalsFirst_ ? takeArrivals(events, capacity) : takeCompletions(events, capacity);
  count += arrivalsFirst_ ? takeCompletions(events + count, capacity - count)
                          : takeArrivals(events + count, capacity - count);
  return count;
}

}  // namespace mk::plugin::loopback
