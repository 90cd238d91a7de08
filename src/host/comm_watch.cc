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
  if (hash == runningHash_) return runningText_;
  const auto found = argumentTexts_.find(hash);
  return found != argumentTexts_.end() ? found->second : std::string();
}

void Comm::onNetworkFailure(int node, const std::string& text) {
  const std::lock_guard lock(mutex_);
  networkFailure_ = text;
  networkFailureNode_ = node;
  networkFailureAt_ = nowNs();
}

void Comm::onLeaving(int rank) {
  const std::lock_guard lock(mutex_);
  leaving_.push_back(rank);
  if (departed_ < 0) {
    departed_ = rank;
    departedAt_ = nowNs();
  }
}

bool Comm::networkSettled() const {
  return proxy_ == nullptr || platform_->completions() >= platform_->word(OwnLayout::ringTail);
}

// With mutex_ held.  For whom the running launch waits, if it makes no progress.  There is no deadline while ranks have not
// entered; but one that has refused its arguments, or is in another call, will not come, and the hub can tell.  It also tells
// those that wait from the one that they wait for.
FailureReport Comm::waitingReport(uint64_t now) {
  FailureReport report;
  const uint64_t quiet = std::min<uint64_t>(kWaitingNs, timeoutNs() / 2);
  if (runningSince_ == 0 || error_ != mkSuccess || now - waitingAt_ < std::min(quiet, kWaitingAgainNs)) return report;
  const LaunchView view = platform_->view();
  const uint64_t last = std::max(view.progressAt, runningSince_);
  // Agents that do not even poll stand still themselves.
  if (now < last + quiet || now > view.polledAt + quiet) return report;
  const protocol::Why& why = view.waits;
  if (why.stage == protocol::Stage::none) return report;
  waitingAt_ = now;
  report.kind = FailureReport::waiting;
  report.epoch = view.epoch;
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
  const uint64_t completed = platform_->completions();
  if (networkSettled() || completed != completions_ || runningSince_ == 0 || error_ != mkSuccess ||
      completionsAt_ == 0) {
    completions_ = completed;
    completionsAt_ = now;
    return report;
  }
  const uint64_t epoch = platform_->word(OwnLayout::epoch) + 1;
  if (now - completionsAt_ <= timeoutNs() || platform_->word(OwnLayout::allEntered) == epoch) return report;
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

// Of an asynchronous platform: sees launches begin, end and fail, which no thread of the host waits for.
void Comm::watchLaunches(Bootstrap* bootstrap, uint64_t now) {
  constexpr uint64_t kVerdictNs = uint64_t{kVerdictMs} * 1'000'000;
  OwnError own;
  try {
    static_cast<void>(platform_->bind());  // this thread's for good
    platform_->refresh(false);
  } catch (const Error& e) {
    // The others would wait for this rank, without a deadline.
    own.code = e.code();
    own.text = format("rank %d: %s", rank_, e.what());
    own.at = now;
    {
      const std::lock_guard lock(mutex_);
      if (error_ != mkSuccess) return;
      if (ownError_.code != mkSuccess) {
        own = now - ownError_.at > kVerdictNs ? ownError_ : OwnError();
      } else {
        ownError_ = own;
      }
    }
    if (own.code == mkSuccess) return;
    if (own.at != now) return setError(own.code, own.text);
    FailureReport report;
    report.kind = FailureReport::protocol;
    report.missingRank = rank_;
    report.epoch = platform_->word(OwnLayout::epoch) + 1;
    report.text = own.text;
    return bootstrap->report(report);
  }
  noteEpoch(bootstrap);
  {
    const std::lock_guard lock(mutex_);
    const uint64_t epoch = platform_->word(OwnLayout::epoch);
    if (!platform_->running()) {
      runningSince_ = 0;
    } else if (runningSince_ == 0 || epoch != runningAfter_) {
      runningSince_ = now;
      runningAfter_ = epoch;
    }
    if (ownError_.code != mkSuccess && now - ownError_.at > kVerdictNs) own = ownError_;
  }
  if (own.code != mkSuccess) setError(own.code, own.text);
  if (!platform_->hasRecord()) return;
  const protocol::FailRecord record = platform_->record();
  const char* name = "";
  {
    const std::lock_guard lock(mutex_);
    if (error_ != mkSuccess || ownError_.code != mkSuccess) return;
    name = runningName_;
  }
  own = reportRecord(name, sched::enteredHash(record.expected), record);
  const std::lock_guard lock(mutex_);
  ownError_ = own;
}

void Comm::tick() {
  Bootstrap* bootstrap = control_.load(std::memory_order_acquire);
  if (bootstrap == nullptr) return;
  if (platform_->asynchronous()) watchLaunches(bootstrap, nowNs());
  bool failed = false, awaited = false;
  {
    const std::lock_guard lock(mutex_);
    failed = error_ != mkSuccess;
    awaited = !leaving_.empty();
    if (failed && stopped_ && !awaited) return;
  }
  // From then on no launch begins.  Where nothing depends on it, the platform is not asked.
  const bool idle = (failed || awaited) && !busy(failed);
  FailureReport report, waiting, stuck;
  std::vector<int> free;
  bool stopProxy = false;
  std::string late;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t now = nowNs();
    if (!networkFailure_.empty() && error_ == mkSuccess && now - networkFailureAt_ > kNetworkGraceNs) {
      report.kind = FailureReport::transport;
      report.missingRank =
          networkFailureNode_ >= 0 ? rankAt(networkFailureNode_, static_cast<int32_t>(place_.local)) : -1;
      report.text = std::exchange(networkFailure_, {});
    }
    waiting = waitingReport(now);
    stuck = stuckReport(now);
    // A launch that the departed rank took part in ends by itself within moments; one that it will never enter does not.  Half
    // of the time for which it waits, so that it hears that its memory has been let go of.
    if (departed_ >= 0 && error_ == mkSuccess && awaited && !idle &&
        now - departedAt_ > static_cast<uint64_t>(settings_.teardownTimeoutMs) * 500'000u)
      late = rankName(departed_) + " has left the communicator while an operation here waits for it";
    stopProxy = failed && idle && !growing_ && !stopped_;
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
    if (error_ != mkSuccess ? stopped_ : awaited && idle && networkSettled()) free = std::exchange(leaving_, {});
  }
  for (const int rank : free) bootstrap->letGo(rank);
}

}  // namespace mk
