// An endpoint of the ibverbs transport: what the table's calls do.  One thread at a time; the wire-up has a thread of its own
// and shares nothing with what is here.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "connection.h"
#include "memory.h"
#include "mkernel.h"
#include "ud_port.h"

namespace mk::plugin::ibverbs {

constexpr uint32_t kMaxBatch = 64;
// Places in a send queue: two for each write, and some for the endpoint's own small ones.
constexpr uint32_t kOwnRequests = 4;
constexpr uint32_t requestsFor(uint32_t outstanding) { return 2 * outstanding + kOwnRequests; }

// Where an endpoint can be reached, as it travels.
struct Address {
  uint32_t magic, version;
  Token id, secret;
  PortAddress port;
  uint32_t connections;  // to one peer
  uint32_t reserved;
  UdAddress datagrams;
  int64_t pid;
  char host[64];
  char device[64];
};
static_assert(sizeof(Address) <= MK_TRANSPORT_ADDRESS_BYTES);

class Endpoint {
 public:
  // outstanding: writes to one peer.
  Endpoint(const Device& device, const Settings& settings, uint32_t outstanding);
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
  struct Peer {
    bool self = false;
    Address address = {};
    RdmaPath path = {};
    uint32_t agreed = 0;  // connections
    Hello hello = {};     // what it has told
    std::vector<Connection> connections;
    uint32_t outstanding = 0;     // writes accepted, completion not handed out
    uint32_t writesUnderWay = 0;  // in the send queues
    uint32_t ownUnderWay = 0;     // the endpoint's own small requests, up to kOwnRequests
    uint64_t lookupsAsked = 0, lookupsDone = 0;
    Clock::time_point heardAt = {};  // last sign of life
    bool errorRaised = false;
    // Its connections have failed, for this reason unless a better one comes until doomAt.  Nothing is posted any more.
    std::string doom;
    mkResult_t doomStatus = mkSuccess;
    Clock::time_point doomAt = {};
    std::string reason;  // of its end; "": there has been none

    bool connected() const { return !self && reason.empty(); }
    bool idle() const { return writesUnderWay == 0 && ownUnderWay == 0; }
    std::string name(size_t index) const;
  };

  Peer& peerAt(int index);
  size_t indexOf(const Peer& peer) const { return static_cast<size_t>(&peer - peers_.data()); }
  std::string nameOf(const Peer& peer) const { return peer.name(indexOf(peer)); }
  void readAddresses(int count, int self, const uint8_t* addresses);
  void makeConnections(int self);
  WirePlan plan(int index, const mkTransportWrite_t& write, LocalMemory** source);
  void checkPayload(int index, const mkTransportWrite_t& write, WirePlan& plan, LocalMemory** source);
  // Small requests of the endpoint's own, on the peer's first connection.
  bool postOwn(Peer& peer, Posted::Kind kind, ibv_send_wr& request);
  bool postWord(Peer& peer, Posted::Kind kind, uint64_t offset, uint64_t value);

  void progress();
  void collect(ibv_cq* queue);
  void completed(const ibv_wc& completion);
  void settle(Peer& peer, const Posted& posted, mkResult_t status);
  std::string explain(const Peer& peer, const ibv_wc& completion) const;
  void look(Clock::time_point now);  // at what does not come as a completion
  void hearDevice();
  void checkPort();
  // quiet: no error until somebody posts to the peer.
  void endOf(Peer& peer, mkResult_t status, const std::string& reason, bool quiet);
  void endOfClosed(Peer& peer);
  void failed(Peer& peer, mkResult_t status, const std::string& reason);
  void raiseError(Peer& peer, mkResult_t status);
  void deviceFailed(const std::string& reason);
  // Makes progress until the condition holds; false at the deadline.
  bool progressUntil(Clock::time_point deadline, const std::function<bool()>& condition);
  void sayFarewell();

  const Settings settings_;
  const uint32_t outstanding_;
  OpenDevice device_;
  Address address_ = {};
  std::unique_ptr<UdPort> datagrams_;  // until connect
  // Destroyed in the opposite order: connections before what they use.
  VerbsRegistrar registrar_;
  std::vector<QueuePtr> queues_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Wireup> wireup_;
  bool connected_ = false, connectTried_ = false;

  std::unordered_map<void*, std::unique_ptr<LocalMemory>> registrations_;
  std::unordered_map<void*, std::unique_ptr<RemoteMemory>> imports_;
  std::vector<Peer> peers_;
  std::vector<Chain> chains_;              // by connection, for post
  std::deque<mkTransportEvent_t> events_;  // not yet handed out
  std::string deviceReason_;               // of the device's end; "": it works
  Clock::time_point lookedAt_ = {};
  uint64_t completions_ = 0;  // seen so far
};

}  // namespace mk::plugin::ibverbs
