// The hub's state of one communicator: who has joined, collectives, the verdict, who has left.  It decides; the hub (hub.cc)
// moves the bytes.  Everything runs in the hub's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host/hub_collectives.h"
#include "host/hub_failure.h"
#include "host/wire.h"

namespace mk {

// How a session reaches connections, which are numbered and never reuse a number.
class ConnectionLine {
 public:
  virtual ~ConnectionLine() = default;
  virtual void send(uint64_t connection, const FrameBytes& frame) = 0;
  // Once what was sent is out.
  virtual void close(uint64_t connection) = 0;
  // "; 3 connections could not be accepted: ..." or "": added to the error about ranks that have not come.
  virtual std::string acceptTrouble() const = 0;
};

class HubSession : private RankLine {
 public:
  // deadline: ends the session if no rank has come by then.
  HubSession(ConnectionLine* line, std::string hubHost, int64_t hubPid, TimePoint deadline);

  // A connection that has proven to know the secret.
  void join(uint64_t connection, Hello hello);
  // From a connection that has joined; false if it broke the protocol.
  bool message(uint64_t connection, const Frame& frame);
  // The connection has ended.
  void lost(uint64_t connection, const std::string& how);
  void tick(TimePoint now);
  TimePoint nextDeadline() const;
  // Nothing is left to be done once the connections have taken what was sent.
  bool over() const { return phase_ == Phase::over; }

 private:
  enum class Phase { joining, failed, running, over };
  enum class Presence { absent, joined, leaving, gone };
  struct Rank {
    Presence presence = Presence::absent;
    uint64_t connection = 0;
    Hello hello;
    bool saidGoodbye = false, toldFarewell = false;
  };

  int nranks() const override { return static_cast<int>(ranks_.size()); }
  bool reachable(int rank) const override;
  std::string name(int rank) const override { return rankName(ranks_[static_cast<size_t>(rank)].hello); }
  void send(int rank, const FrameBytes& frame) override;

  std::string hubName() const;
  std::optional<std::string> misfit(const Hello& hello, mkResult_t* code) const;
  void welcomeAll();
  void failJoin(mkResult_t code, const std::string& text);
  void tellJoinError(uint64_t connection, int rank);
  void noteTold(int rank);
  void joinDeadline();
  std::vector<const Hello*> present() const;
  void broadcast(const FrameBytes& frame, int except);
  void verdict(mkResult_t code, const std::string& text, int except);
  void compareCalls();
  void setGone(int rank);
  void sayFarewells();

  ConnectionLine* const line_;
  const std::string hubHost_;
  const int64_t hubPid_;
  Phase phase_ = Phase::joining;
  TimePoint deadline_;  // of joining; then of waiting for those that must still be told of its failure
  uint32_t shortestTimeoutMs_ = 0;
  std::vector<Rank> ranks_;  // empty until the first hello
  std::map<uint64_t, int> rankOf_;
  size_t joined_ = 0;
  std::optional<Error> joinError_;
  std::set<int> toldJoinError_;
  bool hasVerdict_ = false;
  std::unique_ptr<HubCollectives> collectives_;
  std::unique_ptr<HubFailure> failure_;
};

}  // namespace mk
