// An endpoint of the ibgda transport: what the table's calls do.  One thread at a time; there is no thread of its own.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "connection.h"
#include "device.h"

namespace mk::plugin::ibgda {

constexpr uint32_t kMaxBatch = 64;

// Where an endpoint can be reached: peer i connects to numbers[i], so that nothing needs to be asked for.
struct Address {
  uint32_t magic, version;
  uint64_t id;  // of the endpoint: keys belong to one
  PortAddress port;
  uint32_t count;
  uint32_t numbers[kMostPeers];
};
static_assert(sizeof(Address) <= MK_TRANSPORT_ADDRESS_BYTES);

class Endpoint {
 public:
  Endpoint(const RdmaPort& port, const Settings& settings);
  // The connections first: then nothing reads or writes memory any more.
  ~Endpoint() { connections_.clear(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const Address& address() const { return address_; }

  // Nobody has to be waited for: the timeouts are for other transports.
  void connect(int count, int self, const uint8_t* addresses, int timeoutMs);
  void* registerMemory(const mkTransportMemory_t& memory, uint8_t* key);
  void deregisterMemory(void* handle);
  void* importMemory(int peer, const uint8_t* key, int timeoutMs);
  void releaseMemory(void* remote);
  int post(int peer, const mkTransportWrite_t* writes, int count);
  // Returns how many events were filled in; the last error event's reason becomes the text of lastError.
  int poll(mkTransportEvent_t* events, int capacity);
  mkQueueDescriptor_t handOut(int peer);
  mkQueueMemory_t describe(void* local, void* remote) const;

 private:
  Connection& connectionTo(int peer) const;
  void check(int peer, const mkTransportWrite_t& write) const;
  void hearDevice();
  const RemoteMemory& remoteOf(int peer, const void* remote, const char* what) const;

  OpenDevice device_;
  VerbsRegistrar registrar_;
  Address address_ = {};
  int self_ = -1;
  bool connected_ = false;
  std::vector<std::unique_ptr<Connection>> connections_;  // by peer
  std::vector<uint64_t> ids_;                             // of the peers
  std::unordered_map<const void*, std::unique_ptr<LocalMemory>> registrations_;
  std::unordered_map<const void*, std::unique_ptr<RemoteMemory>> imports_;
  std::deque<mkTransportEvent_t> events_;  // not yet handed out
  std::string deviceReason_;
  uint32_t polls_ = 0;
};

}  // namespace mk::plugin::ibgda
