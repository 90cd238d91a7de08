// See peers.h.
#include "peers.h"

#include <utility>

#include "common/failure.h"

namespace mk::plugin::loopback {

std::string Peer::name() const { return format("peer %d (process %lld)", index, static_cast<long long>(address.pid)); }

void Peer::end(State how, const std::string& text) {
  state = how;
  reason = name() + " " + text;
  in.close();
  out.close();
}

void Peer::readMessages() {
  while (state == State::connected) {
    Message message = {};
    UniqueFd fd;
    switch (in.receive(&message, &fd)) {
      case Connection::Received::nothing:
        return;
      case Connection::Received::ended:
        // An endpoint marks the rings it reads before it closes the connection.
        if (outbox->closed()) return end(State::closed, "has closed its endpoint");
        return end(State::dead, "has died: its connection ended without goodbye");
      case Connection::Received::malformed:
        return end(State::dead, "sent a malformed message");
      case Connection::Received::message:
        break;
    }
    if (message.type == MessageType::region && message.sequence > newest) {
      auto announcement = std::make_shared<Announcement>();
      announcement->fd = std::move(fd);
      announcement->bytes = message.bytes;
      announcement->fdOffset = message.fdOffset;
      announcement->onGpu = message.kind == MK_MEMORY_KIND_CUDA;
      announcements[message.sequence] = std::move(announcement);
      newest = message.sequence;
    } else if (message.type == MessageType::withdraw) {
      const auto found = announcements.find(message.sequence);
      if (found == announcements.end()) continue;
      found->second->withdrawn = true;  // for imports that are left
      found->second->fd.reset();
      announcements.erase(found);
    } else {
      return end(State::dead, "sent an unexpected message");
    }
  }
}

}  // namespace mk::plugin::loopback
