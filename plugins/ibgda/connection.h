// One reliable connection of an mlx5 card, its queues laid open: entries, doorbell record and doorbell are written here, or by
// whoever the send queue is handed out to, and completions are read here in either case.  Owned by the endpoint.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/verbs_memory.h"
#include "device.h"
#include "mkernel/queue.h"

namespace mk::plugin::ibgda {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;  // of one write: what every such card takes
constexpr uint32_t kEntriesPerWrite = 2;           // payload and flag

// How entries name memory.
struct LocalMemory {
  RegistrationPtr region;
  char* address = nullptr;
  uint64_t bytes = 0;
};
struct RemoteMemory {
  int peer;
  uint32_t key;
  uint64_t address, bytes;
};

class Connection {
 public:
  Connection(const OpenDevice& device, const Settings& settings);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uint32_t number() const { return pair_->qp_num; }
  uint32_t entryCount() const { return entryCount_; }
  void connect(const OpenDevice& device, const PortAddress& peer, const RdmaPath& path, uint32_t peerNumber,
               const std::string& peerName);

  // How many writes it takes: checked ones, of which destinations are RemoteMemory of this peer.
  int post(int peer, const mkTransportWrite_t* writes, int count, std::deque<mkTransportEvent_t>& events);
  // The caller has been told of the end of one of them.
  void told() { --outstanding_; }
  // Reads completions.
  void poll(int peer, std::deque<mkTransportEvent_t>& events);
  // All that is under way fails, and whatever is posted from now on.  alone: the device works on, so this is an error of its own.
  void breakOff(int peer, const std::string& reason, bool alone, std::deque<mkTransportEvent_t>& events);
  const std::string& reason() const { return reason_; }

  bool handedOut() const { return handedOut_; }
  mkQueueDescriptor_t handOut();

 private:
  char* block(uint64_t index) const { return entries_ + (index & (entryCount_ - 1)) * MLX5_SEND_WQE_BB; }
  void put(uint32_t opcode, uint8_t flags, uint64_t address, uint32_t key, const void* source, uint32_t sourceKey,
           uint64_t bytes);
  void ring();
  bool consume(int peer, std::deque<mkTransportEvent_t>& events);

  const Settings settings_;
  QueuePtr completions_;  // outlives the pair
  PairPtr pair_;
  char* entries_ = nullptr;
  uint32_t entryCount_ = 0;
  __be32* records_ = nullptr;
  void* doorbell_ = nullptr;
  const char* cqes_ = nullptr;
  uint32_t cqeCount_ = 0, cqeStride_ = 0;
  __be32* cqRecord_ = nullptr;

  uint64_t posted_ = 0, retired_ = 0;  // entries
  uint64_t lastControl_ = 0;           // beginning of the newest
  uint64_t consumed_ = 0;              // completions read
  std::deque<uint64_t> cookies_;       // of the writes under way
  const uint32_t most_;                // may be outstanding
  uint32_t outstanding_ = 0;           // writes of whose end the caller has not been told
  bool handedOut_ = false, broken_ = false;
  uint32_t newlyRetired_ = 0;  // commands of this poll
  std::string reason_;
};

}  // namespace mk::plugin::ibgda
