// One peer of an endpoint: the two connections, the arrival rings, and what the peer has told of its registrations and of
// its end.  Used by endpoint.cc; rendezvous.cc sets it up.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mailbox.h"
#include "memory.h"
#include "presence.h"
#include "socket.h"

namespace mk::plugin::loopback {

using Clock = std::chrono::steady_clock;

struct Peer {
  enum class State { connected, closed, dead };

  int index = 0;
  bool self = false;  // the endpoint's own place in the list
  Address address = {};
  Connection out, in;
  std::shared_ptr<Mailbox> inbox;      // the peer writes, the endpoint reads
  std::shared_ptr<Mailbox> outbox;     // the other way round
  std::shared_ptr<Presence> presence;  // null: another process
  State state = State::connected;
  std::string reason;  // of its end

  // Registrations by sequence; sequences only grow, so one up to `newest` that is missing has been withdrawn.
  std::map<uint64_t, std::shared_ptr<Announcement>> announcements;
  uint64_t newest = 0;

  // "peer 2 (process 1234)"
  std::string name() const;
  // Takes in what the peer has said; never blocks.  Sets state and reason at its end.
  void readMessages();

 private:
  void end(State how, const std::string& text);
};

// Connects to every peer and waits for every peer's connection.  Throws Failure that names the peers missing at the deadline.
// `peers` has addresses, and rings to read.
void rendezvous(int listener, const Address& own, int self, std::vector<Peer>& peers, Clock::time_point deadline);

}  // namespace mk::plugin::loopback
