// Endpoint: completions, what comes without one (events of the device, farewells, silence), and ends.  See endpoint.h.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "common/checks.h"
#include "common/failure.h"
#include "common/verbs_events.h"
#include "endpoint.h"

namespace mk::plugin::ibverbs {
namespace {

using namespace std::chrono_literals;

// How often farewells, silence and the device's events are looked at.
constexpr auto kLookEvery = 1ms;
// A peer that has given no sign of life for so long is written a word: if it has died, that fails.
constexpr auto kSilence = 1s;
// A port that goes down breaks connections before it is known to be down; then that is what is to be said.
constexpr auto kPortGrace = 500ms;
// Closing waits for what is under way as long as something of it completes now and then, up to a limit; then for the peers to
// have the farewell.
constexpr std::chrono::milliseconds kDrainPause = 2s, kDrainLimit = 10s, kFarewell = 500ms;

}  // namespace

// ---- Completions ---------------------------------------------------------------------------------------------------

void Endpoint::settle(Peer& peer, const Posted& posted, mkResult_t status) {
  if (posted.kind != Posted::Kind::write) {
    --peer.ownUnderWay;
    if (posted.kind == Posted::Kind::lookup) ++peer.lookupsDone;
    return;
  }
  --peer.writesUnderWay;
  if (posted.source != nullptr) --posted.source->underWay;
  events_.push_back({MK_EVENT_SENT, static_cast<int32_t>(indexOf(peer)), status, 0, posted.cookie});
}

std::string Endpoint::explain(const Peer& peer, const ibv_wc& completion) const {
  const std::string name = nameOf(peer);
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
      return format("%s does not answer: %s", name.c_str(), patienceText(settings_).c_str());
    case IBV_WC_REM_ACCESS_ERR:
      return format("%s refused a write (%s): has it deregistered the memory?", name.c_str(),
                    ibv_wc_status_str(completion.status));
    case IBV_WC_WR_FLUSH_ERR:
      return format("the connection to %s has broken", name.c_str());
    default:
      return format("%s: %s (vendor code 0x%x)", name.c_str(), ibv_wc_status_str(completion.status),
                    completion.vendor_err);
  }
}

void Endpoint::completed(const ibv_wc& completion) {
  const size_t index = completion.wr_id >> 48, c = completion.wr_id >> 40 & 0xff;
  if (index >= peers_.size() || c >= peers_[index].connections.size()) return;
  Peer& peer = peers_[index];
  Connection& connection = peer.connections[c];
  // Whatever a closed connection has left in the queue was settled when it was closed.
  if (connection.closed()) return;
  ++completions_;
  SendLedger& ledger = connection.ledger;
  const uint64_t through = ledger.next() - ((ledger.next() - completion.wr_id) & kNumberMask);
  const auto done = [&](const Posted& posted) { settle(peer, posted, mkSuccess); };
  if (completion.status == IBV_WC_SUCCESS) {
    peer.heardAt = Clock::now();
    ledger.complete(through, done);
    return;
  }
  if (through > 0) ledger.complete(through - 1, done);
  if (board_->saidFarewell(static_cast<int>(index)))
    endOfClosed(peer);
  else
    failed(peer, completion.status == IBV_WC_RETRY_EXC_ERR ? mkErrorRemote : mkErrorTransport,
           explain(peer, completion));
}

void Endpoint::collect(ibv_cq* queue) {
  ibv_wc done[32];
  // Bounded, so that one call does not last as long as others go on posting.
  for (int round = 0; round < 8; ++round) {
    const int count = ibv_poll_cq(queue, 32, done);
    if (count < 0) return deviceFailed(format("%s: polling a completion queue failed", address_.device));
    for (int i = 0; i < count; ++i) completed(done[i]);
    if (count < 32) return;
  }
}

void Endpoint::progress() {
  for (const QueuePtr& queue : queues_) collect(queue.get());
  const auto now = Clock::now();
  if (now - lookedAt_ < kLookEvery) return;
  lookedAt_ = now;
  look(now);
}

bool Endpoint::progressUntil(Clock::time_point deadline, const std::function<bool()>& condition) {
  for (;;) {
    progress();
    if (condition()) return true;
    if (Clock::now() >= deadline) return false;
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

// ---- Without a completion ------------------------------------------------------------------------------------------

void Endpoint::look(Clock::time_point now) {
  hearDevice();
  if (std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.connected() && !p.doom.empty(); }))
    checkPort();
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (!peer.connected()) continue;
    if (board_->saidFarewell(static_cast<int>(i)))
      endOfClosed(peer);
    else if (!peer.doom.empty() && now >= peer.doomAt)
      endOf(peer, peer.doomStatus, peer.doom, false);
    else if (now - peer.heardAt > kSilence && peer.idle())
      postWord(peer, Posted::Kind::beat, Board::kBeatAt, 1);
  }
}

