#include "host/staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "host/error.h"
#include "sched/common.h"

namespace mk {

namespace {

constexpr size_t kWrites = 64;  // of one peer, taken and not wholly in slots
constexpr uint64_t kPage = 4096;
constexpr uint64_t kAckCookie = UINT64_MAX;

// Immediates: what it is, and the low bits of a number.
constexpr uint32_t kAck = 1u << 31, kNumber = kAck - 1;
// The number near `from` that has these low bits, if it is at most `ahead` further; else `from`.
uint64_t numberFrom(uint64_t from, uint32_t immediate, uint64_t ahead) {
  const uint64_t step = (immediate - static_cast<uint32_t>(from)) & kNumber;
  return step <= ahead ? from + step : from;
}

}  // namespace

Staging::Staging(std::shared_ptr<Transport> transport, void* endpoint, uint32_t node, uint32_t nodes, const char* base,
                 Platform& platform)
    : transport_(std::move(transport)),
      endpoint_(endpoint),
      node_(node),
      nodes_(nodes),
      base_(base),
      ordered_(transport_->properties.contract == MK_CONTRACT_ORDERED),
      fragment_(std::min(kFragment, (transport_->properties.maxBytes - sizeof(Header)) / 8 * 8)),
      stride_(sched::alignUp(sizeof(Header) + fragment_, kPage)),
      peers_(nodes) {
  if (transport_->properties.maxBytes < sizeof(Header) + 8)
    fail(mkErrorTransport, "transport %s takes %llu bytes at a time, too few to go through host memory",
         transport_->name.c_str(), static_cast<unsigned long long>(transport_->properties.maxBytes));
  memory_ = SharedMemory::create("mkernel-staging", area(nodes_));
  memory_->back(0, area(nodes_));
  copies_ = platform.makeCopies(static_cast<uint32_t>(kSlots) * nodes_);
  copies_->pin(memory_->base(), memory_->bytes());
  for (Peer& p : peers_) p.writes.resize(kWrites);
  events_.reserve(kWrites * nodes_);
  mkTransportMemory_t m = {};
  m.structSize = sizeof(m);
  m.kind = MK_MEMORY_KIND_HOST;
  m.address = memory_->base();
  m.bytes = memory_->bytes();
  m.fd = memory_->fd();
  key_.resize(MK_TRANSPORT_KEY_BYTES);
  if (const int r = transport_->table->registerMemory(endpoint_, &m, &local_, key_.data()); r != 0)
    fail(static_cast<mkResult_t>(r), "transport %s cannot register %llu bytes of host memory: %s",
         transport_->name.c_str(), static_cast<unsigned long long>(m.bytes), transport_->table->lastError());
}

void Staging::connect(uint32_t node, const uint8_t* key, int timeoutMs) {
  Peer& p = peers_[node];
  if (p.remote != nullptr) return;  // the heap has grown; this memory stays
  if (const int r = transport_->table->importMemory(endpoint_, static_cast<int>(node), key, timeoutMs, &p.remote);
      r != 0)
    fail(static_cast<mkResult_t>(r), "transport %s cannot use the host memory of the rail peer on node %u: %s",
         transport_->name.c_str(), node, transport_->table->lastError());
}

uint64_t Staging::load(uint64_t offset) const {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory_->base() + offset))
      .load(std::memory_order_acquire);
}

bool Staging::inside(uint64_t offset, uint64_t bytes) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const Heap::Part& p) {
    return offset >= p.offset && offset - p.offset <= p.bytes && bytes <= p.bytes - (offset - p.offset);
  });
}

int Staging::post(uint32_t node, const mkTransportWrite_t* writes, int count, int* accepted) {
  Peer& p = peers_[node];
  *accepted = 0;
  for (; *accepted < count && p.count < p.writes.size(); ++*accepted)
    p.writes[(p.head + p.count++) % p.writes.size()] = writes[*accepted];
  fill(node);
  return 0;
}

