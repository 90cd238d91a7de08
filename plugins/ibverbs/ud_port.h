// The datagram service of the wire-up over an unreliable datagram queue pair of the endpoint's device.  Opened with the
// endpoint, since its number is part of the address; peers are added when their addresses are known.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/unique_fd.h"
#include "devices.h"
#include "wireup.h"

namespace mk::plugin::ibverbs {

struct UdAddress {
  uint32_t number, key;  // of the queue pair
};

class UdPort final : public Datagrams {
 public:
  // Receives from here on.  `device` outlives it.  Throws Failure.
  UdPort(const OpenDevice& device, const Settings& settings);
  ~UdPort() override;
  UdPort(const UdPort&) = delete;
  UdPort& operator=(const UdPort&) = delete;

  UdAddress address() const;
  // Before the first send; in the order of the peers.  Resolves the way there, which can fail.
  void addPeer(const PortAddress& port, const UdAddress& address);
  void addSelf() { peers_.emplace_back(); }

  bool send(int peer, const Hello& hello) override;
  bool receive(Hello* hello) override;
  void wait(int ms) override;
  void wake() override;

 private:
  struct Peer {
    RoutePtr route;
    UdAddress address = {};
  };
  void postReceive(uint32_t slot);
  void collect();

  const OpenDevice& device_;
  const Settings settings_;
  UniqueFd wake_;
  ChannelPtr channel_;
  QueuePtr queue_;
  std::vector<uint8_t> memory_;  // slots to receive, then slots to send
  MemoryPtr registration_;
  PairPtr pair_;
  uint32_t key_ = 0;
  std::vector<Peer> peers_;
  std::vector<uint32_t> freeSends_;
  std::deque<Hello> received_;
  bool broken_ = false;
};

}  // namespace mk::plugin::ibverbs
