// See nic.h.
#include "nic.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace mk::plugin::loopback {
namespace {

constexpr double kNsPerUs = 1000;
// Where the model has no times of its own, a write is overtaken or repeated within these, nanoseconds.
constexpr double kHoldNs = 300000, kRepeatNs = 200000;
constexpr int kOvertakersLog = 5;  // a write is overtaken by up to 2^this others

}  // namespace

Nic::Nic(const Settings& settings, uint64_t seed, size_t peers)
    : settings_(settings),
      ordered_(settings.contract == MK_CONTRACT_ORDERED),
      inTurn_(settings.jitterUs <= 0 && settings.reorder <= 0 && settings.repeat <= 0),
      random_(seed),
      broken_(peers),
      busyPeers_(peers) {}

void Nic::submit(Flight&& flight, int64_t now) {
  flight.order = ++submitted_;
  // Lost: it holds its place among the outstanding ones for ever.
  if (settings_.dropAfter > 0 && flight.order > static_cast<uint64_t>(settings_.dropAfter)) return;
  plan(flight, now);
  flights_.push_back(std::move(flight));
  nextDue_ = 0;
}

void Nic::plan(Flight& flight, int64_t now) {
  const double jitter = settings_.jitterUs * kNsPerUs;
  linkFreeAt_ = std::max(linkFreeAt_, now);
  // One GB/s is one byte per nanosecond.
  if (settings_.gigabytesPerSecond > 0)
    linkFreeAt_ += static_cast<int64_t>(static_cast<double>(flight.write.bytes) / settings_.gigabytesPerSecond);
  const auto random = [&](double most) { return static_cast<int64_t>(most > 0 ? unit_(random_) * most : 0); };
  flight.payloadAt = linkFreeAt_ + static_cast<int64_t>(settings_.latencyUs * kNsPerUs) + random(jitter);
  flight.notifyAt = flight.payloadAt + random(jitter);
  flight.fails = settings_.failAfter > 0 && flight.order > static_cast<uint64_t>(settings_.failAfter);
  flight.repeats = chance(settings_.repeat);
  if (chance(settings_.reorder)) {
    flight.overtakers = 1 << random_() % (kOvertakersLog + 1);
    flight.heldStage = random_() % 2 == 0 ? Flight::Stage::payload : Flight::Stage::notify;
    flight.holdUntil = flight.notifyAt + static_cast<int64_t>(kHoldNs) +
                       static_cast<int64_t>(2 * (settings_.latencyUs * kNsPerUs + jitter));
    ++held_;
  }
  if (jitter > 0 || flight.overtakers > 0) flight.split = random_() % (flight.write.bytes + 1);
}

void Nic::progress(int64_t now, Carrier& carrier) {
  if (flights_.empty() || now < nextDue_) return;
  // Each write that has been overtaken often enough starts anew, so that it goes before those behind its overtakers.
  do {
    freed_ = false;
    pass(now, carrier);
  } while (freed_);
}

void Nic::pass(int64_t now, Carrier& carrier) {
  busyStreams_.clear();
  std::fill(busyPeers_.begin(), busyPeers_.end(), false);
  moved_ = false;
  int64_t next = std::numeric_limits<int64_t>::max();
  for (auto flight = flights_.begin(); flight != flights_.end() && !freed_;) {
    const size_t peer = static_cast<size_t>(flight->peer);
    const std::pair<int, uint32_t> stream(flight->peer, flight->write.queue);
    const bool streamBusy =
        ordered_ && std::find(busyStreams_.begin(), busyStreams_.end(), stream) != busyStreams_.end();
    int64_t wakeAt = std::numeric_limits<int64_t>::max();
    const Step step = advance(*flight, now, streamBusy, busyPeers_[peer], carrier, &wakeAt);
    if (step == Step::finished) {
      if (flight->overtakers > 0) --held_;
      flight = flights_.erase(flight);
      continue;
    }
    if (step == Step::retry) wakeAt = now;
    busyPeers_[peer] = true;
    if (ordered_ && !streamBusy && flight->stage != Flight::Stage::repeat) busyStreams_.push_back(stream);
    next = std::min(next, wakeAt);
    // Looking at all that wait would take longer than a write does.
    if (inTurn_ && wakeAt > now && !anyBroken_) break;
    ++flight;
  }
  // What was delivered may have freed others, earlier in the list too.
  nextDue_ = moved_ ? now : next;
}

