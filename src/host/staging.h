// Network transfers through host memory, for a network that cannot reach the heap: a second transport on top of the first.  What
// is sent is copied from the heap into a slot of host memory, a fragment at a time, and written from there into a slot of the
// peer's; the peer copies it into its heap, raises the flag behind it, and acknowledges.  Called by the proxy, on its thread.
//
// Each pair of rail peers has kSlots slots each way, used in turn.  A slot is used again when the peer has acknowledged it, that
// is when its content lies in the peer's heap, and the network has done with it.  A write completes with its last fragment.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host/heap.h"
#include "host/platform.h"
#include "host/shared_memory.h"
#include "host/transport.h"

namespace mk {

class Staging {
 public:
  static constexpr uint64_t kSlots = 8;
  static constexpr uint64_t kFragment = 256 << 10;  // bytes of payload in a slot, at most

  // On a connected endpoint.  base: of the own heap.
  Staging(std::shared_ptr<Transport> transport, void* endpoint, uint32_t node, uint32_t nodes, const char* base,
          Platform& platform);
  // The endpoint has been closed.
  ~Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // What the rail peers need for connect().
  const std::vector<uint8_t>& key() const { return key_; }
  void connect(uint32_t node, const uint8_t* key, int timeoutMs);
  // Where peers may write; while nothing is under way.
  void setParts(const Heap::Part* parts) { parts_.assign(parts, parts + Heap::kParts); }

  // As mkTransport_t's post() and poll() under the ordered contract, but that remoteOffset and flagOffset count from the start of
  // the peer's heap, and memories mean nothing.  Throws where a peer has sent what makes no sense.
  int post(uint32_t node, const mkTransportWrite_t* writes, int count, int* accepted);
  int poll(mkTransportEvent_t* events, int capacity, int* count);
  // Something is under way, here or to a peer, that the next poll may carry on.
  bool busy() const { return busy_; }

 private:
  // In front of a fragment's payload.
  struct Header {
    uint64_t destination, bytes;
    uint64_t flag, flagValue;  // of the last fragment of a write; else kNoFlag
    uint64_t reserved[4];
  };
  static constexpr uint64_t kNoFlag = UINT64_MAX;
  struct SendSlot {
    uint64_t mark = 0, bytes = 0, cookie = 0;
    uint32_t queue = 0;
    bool last = false, sent = false;
  };
  struct Peer {
    void* remote = nullptr;  // its memory, as imported
    // Sending.  Fragments are counted from 0: completed <= acknowledged, completed <= posted <= filled <= completed + kSlots.
    std::vector<mkTransportWrite_t> writes;  // circular
    size_t head = 0, count = 0;
    uint64_t done = 0;  // bytes of the first write that are in slots
    uint64_t filled = 0, posted = 0, acknowledged = 0, completed = 0;
    SendSlot slots[kSlots];
    // Receiving: landed <= taken <= landed + kSlots.
    uint64_t arrived[kSlots] = {};  // completion contract: number of the newest fragment in the slot, from 1
    uint64_t taken = 0, landed = 0, told = 0;
    uint64_t marks[kSlots] = {};
    bool telling = false;  // an acknowledgement is under way: a later one could be overtaken by it
  };

  // The memory of the pair with a node: words, slots to receive in, slots to send from.
  static constexpr uint64_t kWordBytes = 4096, kAckWord = 32;
  uint64_t area(uint32_t node) const { return node * (kWordBytes + 2 * kSlots * stride_); }
  uint64_t word(uint32_t node, uint64_t index) const { return area(node) + index * sizeof(uint64_t); }
  uint64_t inSlot(uint32_t node, uint64_t n) const { return area(node) + kWordBytes + n % kSlots * stride_; }
  uint64_t outSlot(uint32_t node, uint64_t n) const { return inSlot(node, n) + kSlots * stride_; }
  uint64_t load(uint64_t offset) const;

  bool fill(uint32_t node);
  int submit(uint32_t node);
  bool take(uint32_t node);
  int acknowledge(uint32_t node);
  void complete(uint32_t node);
  void note(const mkTransportEvent_t& event);
  int write(uint32_t node, const mkTransportWrite_t& w, bool* accepted);
  bool inside(uint64_t offset, uint64_t bytes) const;

  const std::shared_ptr<Transport> transport_;
  void* const endpoint_;
  const uint32_t node_, nodes_;
  const char* const base_;
  const bool ordered_;
  const uint64_t fragment_, stride_;
  std::shared_ptr<SharedMemory> memory_;
  std::unique_ptr<HeapCopies> copies_;  // gone before the memory it has pinned
  void* local_ = nullptr;
  std::vector<uint8_t> key_;
  std::vector<Heap::Part> parts_;
  std::vector<Peer> peers_;                 // by node
  std::vector<mkTransportEvent_t> events_;  // for poll() to hand out
  bool busy_ = false;
};

}  // namespace mk