void Endpoint::hearDevice() {
  for (ibv_async_event event = {}; ibv_get_async_event(device_.context.get(), &event) == 0;) {
    const ibv_event_type type = event.event_type;
    const EventMeaning meaning = meaningOf(type);
    const ibv_qp* const pair = meaning == EventMeaning::pairEnds ? event.element.qp : nullptr;
    const bool otherPort = meaning == EventMeaning::portEnds && event.element.port_num != device_.info.port;
    // Before anything is closed: closing waits for it.
    ibv_ack_async_event(&event);
    const std::string text = format("%s: %s", address_.device, ibv_event_type_str(type));
    if (meaning == EventMeaning::deviceEnds) {
      deviceFailed(text);
    } else if (meaning == EventMeaning::portEnds && !otherPort) {
      deviceFailed(format("%s has gone down (%s)", address_.device, ibv_event_type_str(type)));
    } else if (meaning == EventMeaning::pairEnds) {
      for (Peer& peer : peers_)
        for (const Connection& connection : peer.connections)
          if (connection.is(pair) && peer.connected())
            failed(peer, mkErrorTransport, format("%s: %s", nameOf(peer).c_str(), ibv_event_type_str(type)));
    } else if (meaning == EventMeaning::mayBreak) {
      MK_PLUGIN_WARN("%s: connections made before may break", text.c_str());
    } else {
      MK_PLUGIN_INFO("%s%s", text.c_str(), otherPort ? ", of another port" : "");
    }
  }
}

void Endpoint::checkPort() {
  ibv_port_attr port = {};
  if (ibv_query_port(device_.context.get(), device_.info.port, &port) == 0 && port.state != IBV_PORT_ACTIVE)
    deviceFailed(format("%s has gone down (%s)", address_.device, ibv_port_state_str(port.state)));
}

// ---- Ends ----------------------------------------------------------------------------------------------------------

void Endpoint::raiseError(Peer& peer, mkResult_t status) {
  if (std::exchange(peer.errorRaised, true)) return;
  const int index = static_cast<int>(indexOf(peer));
  events_.push_back({MK_EVENT_ERROR, index, status, 0, 0});
  MK_PLUGIN_WARN("writes to peer %d fail from now on: %s", index, peer.reason.c_str());
}

void Endpoint::endOf(Peer& peer, mkResult_t status, const std::string& reason, bool quiet) {
  if (!peer.connected()) return;
  peer.reason = reason;
  // The device is done with them once they are closed, so that everything can be settled at once.
  for (Connection& connection : peer.connections) connection.close();
  if (!quiet) raiseError(peer, status);
  for (Connection& connection : peer.connections)
    connection.ledger.drop([&](const Posted& posted) { settle(peer, posted, status); });
}

void Endpoint::failed(Peer& peer, mkResult_t status, const std::string& reason) {
  if (!peer.connected() || !peer.doom.empty()) return;
  peer.doom = reason;
  peer.doomStatus = status;
  peer.doomAt = Clock::now() + kPortGrace;
  for (Connection& connection : peer.connections) connection.close();
}

void Endpoint::endOfClosed(Peer& peer) {
  endOf(peer, mkErrorRemote, nameOf(peer) + " has closed its endpoint", peer.writesUnderWay == 0);
}

void Endpoint::deviceFailed(const std::string& reason) {
  if (!deviceReason_.empty()) return;
  deviceReason_ = reason;
  events_.push_back({MK_EVENT_ERROR, -1, mkErrorTransport, 0, 0});
  MK_PLUGIN_WARN("all writes fail from now on: %s", reason.c_str());
  for (Peer& peer : peers_) {
    peer.errorRaised = true;  // that of the device counts
    endOf(peer, mkErrorTransport, reason, true);
  }
}

int Endpoint::poll(mkTransportEvent_t* events, int capacity) {
  checkConnected(connected_);
  checkEvents(events, capacity);
  progress();
  int count = 0;
  for (; count < capacity && !events_.empty(); events_.pop_front()) {
    const mkTransportEvent_t& event = events[count++] = events_.front();
    // A write is outstanding until the caller knows of its end, so events_ is bounded too.
    if (event.kind == MK_EVENT_SENT) --peers_[static_cast<size_t>(event.peer)].outstanding;
    if (event.kind == MK_EVENT_ERROR)
      setLastError(event.peer < 0 ? deviceReason_ : peers_[static_cast<size_t>(event.peer)].reason);
  }
  return count;
}

// Peers that know can tell an end from a failure.  Whatever was under way is over first: nothing must arrive afterwards.
void Endpoint::sayFarewell() {
  const auto idle = [this] {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return !p.connected() || p.idle(); });
  };
  const auto limit = Clock::now() + kDrainLimit;
  for (uint64_t before = 0; Clock::now() < limit; before = completions_) {
    if (progressUntil(std::min(limit, Clock::now() + kDrainPause), idle) || before == completions_) break;
  }
  for (Peer& peer : peers_)
    if (peer.connected() && peer.idle()) postWord(peer, Posted::Kind::farewell, Board::kFarewellAt, 1);
  progressUntil(Clock::now() + kFarewell, idle);
}

Endpoint::~Endpoint() {
  try {
    if (connected_) sayFarewell();
  } catch (const std::exception& failure) {
    MK_PLUGIN_WARN("%s: closing: %s", address_.device, failure.what());
  }
}

}  // namespace mk::plugin::ibverbs
