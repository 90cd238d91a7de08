// An endpoint of the loopback transport: what the table's calls do.  One thread at a time; everything happens in its calls,
// there is no thread of its own.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cuda_carrier.h"
#include "nic.h"
#include "peers.h"
#include "settings.h"

namespace mk::plugin::loopback {

constexpr uint32_t kMaxBatch = 64;
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;  // of one write

class Endpoint final : private Carrier, private cuda::Sink {
 public:
  // Listens from here on.
  explicit Endpoint(const Settings& settings);
  // After it nothing of this endpoint reads or writes memory any more.
  ~Endpoint() override;
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
  struct PeerState {
    uint32_t outstanding = 0;
    bool errorRaised = false;
    bool ringSpoilt = false;
    std::string errorReason;
  };

  Outcome copy(const Flight& flight, uint64_t from, uint64_t to, bool again) override;
  Outcome notify(const Flight& flight) override;
  void finished(const Flight& flight, mkResult_t status, const std::string& reason) override;

  Outcome arrive(int index, uint32_t immediate) override;
  void sent(int peer, uint64_t cookie, mkResult_t status) override;
  void failed(int peer, const std::string& reason) override;

  Peer& peerAt(int peer);
  PeerState& stateAt(int peer) { return states_[static_cast<size_t>(peer)]; }
  Flight prepare(int peer, const mkTransportWrite_t& write);
  void checkPayload(int peer, const mkTransportWrite_t& write, Flight& flight);
  void hearPeers();
  void sendAll(const Message& message, int fd);
  std::shared_ptr<Announcement> awaitAnnouncement(Peer& peer, const Key& key, int timeoutMs);
  cuda::Lanes& gpu();
  void advance(Clock::time_point now);
  void progress(Clock::time_point now);
  void raiseError(int peer, mkResult_t status, const std::string& reason);
  int takeArrivals(mkTransportEvent_t* events, int capacity);
  int takeCompletions(mkTransportEvent_t* events, int capacity);

  const Settings settings_;
  Address address_ = {};
  UniqueFd listener_;
  std::shared_ptr<Presence> presence_;
  bool connected_ = false, connectTried_ = false;

  std::vector<Peer> peers_;
  std::vector<PeerState> states_;
  std::unique_ptr<Nic> nic_;
  std::unique_ptr<cuda::Lanes> gpu_;  // null: no GPU memory so far
  std::unordered_map<void*, std::shared_ptr<LocalRegion>> registrations_;
  std::unordered_map<void*, std::shared_ptr<RemoteRegion>> imports_;
  uint64_t sequence_ = 0;                  // of the newest registration
  std::deque<mkTransportEvent_t> events_;  // completions and errors not yet handed out
  Clock::time_point heardAt_ = {};
  Clock::time_point advancedAt_ = {};
  size_t arrivalTurn_ = 0;  // peer whose ring is read first next time
  bool arrivalsFirst_ = false;
};

}  // namespace mk::plugin::loopback
