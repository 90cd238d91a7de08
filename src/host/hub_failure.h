// Turns the ranks' reports of a failure into one verdict: waits a little for the reports that follow from the same cause,
// asks for argument texts, and chooses.  Called by hub_session.cc, in the hub's thread.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/hub_checks.h"
#include "host/hub_collectives.h"

namespace mk {

class HubFailure {
 public:
  using Verdict = std::function<void(mkResult_t code, const std::string& text)>;
  HubFailure(RankLine* line, Verdict verdict) : line_(line), verdict_(std::move(verdict)) {}

  void report(int rank, FailureReport report);
  // A rank's answer to askArguments.
  void arguments(int rank, uint32_t hash, uint64_t epoch, const std::string& text);
  void rankGone(int rank);
  // There will be a verdict on differing arguments, within 2 s.
  bool mismatchPending() const { return mismatch_.has_value() && !stopped_; }
  // A collective call has begun: nobody in it may be what others wait for.  `elsewhere`: HubCollectives::elsewhere.
  using Elsewhere = std::function<std::string(uint64_t epoch)>;
  void compareCalls(const Elsewhere& elsewhere);
  // There is a verdict: later reports are ignored.
  void stop();
  void tick(TimePoint now);
  TimePoint nextDeadline() const;

 private:
  struct Side {
    int rank = -1;
    uint32_t hash = 0;
    std::optional<std::string> text;
  };
  struct Mismatch {
    FailureReport report;
    std::array<Side, 2> sides;
    TimePoint deadline;
  };
  void startMismatch(int rank, FailureReport report);
  void finishMismatch(TimePoint now);
  void finishTimeout();
  void compareRejected();

  RankLine* const line_;
  const Verdict verdict_;
  bool stopped_ = false;
  std::vector<RankReport> timeouts_;
  TimePoint firstTimeout_, graceEnd_ = TimePoint::max();
  std::optional<Mismatch> mismatch_;
  std::map<int, FailureReport> rejected_, waiting_;  // newest of each rank
  std::map<int, TimePoint> waitingAt_;
};

}  // namespace mk
