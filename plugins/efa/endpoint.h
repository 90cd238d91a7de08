// An endpoint of the efa transport: what the table's calls do.  endpoint.cc opens, connects, registers and closes; traffic.cc
// posts, makes progress and tells events.  The caller's one thread and the keeper, a thread of the endpoint's own, share it
// under one mutex: the keeper makes progress whenever the caller has not for a while, so that peers are served, and the
// completion queue is emptied, however long the caller is away.
#pragma once

#include <poll.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "peers.h"
#include "port.h"

namespace mk::plugin::efa {

constexpr uint32_t kMaxBatch = 64;

struct LocalRegion {
  std::byte* base = nullptr;
  uint64_t bytes = 0, sequence = 0;
  Registration registration;
  uint32_t inFlight = 0;  // writes from it that the provider has
};

struct RemoteRegion {
  int peer;
  uint64_t bytes, base, key;
};

// What registerMemory hands out.
struct Key {
  uint32_t magic, reserved;
  Token endpoint;
  uint64_t sequence;  // of the registration, among the endpoint's
  uint64_t bytes, base, key;
};
static_assert(sizeof(Key) <= MK_TRANSPORT_KEY_BYTES);

class Endpoint {
 public:
  Endpoint(const Provider& provider, const Device& device);
  // After it nothing of this endpoint reads or writes memory any more.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const Address& address() const { return address_; }

  void connect(int count, int self, const uint8_t* addresses, int timeoutMs);
  void* registerMemory(const mkTransportMemory_t& memory, uint8_t* key);
  void deregisterMemory(void* handle);
  void* importMemory(int index, const uint8_t* keyBytes, int timeoutMs);
  void releaseMemory(void* remote);
  int post(int index, const mkTransportWrite_t* writes, int count);
  // Returns how many events were filled in; the last error event's reason becomes the text of lastError.
  int poll(mkTransportEvent_t* events, int capacity);

 private:
  struct Flight {
    enum class State { free, waiting, posted, abandoned };
    State state = State::free;
    mkTransportWrite_t write = {};
    int peer = -1;
    std::shared_ptr<LocalRegion> source;  // null: 0 bytes
    uint64_t remoteAddress = 0, remoteKey = 0;
  };

  // endpoint.cc
  void takeAddresses(int count, int self, const uint8_t* addresses);
  Peer& peerAt(int peer);
  void keep();
  void sendAll(const Message& message);
  void leave();
  bool settled() const;

  // traffic.cc
  Flight prepare(int index, const mkTransportWrite_t& write) const;
  bool progress(Clock::time_point now);
  void hearPeers(Clock::time_point now);
  void handle(const Completion& completion);
  void arrived(const Completion& completion);
  uint32_t flightOf(const void* context) const;
  bool pump(Peer& peer);
  void finish(uint32_t number, mkResult_t status, Flight::State next);
  void failWaiting(Peer& peer);
  void dropWaiting(const LocalRegion& source);
  void abandon(Peer& peer);
  void breakPeer(Peer& peer, mkResult_t status, const std::string& reason);
  void failDevice(const std::string& reason);
  void grant(Peer& peer);

  const Provider& provider_;
  const std::unique_ptr<Port> port_;
  Address address_ = {};
  UniqueFd listener_;
  bool connected_ = false, connectTried_ = false;
  int self_ = -1;

  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::vector<int> peerOfSource_;  // by the provider's address
  uint64_t window_ = 0;            // arrivals of one peer that the completion queue has room for
  uint32_t postLimit_ = 0;         // writes with the provider, to all peers
  uint32_t posted_ = 0;
  std::vector<Flight> flights_;
  std::vector<fi_context2> contexts_;  // of the flights; the provider's while they are posted
  std::vector<uint32_t> freeFlights_;

  alignas(
      16) std::byte pad_[16] = {};  // writes of 0 bytes carry 8, from the first half here into the second half there
  Registration padRegistration_;
  std::unordered_map<void*, std::shared_ptr<LocalRegion>> registrations_;
  std::unordered_map<void*, std::unique_ptr<RemoteRegion>> imports_;
  uint64_t sequence_ = 0;  // of the newest registration

  std::deque<mkTransportEvent_t> events_;  // not yet handed out
  std::vector<Completion> completions_;    // of one round
  bool dead_ = false;
  std::string deadReason_;
  Clock::time_point heardAt_ = {}, servedAt_ = {};
  std::vector<pollfd> connections_;  // of the peers

  std::condition_variable wake_;
  bool stopKeeper_ = false;
  std::thread keeper_;
};

}  // namespace mk::plugin::efa
