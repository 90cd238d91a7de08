// How the endpoints of a communicator connect: each one to the listening socket of every other, proving with the secret from
// the address that it belongs there.  Whoever else connects is dropped and logged, and holds nobody up.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "common/failure.h"
#include "peers.h"

namespace mk::plugin::loopback {
namespace {

using namespace std::chrono_literals;

constexpr auto kHelloTime = 2s;       // a connection must have introduced itself by then
constexpr size_t kStrangersMax = 64;  // connections that have not; beyond, the oldest is dropped

struct Stranger {
  Connection connection;
  pid_t pid = 0;
  Clock::time_point deadline;
};

class Rendezvous {
 public:
  Rendezvous(int listener, const Address& own, int self, std::vector<Peer>& peers)
      : listener_(listener), own_(own), self_(self), peers_(peers) {}

  void run(Clock::time_point deadline) {
    for (;;) {
      bool waitingToConnect = false;
      for (Peer& peer : peers_)
        if (!peer.self && !peer.out.open()) waitingToConnect |= !reach(peer);
      acceptAll();
      hearStrangers();
      if (!waitingToConnect && complete()) return;
      for (const Peer& peer : peers_)
        if (!peer.self && peer.out.open() && !peer.in.open()) requireAlive(peer);
      const auto now = Clock::now();
      if (now >= deadline) fail(mkErrorTimeout, "%s", missing().c_str());
      sleep(std::min<Clock::duration>(deadline - now, waitingToConnect ? 1ms : 50ms));
    }
  }

 private:
  bool complete() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.self || peer.in.open(); });
  }

  std::string missing() const {
    std::string text = "no connection by the deadline";
    for (const Peer& peer : peers_) {
      if (!peer.self && !peer.out.open()) text += "; " + peer.name() + " accepts none";
      if (!peer.self && !peer.in.open()) text += "; " + peer.name() + " has not connected";
    }
    return text;
  }

  // Connects and says hello; false: try again soon.
  bool reach(Peer& peer) {
    UniqueFd fd;
    const int error = connectTo(peer.address.name, &fd);
    if (error == EAGAIN) return false;
    if (error == ECONNREFUSED)
      fail(mkErrorRemote, "%s does not listen any more: it has closed its endpoint or died", peer.name().c_str());
    if (error != 0) failErrno(error, "connecting to " + peer.name());
    pid_t pid = 0;
    // Descriptors of memory will go this way, so the other end must not be somebody who took a dead peer's name.
    if (!sameUser(fd.get(), &pid)) fail(mkErrorTransport, "%s runs as another user", peer.name().c_str());
    Message hello = makeMessage(MessageType::hello);
    hello.secret = peer.address.secret;
    hello.sender = own_.id;
    hello.index = self_;
    hello.count = static_cast<int32_t>(peers_.size());
    hello.slots = peer.inbox->slots();
    peer.out = Connection(std::move(fd));
    peer.out.send(hello, peer.inbox->fd());
    return true;
  }

  // Of a peer that has not connected yet: it must still be there to do so.
  static void requireAlive(const Peer& peer) {
    char byte = 0;
    const ssize_t got = recv(peer.out.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
      fail(mkErrorRemote, "%s has closed its endpoint or died", peer.name().c_str());
  }

  void acceptAll() {
    for (;;) {
      UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        failErrno(errno, "accepting a peer's connection");
      }
      Stranger stranger;
      if (!sameUser(fd.get(), &stranger.pid)) {
        MK_PLUGIN_WARN("dropped a connection from process %d of another user", stranger.pid);
        continue;
      }
      stranger.connection = Connection(std::move(fd));
      stranger.deadline = Clock::now() + kHelloTime;
      if (strangers_.size() >= kStrangersMax + peers_.size()) {
        drop(strangers_.front(), "too many connections that say nothing");
        strangers_.pop_front();
      }
      strangers_.push_back(std::move(stranger));
    }
  }

  static void drop(const Stranger& stranger, const std::string& why) {
    MK_PLUGIN_WARN("dropped a connection from process %d: %s", stranger.pid, why.c_str());
  }

  void hearStrangers() {
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
      Message message = {};
      UniqueFd fd;
      const auto received = stranger->connection.receive(&message, &fd);
      if (received == Connection::Received::nothing && Clock::now() < stranger->deadline) {
        ++stranger;
        continue;
      }
      if (received == Connection::Received::message) {
        const std::string why = admit(*stranger, message, fd);
        if (!why.empty()) drop(*stranger, why);
      } else if (received == Connection::Received::nothing) {
        drop(*stranger, "said nothing");
      } else {
        drop(*stranger, received == Connection::Received::ended ? "left without hello" : "sent no hello");
      }
      stranger = strangers_.erase(stranger);
    }
  }

  // "" or why this is nobody we know.
  std::string admit(Stranger& stranger, const Message& hello, const UniqueFd& fd) {
    if (hello.type != MessageType::hello || hello.secret != own_.secret) return "wrong secret";
    if (hello.count != static_cast<int32_t>(peers_.size()) || hello.index < 0 || hello.index >= hello.count ||
        hello.index == self_)
      return format("it is number %d of %d, this endpoint is %d of %zu", hello.index, hello.count, self_,
                    peers_.size());
    Peer& peer = peers_[static_cast<size_t>(hello.index)];
    if (hello.sender != peer.address.id) return format("it is not %s", peer.name().c_str());
    if (peer.in.open()) return format("%s is connected already", peer.name().c_str());
    if (!fd) return format("%s's arrival ring found no free descriptor here", peer.name().c_str());
    peer.presence = findPresence(peer.address.id, peer.address.pid);
    if (peer.presence != nullptr) peer.outbox = peer.presence->mailbox(self_);
    if (peer.outbox == nullptr) peer.outbox = Mailbox::open(fd, hello.slots);
    peer.in = std::move(stranger.connection);
    return "";
  }

  void sleep(Clock::duration most) {
    std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
    for (const Stranger& stranger : strangers_) waits.push_back({stranger.connection.fd(), POLLIN, 0});
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(most).count();
    if (::poll(waits.data(), waits.size(), static_cast<int>(milliseconds)) < 0 && errno != EINTR)
      failErrno(errno, "waiting for peers");
  }

  const int listener_;
  const Address& own_;
  const int self_;
  std::vector<Peer>& peers_;
  std::list<Stranger> strangers_;
};

}  // namespace

void rendezvous(int listener, const Address& own, int self, std::vector<Peer>& peers, Clock::time_point deadline) {
  Rendezvous(listener, own, self, peers).run(deadline);
}

}  // namespace mk::plugin::loopback