Nic::Step Nic::advance(Flight& flight, int64_t now, bool streamBusy, bool peerBusy, Carrier& carrier, int64_t* wakeAt) {
  using Stage = Flight::Stage;
  using Outcome = Carrier::Outcome;
  const uint64_t bytes = flight.write.bytes;
  const auto finish = [&](mkResult_t status, const std::string& reason) {
    // Once delivered, a write has succeeded, whatever its repetition meets.
    const bool success = flight.stage == Stage::repeat || status == mkSuccess;
    moved_ = true;
    carrier.finished(flight, success ? mkSuccess : status, success ? std::string() : reason);
    return Step::finished;
  };
  const auto gone = [&] { return finish(mkErrorTransport, "the destination was deregistered by its owner"); };
  const auto due = [&](int64_t at) {
    const bool held = flight.overtakers > 0 && flight.stage == flight.heldStage;
    if (now >= at && (!held || now >= flight.holdUntil)) return true;
    *wakeAt = held ? std::max(at, flight.holdUntil) : at;
    return false;
  };

  const Broken& broken = broken_[static_cast<size_t>(flight.peer)];
  if (broken.status != mkSuccess) return finish(broken.status, broken.reason);
  if (flight.fails) {
    // Behind the earlier ones to its peer, which succeed.
    if (peerBusy || !due(flight.notifyAt)) return Step::wait;
    return finish(mkErrorTransport, "failure asked for by MKERNEL_LOOPBACK_FAIL_AFTER");
  }
  if (streamBusy && flight.stage != Stage::repeat) return Step::wait;

  if (flight.stage == Stage::payload) {
    if (!due(flight.payloadAt)) return Step::wait;
    if (carrier.copy(flight, flight.split, bytes, false) == Outcome::gone) return gone();
    flight.stage = Stage::notify;
  }
  if (flight.stage == Stage::notify) {
    if (!due(flight.notifyAt)) return Step::wait;
    if (flight.split > 0 && carrier.copy(flight, 0, flight.split, false) == Outcome::gone) return gone();
    flight.split = 0;
    const Outcome outcome = carrier.notify(flight);
    if (outcome == Outcome::full) return Step::retry;
    if (outcome == Outcome::gone) return gone();
    delivered(flight, now);
    if (!flight.repeats) return finish(mkSuccess, "");
  }
  if (now < flight.repeatAt) {
    *wakeAt = flight.repeatAt;
    return Step::wait;
  }
  if (carrier.copy(flight, 0, bytes, true) == Outcome::gone) return finish(mkSuccess, "");
  if (carrier.notify(flight) == Outcome::full) return Step::retry;
  return finish(mkSuccess, "");
}

void Nic::delivered(Flight& flight, int64_t now) {
  flight.stage = Flight::Stage::repeat;
  moved_ = true;
  if (flight.repeats) {
    const double span = std::max(kRepeatNs, 2 * (settings_.latencyUs + settings_.jitterUs) * kNsPerUs);
    flight.repeatAt = now + static_cast<int64_t>(unit_(random_) * span);
  }
  if (flight.overtakers > 0) {
    flight.overtakers = 0;
    --held_;
  }
  for (auto other = flights_.begin(); held_ > 0 && other != flights_.end() && other->order < flight.order; ++other)
    if (other->overtakers > 0 && --other->overtakers == 0) {
      --held_;
      freed_ = true;
    }
}

void Nic::breakPeer(int peer, mkResult_t status, const std::string& reason) {
  Broken& broken = broken_[static_cast<size_t>(peer)];
  if (broken.status == mkSuccess) broken = {status, reason};
  anyBroken_ = true;
  nextDue_ = 0;
}

std::list<Flight> Nic::takeFrom(const LocalRegion* source) {
  std::list<Flight> taken;
  for (auto flight = flights_.begin(); flight != flights_.end();) {
    const auto next = std::next(flight);
    if (flight->source.get() == source) {
      if (flight->overtakers > 0) --held_;
      taken.splice(taken.end(), flights_, flight);
    }
    flight = next;
  }
  nextDue_ = 0;
  return taken;
}

}  // namespace mk::plugin::loopback
