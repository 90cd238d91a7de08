// The hub's side of allgather and agree: collects the ranks' contributions, compares where they are, and answers all with
// the contributions or with one error.  Called by hub_session.cc, in the hub's thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/wire.h"

namespace mk {

// What the parts of the hub need of the ranks.
class RankLine {
 public:
  virtual ~RankLine() = default;
  virtual int nranks() const = 0;
  // Neither died nor said goodbye.
  virtual bool reachable(int rank) const = 0;
  virtual std::string name(int rank) const = 0;
  // Dropped if the rank is not reachable.
  virtual void send(int rank, const FrameBytes& frame) = 0;
};

class HubCollectives {
 public:
  explicit HubCollectives(RankLine* line) : line_(line), next_(static_cast<size_t>(line->nranks()), 0) {}

  // False if the rank broke the protocol.
  bool contribute(int rank, Contribution contribution);
  // A rank that is in a collective call with others still missing and has launched no operation as new as `epoch`: its name
  // and the call's; "" if there is none.
  std::string elsewhere(uint64_t epoch) const;
  // No collective can succeed any more.
  void rankLeft(int rank);
  // There is a verdict: the ranks know from that, and nothing is answered any more.
  void stop();
  void tick(TimePoint now);
  TimePoint nextDeadline() const;

 private:
  struct Failure {
    mkResult_t code = mkSuccess;
    std::string text;
  };
  struct Open {
    uint32_t kind = 0;
    std::string what;
    int first = 0;
    TimePoint deadline = TimePoint::max();  // the earliest of the ranks'
    uint32_t timeoutMs = 0;                 // of the rank whose it is,
    int joining = -1;                       // and that rank if it is being initialised
    std::map<int, uint64_t> arrived;        // with the epoch of their newest operation
    std::vector<FrameBytes> parts;
    std::map<int, Failure> failures;  // of an agree, by rank
    std::optional<Failure> failed;    // all have been told this; waiting for the ranks that have not come yet
  };
  using Entry = std::map<uint64_t, Open>::iterator;
  void answer(Entry entry);
  void failWith(Entry entry, Failure failure);
  Failure agreeFailure(const Open& open) const;

  RankLine* const line_;
  std::vector<uint64_t> next_;  // sequence of each rank's next collective
  std::map<uint64_t, Open> open_;
  std::string left_;
  bool stopped_ = false;
};

}  // namespace mk