int Staging::write(uint32_t node, const mkTransportWrite_t& w, bool* accepted) {
  int taken = 0;
  const int r = transport_->table->post(endpoint_, static_cast<int>(node), &w, 1, &taken);
  *accepted = taken == 1;
  return r;
}

// ---- Sending ---------------------------------------------------------------------------------------------------------

// Puts what there is into free slots, and starts the copies.
bool Staging::fill(uint32_t node) {
  Peer& p = peers_[node];
  bool any = false;
  // Writes that are wholly in slots make room for others only when they complete: `head` is the first that is not.
  while (p.count > 0 && p.filled < p.completed + kSlots) {
    const mkTransportWrite_t& w = p.writes[p.head];
    const uint64_t bytes = std::min(w.bytes - p.done, fragment_);
    SendSlot& slot = p.slots[p.filled % kSlots];
    slot = {};
    slot.last = p.done + bytes == w.bytes;
    slot.bytes = sizeof(Header) + bytes;
    slot.cookie = w.cookie;
    slot.queue = w.queue;
    char* const to = memory_->base() + outSlot(node, p.filled);
    Header header = {};
    header.destination = w.remoteOffset + p.done;
    header.bytes = bytes;
    header.flag = slot.last ? w.flagOffset : kNoFlag;
    header.flagValue = w.flagValue;
    std::memcpy(to, &header, sizeof(header));
    if (bytes != 0) {
      const auto from = static_cast<uint64_t>(static_cast<const char*>(w.source) - base_);
      copies_->copyOut(to + sizeof(header), from + p.done, bytes);
      slot.mark = copies_->mark(HeapCopies::out);
    }
    p.done += bytes;
    ++p.filled;
    any = true;
    if (!slot.last) continue;
    p.done = 0;
    p.head = (p.head + 1) % p.writes.size();
    --p.count;
  }
  return any;
}

// Hands the network the slots whose copies have landed, in order.
int Staging::submit(uint32_t node) {
  Peer& p = peers_[node];
  for (; p.posted < p.filled; ++p.posted) {
    const SendSlot& slot = p.slots[p.posted % kSlots];
    if (slot.mark != 0 && !copies_->passed(HeapCopies::out, slot.mark)) break;
    mkTransportWrite_t w = {};
    w.source = memory_->base() + outSlot(node, p.posted);
    w.localMemory = local_;
    w.remoteMemory = w.flagMemory = p.remote;
    w.remoteOffset = inSlot(node_, p.posted);
    w.bytes = slot.bytes;
    w.flagOffset = word(node_, p.posted % kSlots);
    w.flagValue = p.posted + 1;
    w.immediate = static_cast<uint32_t>(p.posted) & kNumber;
    w.queue = slot.queue;
    w.cookie = p.posted;
    bool accepted = false;
    if (const int r = write(node, w, &accepted); r != 0) return r;
    if (!accepted) break;
  }
  return 0;
}

void Staging::complete(uint32_t node) {
  Peer& p = peers_[node];
  if (ordered_) p.acknowledged = load(word(node, kAckWord));
  if (p.acknowledged > p.posted)
    fail(mkErrorTransport, "node %u has acknowledged %llu fragments of %llu", node,
         static_cast<unsigned long long>(p.acknowledged), static_cast<unsigned long long>(p.posted));
  while (p.completed < p.acknowledged && p.slots[p.completed % kSlots].sent) {
    const SendSlot& slot = p.slots[p.completed % kSlots];
    if (slot.last) events_.push_back({MK_EVENT_SENT, static_cast<int32_t>(node), 0, 0, slot.cookie});
    ++p.completed;
  }
}

// ---- Receiving -------------------------------------------------------------------------------------------------------

