// What watches a communicator while the caller's threads are elsewhere or inside an operation: called by the bootstrap's thread,
// on its events and about every 10 ms, and by the proxy's.
#include <algorithm>
#include <utility>

#include "host/comm.h"

namespace mk {

namespace {

using protocol::OwnLayout;

// How long a broken connection waits for the bootstrap to say who died.
constexpr uint64_t kNetworkGraceNs = 700'000'000;
// How long a launch makes no progress before the hub is told for whom it waits, and how often again.
constexpr uint64_t kWaitingNs = 1'000'000'000;
constexpr uint64_t kWaitingAgainNs = 500'000'000;

}  // namespace

std::string Comm::argumentText(uint32_t hash) {
  // Whoever compares has seen this rank enter that very operation, which cannot have ended.
  const std::lock_guard lock(mutex_);
  return hash == runningHash_ ? runningText_ : std::string();
}

void Comm::onNetworkFailure(int node, const std::string& text) {
  const std::lock_guard lock(mutex_);
  networkFailure_ = text;
  networkFailureNode_ = node;
  networkFailureAt_ = emu::nowNs();
}

void Comm::onLeaving(int rank) {
  const std::lock_guard lock(mutex_);
  leaving_.push_back(rank);
  if (departed_ < 0) {
    departed_ = rank;
    departedAt_ = emu::nowNs();
  }
}

bool Comm::networkSettled() const {
  return proxy_ == nullptr || memory_.ownWord(OwnLayout::completions).load(std::memory_order_acquire) >=
                                  memory_.ownWord(OwnLayout::ringTail).load(std::memory_order_acquire);
}

// With mutex_ held.  For whom the running launch waits, if it makes no progress.  There is no deadline while ranks have not
// entered; but one that has refused its arguments, or is in another call, will not come, and the hub can tell.  It also tells
// those that wait from the one that they wait for.
FailureReport Comm::waitingReport(uint64_t now) {
  FailureReport report;
  const uint64_t quiet = std::min<uint64_t>(kWaitingNs, memory_.timeoutNs / 2);
  const emu::WaitBoard& waits = agents_->waits;
  if (runningSince_ == 0 || error_ != mkSuccess || now - waitingAt_ < std::min(quiet, kWaitingAgainNs)) return report;
  const uint64_t last = std::max(waits.lastProgress(), runningSince_);
  // Agents that do not even poll stand still themselves.
  if (now < last + quiet || now > waits.lastPoll() + quiet) return report;
  const protocol::Why why = waits.root();
  if (why.stage == protocol::Stage::none) return report;
  waitingAt_ = now;
  report.kind = FailureReport::waiting;
  report.epoch = memory_.ownWord(OwnLayout::epoch).load(std::memory_order_acquire) + 1;
  report.stageOrder = static_cast<uint32_t>(why.stage);
  report.missingRank = rankOf(why);
  const auto refused = refusals_.find(report.epoch - settings_.epochStart);
  report.argumentHash = refused != refusals_.end() ? refused->second : 0;
  report.text = stageText(runningName_, report.epoch, why);
  return report;
}

// With mutex_ held.  The words by which ranks enter travel as network writes, and no deadline of the agents covers those.
FailureReport Comm::stuckReport(uint64_t now) {
  FailureReport report;
  const uint64_t completed = memory_.ownWord(OwnLayout::completions).load(std::memory_order_acquire);
  if (networkSettled() || completed != completions_ || runningSince_ == 0 || error_ != mkSuccess ||
      completionsAt_ == 0) {
    completions_ = completed;
    completionsAt_ = now;
    return report;
  }
  const uint64_t epoch = memory_.ownWord(OwnLayout::epoch).load(std::memory_order_acquire) + 1;
  if (now - completionsAt_ <= memory_.timeoutNs ||
      memory_.ownWord(OwnLayout::allEntered).load(std::memory_order_acquire) == epoch)
    return report;
  completionsAt_ = now;
  protocol::Why why;
  why.stage = protocol::Stage::completion;
  why.node = proxy_->unfinishedNode();
  report.kind = FailureReport::timeout;
  report.epoch = epoch;
  report.stageOrder = static_cast<uint32_t>(why.stage);
  report.missingRank = rankOf(why);
  report.text =
      stageText(runningName_, epoch, why) + format(": no network write has completed for %d ms", settings_.timeoutMs);
  return report;
}

void Comm::tick() {
  Bootstrap* bootstrap = control_.load(std::memory_order_acquire);
  if (bootstrap == nullptr) return;
  FailureReport report, waiting, stuck;
  std::vector<int> free;
  bool stopProxy = false;
  std::string late;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t now = emu::nowNs();
    if (!networkFailure_.empty() && error_ == mkSuccess && now - networkFailureAt_ > kNetworkGraceNs) {
      report.kind = FailureReport::transport;
      report.missingRank =
          networkFailureNode_ >= 0 ? rankAt(networkFailureNode_, static_cast<int32_t>(memory_.place.local)) : -1;
      report.text = std::exchange(networkFailure_, {});
    }
    waiting = waitingReport(now);
    stuck = stuckReport(now);
    // A launch that the departed rank took part in ends by itself within moments; one that it will never enter does not.  Half
    // of the time for which it waits, so that it hears that its memory has been let go of.
    if (departed_ >= 0 && error_ == mkSuccess && pending_ > 0 &&
        now - departedAt_ > static_cast<uint64_t>(settings_.teardownTimeoutMs) * 500'000u)
      late = rankName(departed_) + " has left the communicator while an operation here waits for it";
    stopProxy = error_ != mkSuccess && pending_ == 0 && !growing_ && !stopped_;
  }
  for (const FailureReport* r : {&report, &waiting, &stuck})
    if (!r->text.empty()) bootstrap->report(*r);
  if (!late.empty()) setError(mkErrorRemote, late);
  if (stopProxy) {
    if (proxy_ != nullptr) proxy_->stop();
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  {
    const std::lock_guard lock(mutex_);
    // Whoever waits for its memory gets it once nothing here can write to it: after a failure when agents have left and the
    // endpoint is closed, else when the launches have ended and their network writes have completed.
    if (error_ != mkSuccess ? stopped_ : pending_ == 0 && networkSettled()) free = std::exchange(leaving_, {});
  }
  for (const int rank : free) bootstrap->letGo(rank);
}

}  // namespace mk
