// How the endpoints of a communicator connect: of each pair the one with the lower index connects to the other, proving with
// the secret from the address that it belongs there.  Whoever else connects is dropped and logged, and holds nobody up.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "common/failure.h"
#include "peers.h"

namespace mk::plugin::efa {
namespace {

using namespace std::chrono_literals;

constexpr auto kHelloTime = 5s;       // a connection must have introduced itself by then
constexpr auto kAttemptTime = 3s;     // then the peer's next address is tried
constexpr size_t kStrangersMax = 64;  // connections that have not; beyond, the oldest is dropped

struct Stranger {
  Connection connection;
  Clock::time_point deadline;
};

// One attempt of ours to reach a peer.
struct Attempt {
  uint16_t host = 0;
  UniqueFd connecting;
  Clock::time_point deadline;
  uint16_t refusals = 0;  // in a row, by all its addresses: nobody listens any more
};

class Rendezvous {
 public:
  Rendezvous(int listener, const Address& own, int self, const Welcome& welcome, std::vector<Peer>& peers)
      : listener_(listener), own_(own), self_(self), welcome_(welcome), peers_(peers), attempts_(peers.size()) {}

  void run(Clock::time_point deadline) {
    for (;;) {
      for (Peer& peer : peers_)
        if (peer.index > self_ && !peer.connection.open()) reach(peer);
      acceptAll();
      hearStrangers();
      for (Peer& peer : peers_)
        if (!peer.self && peer.connection.open() && !peer.ready) hearReady(peer);
      if (std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.self || peer.ready; })) return;
      const auto now = Clock::now();
      if (now >= deadline) fail(mkErrorTimeout, "%s", missing().c_str());
      sleep(std::min<Clock::duration>(deadline - now, 50ms));
    }
  }

 private:
  std::string missing() const {
    std::string text = "no connection by the deadline";
    for (const Peer& peer : peers_)
      if (!peer.self && !peer.ready)
        text += "; " + peer.name() +
                (peer.connection.open() ? " is not ready"
                 : peer.index > self_   ? " accepts none"
                                        : " has not connected");
    return text;
  }

  Attempt& attemptOf(const Peer& peer) { return attempts_[static_cast<size_t>(peer.index)]; }

  void reach(Peer& peer) {
    Attempt& attempt = attemptOf(peer);
    if (!attempt.connecting) {
      attempt.connecting = beginConnect(peer.address.host[attempt.host], peer.address.port);
      attempt.deadline = Clock::now() + kAttemptTime;
      if (!attempt.connecting) return next(peer, errno);
    }
    const int state = connectState(attempt.connecting.get());
    if (state == EINPROGRESS && Clock::now() < attempt.deadline) return;
    if (state != 0) return next(peer, state);
    Message hello = makeMessage(MessageType::hello, static_cast<uint64_t>(self_), peers_.size());
    hello.secret = peer.address.secret;
    hello.sender = own_.id;
    attempt.deadline = Clock::now() + kHelloTime;
    peer.connection = Connection(std::move(attempt.connecting));
    peer.connection.send(hello);
  }

  // Tries the peer's next address.
  void next(Peer& peer, int error) {
    Attempt& attempt = attemptOf(peer);
    attempt.connecting.reset();
    attempt.refusals = error == ECONNREFUSED ? static_cast<uint16_t>(attempt.refusals + 1) : uint16_t{0};
    if (attempt.refusals >= peer.address.hosts)
      fail(mkErrorRemote, "%s does not listen any more: it has closed its endpoint or died", peer.name().c_str());
    attempt.host = static_cast<uint16_t>((attempt.host + 1) % peer.address.hosts);
  }

  // The one that connects is greeted first, and answers once it knows whom it has reached.
  void welcome(Peer& peer) {
    Message ready = makeMessage(MessageType::ready, welcome_.padAddress, welcome_.padKey, welcome_.window);
    ready.secret = peer.address.secret;
    peer.connection.send(ready);
  }

  void hearReady(Peer& peer) {
    Message ready = {};
    peer.connection.flush();
    const Connection::Received received = peer.connection.receive(&ready);
    if (received == Connection::Received::nothing && (peer.index < self_ || Clock::now() < attemptOf(peer).deadline))
      return;
    if (received == Connection::Received::message && ready.type == MessageType::ready && ready.secret == own_.secret) {
      peer.padAddress = ready.a;
      peer.padKey = ready.b;
      peer.allowed = ready.c;
      peer.ready = true;
      if (peer.index > self_) welcome(peer);
      return;
    }
    // Somebody else at that address, or an end: another attempt, by whose turn it is.
    peer.connection.close();
    if (peer.index > self_) next(peer, ECONNABORTED);
  }

  void acceptAll() {
    while (UniqueFd fd = acceptOne(listener_)) {
      if (strangers_.size() >= kStrangersMax + peers_.size()) {
        MK_PLUGIN_WARN("dropped a connection that has not introduced itself: too many");
        strangers_.pop_front();
      }
      strangers_.push_back({Connection(std::move(fd)), Clock::now() + kHelloTime});
    }
  }

  void hearStrangers() {
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
      Message hello = {};
      const Connection::Received received = stranger->connection.receive(&hello);
      if (received == Connection::Received::nothing && Clock::now() < stranger->deadline) {
        ++stranger;
        continue;
      }
      const std::string refusal = received == Connection::Received::message ? admit(*stranger, hello)
                                  : received == Connection::Received::ended ? "left without hello"
                                                                            : "sent no hello";
      if (!refusal.empty()) MK_PLUGIN_WARN("dropped a connection: %s", refusal.c_str());
      stranger = strangers_.erase(stranger);
    }
  }

  // "" or why this is nobody we know.
  std::string admit(Stranger& stranger, const Message& hello) {
    if (hello.type != MessageType::hello || hello.secret != own_.secret) return "wrong secret";
    if (hello.b != peers_.size() || hello.a >= static_cast<uint64_t>(self_))
      return format("it is number %llu of %llu, this endpoint is %d of %zu", static_cast<unsigned long long>(hello.a),
                    static_cast<unsigned long long>(hello.b), self_, peers_.size());
    Peer& peer = peers_[static_cast<size_t>(hello.a)];
    if (hello.sender != peer.address.id) return "it is not " + peer.name();
    if (peer.ready) return peer.name() + " is connected already";
    peer.connection = std::move(stranger.connection);  // in place of an attempt that it has given up
    welcome(peer);
    return "";
  }

  void sleep(Clock::duration most) {
    std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
    for (const Stranger& stranger : strangers_) waits.push_back({stranger.connection.fd(), POLLIN, 0});
    for (const Attempt& attempt : attempts_)
      if (attempt.connecting) waits.push_back({attempt.connecting.get(), POLLOUT, 0});
    for (const Peer& peer : peers_)
      if (peer.connection.open() && !peer.ready) waits.push_back({peer.connection.fd(), POLLIN, 0});
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(most).count();
    if (::poll(waits.data(), waits.size(), static_cast<int>(milliseconds)) < 0 && errno != EINTR)
      failErrno(errno, "waiting for peers");
  }

  const int listener_;
  const Address& own_;
  const int self_;
  const Welcome welcome_;
  std::vector<Peer>& peers_;
  std::vector<Attempt> attempts_;
  std::list<Stranger> strangers_;
};

}  // namespace

void rendezvous(int listener, const Address& own, int self, const Welcome& welcome, std::vector<Peer>& peers,
                Clock::time_point deadline) {
  Rendezvous(listener, own, self, welcome, peers).run(deadline);
}

}  // namespace mk::plugin::efa
