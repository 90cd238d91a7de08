// See endpoint.h.  Here: posting, progress, events.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/checks.h"
#include "common/failure.h"
#include "endpoint.h"

namespace mk::plugin::efa {
namespace {

using namespace std::chrono_literals;

constexpr auto kHearEvery = 1ms;     // how often the connections are looked at
constexpr auto kAbandonAfter = 1s;   // what the provider still has for a peer that has failed
constexpr uint64_t kBacklog = 8192;  // arrivals of one peer that wait for the caller, before the peer has to

}  // namespace

// ---- Posting -------------------------------------------------------------------------------------------------------

Endpoint::Flight Endpoint::prepare(int index, const mkTransportWrite_t& write) const {
  const Peer& peer = peers_[static_cast<size_t>(index)];
  Flight flight;
  flight.state = Flight::State::waiting;
  flight.write = write;
  flight.peer = index;
  if (write.bytes == 0) {
    flight.remoteAddress = peer.padAddress;
    flight.remoteKey = peer.padKey;
    return flight;
  }
  checkSize(write, provider_.maxBytes());
  const auto source = registrations_.find(write.localMemory);
  if (source == registrations_.end())
    fail(mkErrorInvalidArgument, "localMemory %p is no registration of this endpoint", write.localMemory);
  flight.source = source->second;
  checkSource(write, flight.source->base, flight.source->bytes);
  const auto destination = imports_.find(write.remoteMemory);
  if (destination == imports_.end() || destination->second->peer != index)
    fail(mkErrorInvalidArgument, "remoteMemory %p is no import from peer %d", write.remoteMemory, index);
  const RemoteRegion& remote = *destination->second;
  checkDestination(write, remote.bytes);
  flight.remoteAddress = remote.base + write.remoteOffset;
  flight.remoteKey = remote.key;
  return flight;
}

int Endpoint::post(int index, const mkTransportWrite_t* writes, int count) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peerAt(index);
  checkBatch(writes, count);
  progress(Clock::now());
  const uint32_t room = provider_.settings().outstanding - peer.outstanding;
  // Abandoned flights stay with the provider, so there may be fewer than the peer has room for.
  const uint32_t take =
      std::min({static_cast<uint32_t>(count), room, kMaxBatch, static_cast<uint32_t>(freeFlights_.size())});
  // All are checked before the first one moves.
  std::vector<Flight> flights;
  flights.reserve(take);
  for (uint32_t i = 0; i < take; ++i) flights.push_back(prepare(index, writes[i]));
  // A peer that left in order is no error until now.
  if (take > 0 && peer.state != Peer::State::connected) breakPeer(peer, mkErrorRemote, peer.reason);
  for (Flight& flight : flights) {
    const uint32_t number = freeFlights_.back();
    freeFlights_.pop_back();
    flights_[number] = std::move(flight);
    peer.waiting.push_back(number);
    ++peer.outstanding;
  }
  if (peer.broken)
    failWaiting(peer);
  else
    pump(peer);
  return static_cast<int>(take);
}

// Posts what the peer has room for and the provider takes; what it does not take now stays, and is tried again in the next
// round.  Returns whether anything was posted.
bool Endpoint::pump(Peer& peer) {
  bool any = false;
  while (!peer.waiting.empty() && !peer.broken && peer.sent < peer.allowed && posted_ < postLimit_) {
    const uint32_t number = peer.waiting.front();
    Flight& flight = flights_[number];
    const bool pad = flight.source == nullptr;
    Posting posting = {};
    posting.source = pad ? pad_ : flight.write.source;
    posting.descriptor = fi_mr_desc((pad ? padRegistration_ : flight.source->registration).region.get());
    posting.bytes = pad ? 8 : flight.write.bytes;
    posting.peer = peer.fabricAddress;
    posting.remoteAddress = flight.remoteAddress;
    posting.remoteKey = flight.remoteKey;
    posting.data = flight.write.immediate;
    if (provider_.senderInData()) posting.data |= static_cast<uint64_t>(self_) << 32;
    posting.context = &contexts_[number];
    const int64_t result = port_->write(posting);
    if (result == -FI_EAGAIN) return any;
    if (result != 0) {
      breakPeer(peer, mkErrorTransport,
                format("a write of %llu bytes to %s: %s", wide(flight.write.bytes), peer.name().c_str(),
                       provider_.library().describe(result).c_str()));
      return true;
    }
    any = true;
    peer.waiting.pop_front();
    flight.state = Flight::State::posted;
    if (!pad) ++flight.source->inFlight;
    ++peer.sent;
    ++peer.posted;
    ++posted_;
  }
  return any;
}

