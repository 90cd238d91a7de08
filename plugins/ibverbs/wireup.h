// How endpoints tell each other the numbers of their connections: small messages over an unreliable datagram service, sent
// again until the other end has said that it has them and is ready.  A thread of its own answers peers that are slower than
// this endpoint, which may be in no call by then.  Used by endpoint.cc; ud_port.cc is the service.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/token.h"
#include "settings.h"

namespace mk::plugin::ibverbs {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x6d6b4942;  // "mkIB"
constexpr uint32_t kWireVersion = 2;

struct ConnectionAddress {
  uint32_t number;    // of the queue pair
  uint32_t sequence;  // of its first packet
};

// What one endpoint tells one peer.
struct Hello {
  uint32_t magic, version;
  Token receiver;   // the secret of the one, which only its peers have
  Token sender;     // the id of the other
  uint32_t ready;   // the sender has the receiver's hello, and its connections take writes
  uint32_t wanted;  // the sender does not know yet that the receiver is ready
  uint64_t words;   // address of the receiver's words on the sender's board
  uint64_t ledger;  // address of the sender's list of registrations
  uint32_t boardKey;
  uint32_t connections;
  ConnectionAddress connection[kMaxConnections];
};

// Carries messages, or loses, repeats and reorders them.  One thread at a time, but for wake().
class Datagrams {
 public:
  virtual ~Datagrams() = default;
  // False: not now.
  virtual bool send(int peer, const Hello& hello) = 0;
  // False: nothing has come.
  virtual bool receive(Hello* hello) = 0;
  // Until something has come, wake() is called, or the time (-1: for ever) is over.
  virtual void wait(int ms) = 0;
  virtual void wake() = 0;
};

struct WireupPeer {
  Token id, secret;
  Hello hello;  // for this peer; the wire-up fills in what is the same for all
};

class Wireup {
 public:
  // Starts to tell.  own: this endpoint's id and secret; entry `self` is not a peer.
  Wireup(std::unique_ptr<Datagrams> datagrams, const Token& ownId, const Token& ownSecret, int self,
         std::vector<WireupPeer> peers);
  ~Wireup();
  Wireup(const Wireup&) = delete;
  Wireup& operator=(const Wireup&) = delete;

  // Waits for a hello that has not been returned yet; false at the deadline.
  bool next(Clock::time_point deadline, int* peer, Hello* hello);
  // Its connections take writes now.
  void markReady(int peer);
  // Until all peers are ready too; false at the deadline.
  bool waitAll(Clock::time_point deadline);
  // Whoever is missing, with why.
  std::string missing();

 private:
  struct State {
    bool heard = false, returned = false, ready = false;  // here
    bool peerReady = false;
    Hello theirs = {};
    Clock::time_point again = {};  // when to tell it again
    std::chrono::milliseconds pause{0};
    bool answer = false;
  };
  void loop();
  void take(const Hello& hello);
  Clock::time_point tell();

  const std::unique_ptr<Datagrams> datagrams_;
  const Token ownId_, ownSecret_;
  const int self_;
  const std::vector<WireupPeer> peers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mk::plugin::ibverbs
