// One peer of an endpoint: its connection, what it has told of its registrations and of its end, and what is under way to
// it.  Used by endpoint.cc; rendezvous.cc sets it up.
#pragma once

#include <rdma/fabric.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "control.h"
#include "mkernel.h"

namespace mk::plugin::efa {

using Clock = std::chrono::steady_clock;

struct Peer {
  enum class State { connected, closed, dead };

  int index = 0;
  bool self = false;  // the endpoint's own place in the list
  Address address = {};
  fi_addr_t fabricAddress = FI_ADDR_NOTAVAIL;
  Connection connection;
  bool ready = false;
  uint64_t padAddress = 0, padKey = 0;  // where writes of 0 bytes go
  State state = State::connected;
  std::string reason;  // of its end
  bool saidFarewell = false, owedFarewell = false;

  // Registrations that it has.  Sequences only grow, so one up to `newest` that is missing has been withdrawn.
  std::set<uint64_t> registrations;
  uint64_t newest = 0;

  // Writes to it, by number in the endpoint's pool.
  std::deque<uint32_t> waiting;  // accepted, not yet posted
  uint32_t outstanding = 0;      // accepted, end not yet told to the caller
  uint32_t posted = 0;           // with the provider
  uint64_t sent = 0;             // posted since the beginning
  uint64_t allowed = 0;          // that may be, by what the peer has room for
  // Arrivals from it.
  uint64_t taken = 0;     // from the completion queue, since the beginning
  uint64_t consumed = 0;  // of those, handed to the caller
  uint64_t granted = 0;   // last told to the peer

  bool broken = false;  // an error has been raised: nothing is posted to it any more
  std::string brokenReason;
  mkResult_t brokenStatus = mkSuccess;
  Clock::time_point abandonAt = {};  // by then the provider must have ended what it had

  // "peer 2 (10.0.0.7)"
  std::string name() const;
  // Takes in what the peer has said; never blocks.  Sets state and reason at its end.
  void readMessages();

 private:
  void end(State how, const std::string& why);
};

// What each endpoint tells its peers of itself when they connect.
struct Welcome {
  uint64_t padAddress, padKey, window;
};

// Connects to every peer and waits until every peer is ready.  Throws Failure that names those missing at the deadline.
// `peers` has addresses.
void rendezvous(int listener, const Address& own, int self, const Welcome& welcome, std::vector<Peer>& peers,
                Clock::time_point deadline);

}  // namespace mk::plugin::efa
