// See wireup.h.
#include "wireup.h"

#include <algorithm>
#include <utility>

#include "common/failure.h"
#include "common/thread.h"

namespace mk::plugin::ibverbs {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstPause = 10ms, kLongestPause = 500ms;

}  // namespace

Wireup::Wireup(std::unique_ptr<Datagrams> datagrams, const Token& ownId, const Token& ownSecret, int self,
               std::vector<WireupPeer> peers)
    : datagrams_(std::move(datagrams)),
      ownId_(ownId),
      ownSecret_(ownSecret),
      self_(self),
      peers_(std::move(peers)),
      states_(peers_.size()) {
  State& own = states_[static_cast<size_t>(self_)];
  own.heard = own.returned = own.ready = own.peerReady = true;
  thread_ = startThread("mk-ibverbs", [this] { loop(); });
}

Wireup::~Wireup() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  datagrams_->wake();
  thread_.join();
}

bool Wireup::next(Clock::time_point deadline, int* peer, Hello* hello) {
  std::unique_lock lock(mutex_);
  auto found = states_.end();
  changed_.wait_until(lock, deadline, [&] {
    found = std::find_if(states_.begin(), states_.end(), [](const State& s) { return s.heard && !s.returned; });
    return found != states_.end();
  });
  if (found == states_.end()) return false;
  found->returned = true;
  *peer = static_cast<int>(found - states_.begin());
  *hello = found->theirs;
  return true;
}

void Wireup::markReady(int peer) {
  {
    const std::lock_guard lock(mutex_);
    State& state = states_[static_cast<size_t>(peer)];
    state.ready = state.answer = true;
  }
  datagrams_->wake();
}

bool Wireup::waitAll(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] {
    return std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.ready && s.peerReady; });
  });
}

std::string Wireup::missing() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].peerReady) continue;
    text += format("%speer %zu %s", text.empty() ? "" : ", ", i,
                   states_[i].heard ? "has not finished connecting" : "has not been heard of");
  }
  return text;
}

// With mutex_ held.
void Wireup::take(const Hello& hello) {
  // Anybody on the network can send; the secret is known to peers only.
  if (hello.magic != kMagic || hello.version != kWireVersion || hello.receiver != ownSecret_) return;
  const auto from =
      std::find_if(peers_.begin(), peers_.end(), [&](const WireupPeer& p) { return p.id == hello.sender; });
  const auto index = static_cast<size_t>(from - peers_.begin());
  if (from == peers_.end() || index == static_cast<size_t>(self_)) return;
  State& state = states_[index];
  if (!state.heard) state.theirs = hello;
  state.heard = true;
  if (hello.ready != 0) state.peerReady = true;
  if (hello.wanted != 0 && state.ready) state.answer = true;
  changed_.notify_all();
}

// With mutex_ held.  Returns when there is something to tell again.
Clock::time_point Wireup::tell() {
  const auto now = Clock::now();
  auto soonest = Clock::time_point::max();
  for (size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (i == static_cast<size_t>(self_)) continue;
    const bool due = !state.peerReady && now >= state.again;
    if (due || state.answer) {
      Hello hello = peers_[i].hello;
      hello.magic = kMagic;
      hello.version = kWireVersion;
      hello.receiver = peers_[i].secret;
      hello.sender = ownId_;
      hello.ready = state.ready ? 1 : 0;
      hello.wanted = state.peerReady ? 0 : 1;
      if (datagrams_->send(static_cast<int>(i), hello)) state.answer = false;
      if (due) {
        state.pause = std::clamp<std::chrono::milliseconds>(state.pause * 2, kFirstPause, kLongestPause);
        state.again = now + state.pause;
      }
      if (state.answer) soonest = std::min(soonest, now + kFirstPause);
    }
    if (!state.peerReady) soonest = std::min(soonest, state.again);
  }
  return soonest;
}

void Wireup::loop() {
  for (;;) {
    int ms = -1;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      Hello hello = {};
      while (datagrams_->receive(&hello)) take(hello);
      const auto again = tell();
      if (again != Clock::time_point::max())
        ms = static_cast<int>(
            std::max<int64_t>(1, std::chrono::ceil<std::chrono::milliseconds>(again - Clock::now()).count()));
    }
    datagrams_->wait(ms);
  }
}

}  // namespace mk::plugin::ibverbs
