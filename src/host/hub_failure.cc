// See hub_failure.h.
#include "host/hub_failure.h"

#include <algorithm>
#include <set>

namespace mk {
namespace {

constexpr int graceMs = 300;      // after the latest report of a timeout
constexpr int maxGraceMs = 1500;  // after the first
constexpr int argumentsMs = 2000;
constexpr int waitingMs = 1500;  // a rank that waits says so every 500 ms
constexpr size_t maxReports = 1 << 16;
const char* const unknown = "(unknown)";

}  // namespace

void HubFailure::report(int rank, FailureReport r) {
  if (stopped_) return;
  const bool named = r.missingRank >= 0 && r.missingRank < line_->nranks();
  if (!named) r.missingRank = -1;
  switch (r.kind) {
    case FailureReport::transport:
    case FailureReport::protocol: {
      std::string text = line_->name(rank) + ": " + r.text;
      if (named) text += "; the other side is " + line_->name(r.missingRank);
      verdict_(r.kind == FailureReport::transport ? mkErrorTransport : mkErrorInternal, text);
      return;
    }
    case FailureReport::mismatch:
      // Explains the timeouts that may have been reported before it.
      if (!mismatch_.has_value()) startMismatch(rank, std::move(r));
      return;
    case FailureReport::rejected:
      rejected_.insert_or_assign(rank, std::move(r));
      return compareRejected();
    case FailureReport::waiting:
      waiting_.insert_or_assign(rank, std::move(r));
      waitingAt_[rank] = Clock::now();
      return compareRejected();
    default:
      break;
  }
  if (mismatch_.has_value() || timeouts_.size() >= maxReports) return;
  const TimePoint now = Clock::now();
  if (timeouts_.empty()) firstTimeout_ = now;
  timeouts_.push_back({rank, std::move(r)});
  graceEnd_ = std::min(now + std::chrono::milliseconds(graceMs), firstTimeout_ + std::chrono::milliseconds(maxGraceMs));
}

void HubFailure::startMismatch(int rank, FailureReport r) {
  mismatch_ = Mismatch{};
  Mismatch& m = *mismatch_;
  m.deadline = afterMs(argumentsMs);
  m.sides[0] = {rank, r.argumentHash, std::nullopt};
  m.sides[1] = {r.missingRank == rank ? -1 : r.missingRank, r.missingHash, std::nullopt};
  m.report = std::move(r);
  if (m.sides[1].rank >= 0 && m.sides[1].rank < m.sides[0].rank) std::swap(m.sides[0], m.sides[1]);
  for (Side& side : m.sides) {
    if (side.rank < 0 || !line_->reachable(side.rank))
      side.text = unknown;
    else
      line_->send(side.rank, WireWriter(Message::askArguments).u32(side.hash).u64(m.report.epoch).done());
  }
  finishMismatch(Clock::now());
}

void HubFailure::arguments(int rank, uint32_t hash, uint64_t epoch, const std::string& text) {
  if (stopped_ || !mismatch_.has_value() || epoch != mismatch_->report.epoch) return;
  for (Side& side : mismatch_->sides)
    if (side.rank == rank && side.hash == hash && !side.text.has_value()) side.text = text.empty() ? unknown : text;
  finishMismatch(Clock::now());
}

void HubFailure::rankGone(int rank) {
  if (stopped_ || !mismatch_.has_value()) return;
  for (Side& side : mismatch_->sides)
    if (side.rank == rank && !side.text.has_value()) side.text = unknown;
  finishMismatch(Clock::now());
}

void HubFailure::finishMismatch(TimePoint now) {
  const Mismatch& m = *mismatch_;
  const bool complete = m.sides[0].text.has_value() && m.sides[1].text.has_value();
  if (!complete && now < m.deadline) return;
  std::string text = "arguments differ between ranks: ";
  for (const Side& side : m.sides) {
    if (&side != &m.sides.front()) text += "; ";
    text += side.rank < 0 ? "another rank" : line_->name(side.rank);
    text += " has " + side.text.value_or(unknown);
  }
  if (!m.report.text.empty()) text += "; " + m.report.text;
  verdict_(mkErrorInvalidUsage, text);
}

// A rank that refuses its arguments gets its error at once and may go on; but if others wait for it in that very operation,
// they would wait for ever.
void HubFailure::compareRejected() {
  for (const auto& [refuser, refused] : rejected_) {
    if (refused.text.empty()) continue;
    for (const auto& [waiter, waits] : waiting_) {
      if (waits.epoch != refused.epoch || waiter == refuser) continue;
      // Both have refused: it may be late for the next try.
      if (waits.argumentHash != 0 && refused.argumentHash <= waits.argumentHash) continue;
      verdict_(mkErrorInvalidUsage, line_->name(refuser) + " refused its arguments: " + refused.text + "; " +
                                        line_->name(waiter) + " waits for it in " + waits.text);
      return;
    }
  }
}

// A rank in a collective call launches nothing before the others have come to it too, and they are in an operation.
void HubFailure::compareCalls(const Elsewhere& elsewhere) {
  if (stopped_ || mismatch_.has_value()) return;
  const TimePoint fresh = Clock::now() - std::chrono::milliseconds(waitingMs);
  for (const auto& [waiter, waits] : waiting_) {
    if (waitingAt_[waiter] < fresh) continue;  // it has got on since
    const std::string other = elsewhere(waits.epoch);
    if (other.empty()) continue;
    verdict_(mkErrorInvalidUsage,
             "ranks are in different calls: " + other + "; " + line_->name(waiter) + " waits in " + waits.text);
    return;
  }
}

void HubFailure::finishTimeout() {
  std::set<int> reporters;
  uint64_t epoch = UINT64_MAX;
  for (const RankReport& r : timeouts_) {
    reporters.insert(r.rank);
    epoch = std::min(epoch, r.report.epoch);
  }
  // Ranks whose own deadline is not over yet, because they have come further or not all the way in, but which wait too: one of
  // them may be nearer to the cause, and none of them is it.
  std::vector<RankReport> known = timeouts_;
  const TimePoint fresh = Clock::now() - std::chrono::milliseconds(waitingMs);
  for (const auto& [rank, waits] : waiting_)
    if (waits.epoch == epoch && reporters.count(rank) == 0 && waitingAt_[rank] >= fresh) known.push_back({rank, waits});
  const RankReport& chosen = known[chooseReport(known)];
  const int missing = chosen.report.missingRank;
  verdict_(mkErrorTimeout,
           format("%s; waited for %s; reported by %s; %zu of %d ranks reported a timeout", chosen.report.text.c_str(),
                  missing < 0 ? "an unknown rank" : line_->name(missing).c_str(), line_->name(chosen.rank).c_str(),
                  reporters.size(), line_->nranks()));
}

void HubFailure::stop() {
  stopped_ = true;
  timeouts_.clear();
}

void HubFailure::tick(TimePoint now) {
  if (stopped_) return;
  if (mismatch_.has_value())
    finishMismatch(now);
  else if (!timeouts_.empty() && now >= graceEnd_)
    finishTimeout();
}

TimePoint HubFailure::nextDeadline() const {
  if (stopped_) return TimePoint::max();
  if (mismatch_.has_value()) return mismatch_->deadline;
  return timeouts_.empty() ? TimePoint::max() : graceEnd_;
}

}  // namespace mk
