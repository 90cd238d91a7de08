// The client side of the bootstrap: joining, and what the user's threads call.  See bootstrap_rank.h.
#include "host/bootstrap.h"

#include <unistd.h>

#include <algorithm>

#include "host/bootstrap_rank.h"
#include "host/params.h"

namespace mk {
namespace {

// If the hub has no verdict by then, this rank's own report becomes one.  The hub takes 2 s at most.
constexpr int verdictMs = 5000;
// A step of initialisation has this long, however late it is: enough for the hub to say who is missing.
constexpr int leastMs = 500;
// So long after its share of a step's time the hub's answer may take: the whole rest, but where that is short and the machine
// busy, longer, or ranks would differ in what they say.
constexpr int answerMs = 1000;
constexpr int farewellMs = 200;  // for the hub's answer to goodbye, if the time for departing is over

}  // namespace

// ---- The user's thread ---------------------------------------------------------------------------------------------

int RankBootstrap::left() const {
  if (!initDeadline_.has_value()) return timeoutMs_;
  return std::clamp(pollMs(Clock::now(), *initDeadline_), std::min(timeoutMs_, leastMs), timeoutMs_);
}

void RankBootstrap::throwIfFailed(const std::string& what) const {
  if (departed_) fail(mkErrorInvalidUsage, "%s: this rank has left the communicator", what.c_str());
  if (failure_.has_value()) throw *failure_;
  if (revoked_) fail(mkErrorRevoked, "%s: this rank has revoked the communicator", what.c_str());
  if (!hubGone_) return;
  for (int rank = 0; rank < nranks(); ++rank)
    if (leaving_[static_cast<size_t>(rank)])
      fail(mkErrorRemote, "%s: %s has left the communicator", what.c_str(), name(rank).c_str());
  fail(mkErrorRemote, "%s: the communicator has ended", what.c_str());
}

std::vector<std::vector<uint8_t>> RankBootstrap::collective(Contribution c, const std::string& what) {
  checkProcess();
  std::unique_lock lock(mutex_);
  // That it has failed already came before whatever has happened since.
  if (const auto early = early_.find(nextSequence_); early == early_.end()) throwIfFailed(what);
  if (running_.has_value())
    fail(mkErrorInvalidUsage, "%s: another thread of this rank is in a collective call", what.c_str());
  const int leftMs = left();
  const int64_t waitMs = hubShareOfTimeout(static_cast<uint32_t>(leftMs)) + answerMs;
  const TimePoint deadline = afterMs(waitMs);
  c.sequence = nextSequence_++;
  c.timeoutMs = static_cast<uint32_t>(timeoutMs_);
  c.leftMs = static_cast<uint32_t>(leftMs);
  c.launched = launched_.load(std::memory_order_relaxed);
  c.what = what;
  running_ = RunningCall{};
  running_->sequence = c.sequence;
  if (c.kind == Contribution::allgather) running_->parts.resize(welcome_.peers.size());
  post(encode(c));
  if (auto early = early_.extract(c.sequence)) {
    running_->result = early.mapped().code();
    running_->text = early.mapped().what();
  }
  changed_.wait_until(lock, deadline, [&] {
    return running_->result.has_value() || failure_.has_value() || revoked_ || departed_ || hubGone_;
  });
  RunningCall done = std::move(*running_);
  running_.reset();
  // An answer that is there counts, whatever happened since.
  if (!done.result.has_value()) {
    throwIfFailed(what);
    fail(mkErrorTimeout, "%s: no answer from the hub (host %s, pid %lld) within %lld ms", what.c_str(),
         welcome_.hubHost.c_str(), static_cast<long long>(welcome_.hubPid), static_cast<long long>(waitMs));
  }
  if (*done.result != mkSuccess) throw Error(*done.result, done.text);
  return std::move(done.parts);
}

void RankBootstrap::report(const FailureReport& report) {
  if (getpid() != pid_) return;
  const std::lock_guard lock(mutex_);
  if (failure_.has_value() || departed_) return;
  const bool isFailure = report.kind != FailureReport::rejected && report.kind != FailureReport::waiting;
  if (isFailure && !ownReport_.has_value()) {
    ownReport_ = report;
    ownReportUntil_ = afterMs(verdictMs);
  }
  post(encode(report));
  signalEvent(wake_.get());  // also where the hub is gone
}

// Ranks that may still touch this rank's memory.
std::vector<int> RankBootstrap::holders() const {
  std::vector<int> result;
  for (int rank = 0; rank < nranks(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    if (rank != rank_ && !letGo_[i] && !gone_[i]) result.push_back(rank);
  }
  return result;
}

std::vector<int> RankBootstrap::depart(int timeoutMs) {
  checkProcess();
  std::unique_lock lock(mutex_);
  if (departed_) return {};
  const TimePoint deadline = afterMs(std::max(timeoutMs, 0));
  post(encodeEmpty(Message::leave));
  changed_.wait_until(lock, deadline, [&] { return holders().empty() || hubGone_; });
  post(encodeEmpty(Message::goodbye));
  // In the hub's own process the answer comes only once the others have left too.
  changed_.wait_until(lock, std::max(deadline, afterMs(farewellMs)), [&] { return farewell_ || hubGone_; });
  departed_ = true;
  return holders();
}

// ---- Interface -----------------------------------------------------------------------------------------------------

void Bootstrap::createId(mkUniqueId_t* id) {
  HubOptions options;
  options.interfaces = params().socketIfname;
  options.family = params().socketFamily;
  options.initTimeoutMs = params().initTimeoutMs;
  *id = startHub(options);
}

std::unique_ptr<Bootstrap> Bootstrap::join(const mkUniqueId_t& id, const Identity& identity, int initTimeoutMs,
                                           BootstrapEvents events) {
  const HubPlace place = decodeUniqueId(id);
  if (identity.hostId.size() > maxNameBytes)
    fail(mkErrorInvalidArgument, "hostId: %zu characters; legal are up to %zu", identity.hostId.size(), maxNameBytes);
  if (identity.settings.size() > maxSettingsBytes)
    fail(mkErrorInternal, "settings of %zu bytes; at most %zu can be compared", identity.settings.size(),
         maxSettingsBytes);
  Hello hello;
  hello.secret = place.secret;
  hello.rank = identity.rank;
  hello.nranks = identity.nranks;
  hello.pid = getpid();
  hello.host = hostName();
  hello.inHubProcess = hubRunsHere(place.secret);
  hello.hostId = identity.hostId;
  hello.deviceId = identity.deviceId;
  hello.settings = identity.settings;
  const int timeoutMs = std::max(initTimeoutMs, 1);
  const TimePoint deadline = afterMs(timeoutMs);
  return std::make_unique<RankBootstrap>(joinHub(place, std::move(hello), timeoutMs), identity.rank, timeoutMs,
                                         deadline, std::move(events));
}

}  // namespace mk
