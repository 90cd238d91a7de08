// The arguments of an endpoint's calls, as every plugin checks them.  All throw Failure, which names the argument, its value and what
// would be legal.
#pragma once

#include <cstdint>
#include <vector>

#include "common/failure.h"
#include "mkernel/transport.h"

namespace mk::plugin {

// tried: connect was called before.
void checkConnect(bool tried, int count, int self, const uint8_t* addresses, int timeoutMs);
void checkConnected(bool connected);
// index: of `count` peers, whichever they are.
void checkPeer(bool connected, size_t count, int index);
void checkNotSelf(bool self, int index);
// Of a list in which one, the endpoint itself, is marked with `self`.
template <typename Peer>
Peer& peerOf(bool connected, std::vector<Peer>& peers, int index) {
  checkPeer(connected, peers.size(), index);
  Peer& found = peers[static_cast<size_t>(index)];
  checkNotSelf(found.self, index);
  return found;
}
void checkMemory(bool connected, const mkTransportMemory_t& memory);
void checkBatch(const mkTransportWrite_t* writes, int count);
// Of a write: its size, its source in a registration of `size` bytes at `base`, its destination in an import of `room` bytes, its
// flag in an import of `room` bytes at `base`.
void checkSize(const mkTransportWrite_t& write, uint64_t most);
void checkSource(const mkTransportWrite_t& write, const void* base, uint64_t size);
void checkDestination(const mkTransportWrite_t& write, uint64_t room);
void checkFlag(const mkTransportWrite_t& write, uint64_t base, uint64_t room);
void checkEvents(const mkTransportEvent_t* events, int capacity);

}  // namespace mk::plugin