// Starts copying into the heap what has arrived, in order, each flag behind its payload.
bool Staging::take(uint32_t node) {
  Peer& p = peers_[node];
  bool any = false;
  for (; p.taken < p.landed + kSlots; ++p.taken, any = true) {
    const uint64_t slot = p.taken % kSlots;
    if ((ordered_ ? load(word(node, slot)) : p.arrived[slot]) != p.taken + 1) break;
    const char* const from = memory_->base() + inSlot(node, p.taken);
    Header header = {};
    std::memcpy(&header, from, sizeof(header));
    if (header.bytes > fragment_ || (header.bytes != 0 && !inside(header.destination, header.bytes)) ||
        (header.flag != kNoFlag && !inside(header.flag, sizeof(uint64_t))))
      fail(mkErrorTransport, "node %u has sent %llu bytes for %llu of the heap, flag at %llu: outside", node,
           static_cast<unsigned long long>(header.bytes), static_cast<unsigned long long>(header.destination),
           static_cast<unsigned long long>(header.flag));
    if (header.bytes != 0) copies_->copyIn(header.destination, from + sizeof(header), header.bytes);
    if (header.flag != kNoFlag) copies_->raise(header.flag, header.flagValue);
    p.marks[slot] = copies_->mark(HeapCopies::in);
  }
  while (p.landed < p.taken && copies_->passed(HeapCopies::in, p.marks[p.landed % kSlots])) {
    ++p.landed;
    any = true;
  }
  return any;
}

int Staging::acknowledge(uint32_t node) {
  Peer& p = peers_[node];
  if (p.told == p.landed || p.telling) return 0;
  mkTransportWrite_t w = {};
  w.flagMemory = p.remote;
  w.flagOffset = word(node_, kAckWord);
  w.flagValue = p.landed;
  w.immediate = kAck | (static_cast<uint32_t>(p.landed) & kNumber);
  w.cookie = kAckCookie;
  bool accepted = false;
  const int r = write(node, w, &accepted);
  if (r != 0 || !accepted) return r;
  p.telling = true;
  p.told = p.landed;
  return 0;
}

// ---- Events ----------------------------------------------------------------------------------------------------------

void Staging::note(const mkTransportEvent_t& e) {
  if (e.peer < 0 || static_cast<uint32_t>(e.peer) >= nodes_ || (e.kind == MK_EVENT_SENT && e.status != 0)) {
    events_.push_back(e);
    return;
  }
  Peer& p = peers_[static_cast<size_t>(e.peer)];
  if (e.kind == MK_EVENT_SENT && e.cookie == kAckCookie) {
    p.telling = false;
  } else if (e.kind == MK_EVENT_SENT) {
    p.slots[e.cookie % kSlots].sent = true;
  } else if (e.kind == MK_EVENT_ARRIVED && (e.immediate & kAck) != 0) {
    p.acknowledged = numberFrom(p.acknowledged, e.immediate, kSlots);
  } else if (e.kind == MK_EVENT_ARRIVED) {
    // An old one, repeated, is none of those that may come: it stands for the next, whose slot then says otherwise.
    const uint64_t number = numberFrom(p.taken, e.immediate, kSlots - 1);
    if ((static_cast<uint32_t>(number) & kNumber) == e.immediate) p.arrived[number % kSlots] = number + 1;
  } else {
    events_.push_back(e);
  }
}

int Staging::poll(mkTransportEvent_t* events, int capacity, int* count) {
  mkTransportEvent_t inner[32];
  int got = 0;
  *count = 0;
  if (const int r = transport_->table->poll(endpoint_, inner, 32, &got); r != 0) return r;
  for (int i = 0; i < got; ++i) note(inner[i]);
  bool any = got > 0;
  for (uint32_t n = 0; n < nodes_; ++n) {
    if (n == node_) continue;
    any |= take(n);
    if (const int r = acknowledge(n); r != 0) return r;
    complete(n);
    any |= fill(n);
    if (const int r = submit(n); r != 0) return r;
    const Peer& p = peers_[n];
    any |= p.completed != p.filled || p.landed != p.taken || p.told != p.landed || p.telling;
  }
  busy_ = any;
  *count = static_cast<int>(std::min(events_.size(), static_cast<size_t>(capacity)));
  std::copy_n(events_.begin(), *count, events);
  events_.erase(events_.begin(), events_.begin() + *count);
  return 0;
}

}  // namespace mk
