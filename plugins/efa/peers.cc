// See peers.h.
#include "peers.h"

#include <algorithm>

#include "common/failure.h"

namespace mk::plugin::efa {

std::string Peer::name() const { return format("peer %d (%s)", index, text(address.host[0]).c_str()); }

void Peer::end(State how, const std::string& why) {
  // A peer that has said goodbye may end its connection.
  if (state == State::connected) {
    state = how;
    reason = name() + " " + why;
  }
  if (how == State::dead) connection.close();
}

void Peer::readMessages() {
  Message message = {};
  while (connection.open()) {
    switch (connection.receive(&message)) {
      case Connection::Received::nothing:
        return;
      case Connection::Received::ended:
        return end(State::dead, "has died: its connection has ended without a goodbye");
      case Connection::Received::malformed:
        return end(State::dead, "has sent a message that makes no sense");
      case Connection::Received::message:
        break;
    }
    switch (message.type) {
      case MessageType::registered:
        registrations.insert(message.a);
        newest = std::max(newest, message.a);
        break;
      case MessageType::withdrawn:
        registrations.erase(message.a);
        break;
      case MessageType::credit:
        allowed = std::max(allowed, message.a);
        break;
      case MessageType::goodbye:
        end(State::closed, "has closed its endpoint");
        owedFarewell = true;
        break;
      case MessageType::farewell:
        saidFarewell = true;
        break;
      default:
        return end(State::dead, "has sent a message that makes no sense");
    }
  }
}

}  // namespace mk::plugin::efa