// ---- Ends of writes ------------------------------------------------------------------------------------------------

// The caller hears of it; `next` abandoned: the provider still has it.
void Endpoint::finish(uint32_t number, mkResult_t status, Flight::State next) {
  Flight& flight = flights_[number];
  if (flight.state == Flight::State::posted) {
    --peers_[static_cast<size_t>(flight.peer)].posted;
    --posted_;
    if (flight.source != nullptr && next == Flight::State::free) --flight.source->inFlight;
  }
  events_.push_back({MK_EVENT_SENT, flight.peer, status, 0, flight.write.cookie});
  flight.state = next;
  if (next != Flight::State::free) return;
  flight.source.reset();
  freeFlights_.push_back(number);
}

void Endpoint::failWaiting(Peer& peer) {
  for (const uint32_t number : std::exchange(peer.waiting, {})) finish(number, peer.brokenStatus, Flight::State::free);
}

void Endpoint::dropWaiting(const LocalRegion& source) {
  for (Peer& peer : peers_)
    std::erase_if(peer.waiting, [&](uint32_t number) {
      if (flights_[number].source.get() != &source) return false;
      finish(number, mkErrorTransport, Flight::State::free);
      return true;
    });
}

void Endpoint::abandon(Peer& peer) {
  for (uint32_t number = 0; peer.posted > 0 && number < flights_.size(); ++number)
    if (flights_[number].state == Flight::State::posted && flights_[number].peer == peer.index)
      finish(number, peer.brokenStatus, Flight::State::abandoned);
}

void Endpoint::breakPeer(Peer& peer, mkResult_t status, const std::string& reason) {
  if (!peer.broken) {
    peer.broken = true;
    peer.brokenStatus = status;
    peer.brokenReason = reason;
    peer.abandonAt = Clock::now() + kAbandonAfter;
    events_.push_back({MK_EVENT_ERROR, peer.index, status, 0, 0});
    MK_PLUGIN_WARN("writes to peer %d fail from now on: %s", peer.index, reason.c_str());
  }
  failWaiting(peer);
}

void Endpoint::failDevice(const std::string& reason) {
  if (dead_) return;
  dead_ = true;
  deadReason_ = reason;
  events_.push_back({MK_EVENT_ERROR, -1, mkErrorTransport, 0, 0});
  MK_PLUGIN_WARN("the device has failed: %s", reason.c_str());
  for (Peer& peer : peers_) {
    if (peer.self) continue;
    peer.broken = true;
    peer.brokenStatus = mkErrorTransport;
    peer.brokenReason = reason;
    failWaiting(peer);
    abandon(peer);
  }
}

// ---- Progress ------------------------------------------------------------------------------------------------------

void Endpoint::hearPeers(Clock::time_point now) {
  heardAt_ = now;
  // Most of the time nobody says anything: one system call then, however many there are.
  connections_.clear();
  for (const Peer& peer : peers_) connections_.push_back({peer.self ? -1 : peer.connection.fd(), POLLIN, 0});
  const bool anyHeard = ::poll(connections_.data(), connections_.size(), 0) != 0;
  for (Peer& peer : peers_) {
    if (peer.self) continue;
    if (peer.connection.backlogged()) peer.connection.flush();
    if (anyHeard && peer.connection.open()) peer.readMessages();
    if (peer.state == Peer::State::dead) breakPeer(peer, mkErrorRemote, peer.reason);
    // A peer that has said goodbye takes in what is under way and nothing more; without any there is no error.
    if (peer.state == Peer::State::closed && (!peer.waiting.empty() || (peer.posted > 0 && !peer.connection.open())))
      breakPeer(peer, mkErrorRemote, peer.reason);
    if (peer.broken && peer.posted > 0 && now >= peer.abandonAt) abandon(peer);
    if (peer.owedFarewell && peer.posted == 0) {
      peer.owedFarewell = false;
      peer.connection.send(makeMessage(MessageType::farewell));
    }
  }
}

bool Endpoint::progress(Clock::time_point now) {
  servedAt_ = now;
  if (now - heardAt_ >= kHearEvery) hearPeers(now);
  if (dead_) return false;
  try {
    port_->read(completions_);
  } catch (const Failure& failure) {
    completions_.clear();
    failDevice(failure.what());
    return true;
  }
  bool any = !completions_.empty();
  for (const Completion& completion : completions_) handle(completion);
  completions_.clear();
  for (Peer& peer : peers_)
    if (!peer.waiting.empty()) any |= pump(peer);
  return any;
}

// Number of the flight whose context this is; flights_.size() if none's.
uint32_t Endpoint::flightOf(const void* context) const {
  const auto* const place = static_cast<const fi_context2*>(context);
  const bool ours = !contexts_.empty() && place >= contexts_.data() && place < contexts_.data() + contexts_.size();
  return static_cast<uint32_t>(ours ? place - contexts_.data() : static_cast<ptrdiff_t>(flights_.size()));
}

void Endpoint::handle(const Completion& completion) {
  if (completion.kind == Completion::Kind::arrived) return arrived(completion);
  const uint32_t number = flightOf(completion.context);
  if (number == flights_.size() || flights_[number].state == Flight::State::free ||
      flights_[number].state == Flight::State::waiting) {
    const bool failed = completion.kind == Completion::Kind::failed;
    return failDevice(failed ? "an operation of no write of ours has failed: " + completion.text
                             : "the provider completes a write that was not posted");
  }
  Flight& flight = flights_[number];
  if (flight.state == Flight::State::abandoned) {
    // The caller has been told.
    if (flight.source != nullptr) --flight.source->inFlight;
    flight.source.reset();
    flight.state = Flight::State::free;
    freeFlights_.push_back(number);
    return;
  }
  if (completion.kind == Completion::Kind::sent) return finish(number, mkSuccess, Flight::State::free);
  Peer& peer = peers_[static_cast<size_t>(flight.peer)];
  // Where the peer has gone, that is the reason, and its connection knows.
  peer.readMessages();
  const mkResult_t status = peer.state == Peer::State::connected ? mkErrorTransport : mkErrorRemote;
  const std::string reason = format("a write of %llu bytes to %s has failed: %s", wide(flight.write.bytes),
                                    peer.name().c_str(), completion.text.c_str());
  finish(number, status, Flight::State::free);
  breakPeer(peer, status, peer.state == Peer::State::connected ? reason : peer.reason + "; " + reason);
}

void Endpoint::arrived(const Completion& completion) {
  int index = -1;
  if (provider_.senderInData()) {
    const uint64_t sender = completion.data >> 32;
    if (sender < peers_.size()) index = static_cast<int>(sender);
  } else if (completion.source < peerOfSource_.size()) {
    index = peerOfSource_[static_cast<size_t>(completion.source)];
  }
  if (index < 0 || index == self_)
    return failDevice(format("a write from nobody known has arrived (data %#llx, source %#llx)", wide(completion.data),
                             wide(completion.source)));
  events_.push_back({MK_EVENT_ARRIVED, index, mkSuccess, static_cast<uint32_t>(completion.data), 0});
  Peer& peer = peers_[static_cast<size_t>(index)];
  ++peer.taken;
  grant(peer);
}

// ---- Events --------------------------------------------------------------------------------------------------------

// Tells the peer now and then how much it may send: what the completion queue has room for beside what has been taken from it,
// unless the caller does not take it from us.  Counting suffices: what is bounded is a queue, not slots.
void Endpoint::grant(Peer& peer) {
  const uint64_t allowed = std::min(peer.taken, peer.consumed + kBacklog) + window_;
  if (allowed - peer.granted < std::max<uint64_t>(1, window_ / 4)) return;
  peer.granted = allowed;
  peer.connection.send(makeMessage(MessageType::credit, allowed));
}

int Endpoint::poll(mkTransportEvent_t* events, int capacity) {
  checkConnected(connected_);
  checkEvents(events, capacity);
  const std::lock_guard lock(mutex_);
  progress(Clock::now());
  int count = 0;
  for (; count < capacity && !events_.empty(); events_.pop_front()) {
    const mkTransportEvent_t& event = events[count++] = events_.front();
    if (event.peer < 0) {
      setLastError(deadReason_);
      continue;
    }
    Peer& peer = peers_[static_cast<size_t>(event.peer)];
    // A write is outstanding until the caller knows of it, so events_ is bounded too.
    if (event.kind == MK_EVENT_SENT) --peer.outstanding;
    if (event.kind == MK_EVENT_ERROR) setLastError(peer.brokenReason);
    if (event.kind != MK_EVENT_ARRIVED) continue;
    ++peer.consumed;
    grant(peer);
  }
  return count;
}

}  // namespace mk::plugin::efa
