#include "host/proxy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "host/affinity.h"
#include "host/error.h"
#include "host/log.h"
#include "host/params.h"
#include "host/thread.h"

#include <sys/prctl.h>
#include <time.h>

namespace mk {

namespace {

constexpr int kBatch = 8;                   // commands per submission
constexpr uint64_t kBatchWindowNs = 2'000;  // how long a command waits for company
constexpr uint32_t kSpins = 200;            // rounds without work before the core is offered to others
constexpr uint64_t kLingerNs = 2'000'000;   // the thread sleeps so long after work, or the beginning of an operation
constexpr long kSleepNs = 20'000;

void pauseCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Proxy::Proxy(std::shared_ptr<Transport> transport, int device, uint32_t node, uint32_t nodes, Heap& heap,
             Platform& platform, uint64_t epochStart)
    : transport_(std::move(transport)),
      node_(node),
      nodes_(nodes),
      heap_(heap),
      platform_(platform),
      shared_(platform.proxyShared()),
      peers_(nodes),
      arrivedControl_(uint64_t{sched::kControlSlots} * nodes) {
  startAt(epochStart);
  address_.resize(MK_TRANSPORT_ADDRESS_BYTES);
  for (Peer& p : peers_) p.queue.resize(shared_.ringSlots);
  if (const int r = transport_->table->open(transport_->context, device, &endpoint_, address_.data()); r != 0)
    fail(mkErrorTransport, "transport %s cannot open device %d: %s", transport_->name.c_str(), device,
         lastError().c_str());
}

Proxy::~Proxy() { stop(); }

std::string Proxy::lastError() const { return transport_->table->lastError(); }

void Proxy::connect(const std::vector<uint8_t>& addresses, int timeoutMs) {
  if (const int r = transport_->table->connect(endpoint_, static_cast<int>(nodes_), static_cast<int>(node_),
                                               addresses.data(), timeoutMs);
      r != 0)
    fail(static_cast<mkResult_t>(r), "transport %s cannot connect: %s", transport_->name.c_str(), lastError().c_str());
}

int Proxy::registerPart(uint32_t index, void** handle, uint8_t* key) {
  const Heap::Part part = heap_.part(index);
  mkTransportMemory_t m = {};
  m.structSize = sizeof(m);
  m.kind = heap_.memoryKind();
  m.address = heap_.base(heap_.localRank()) + part.offset;
  m.bytes = part.bytes;
  m.fdOffset = part.offset;
  m.fd = heap_.descriptor(index, &m.fdOffset);
  return transport_->table->registerMemory(endpoint_, &m, handle, key);
}

std::string Proxy::stagingReason() {
  if (params().netStaging != 0) return "MKERNEL_NET_STAGING asks for it";
  void* handle = nullptr;
  uint8_t key[MK_TRANSPORT_KEY_BYTES] = {};
  // The control part stands for the others.  What else may be wrong will be said when they are registered.
  const int r = registerPart(0, &handle, key);
  if (r == mkErrorNotSupported) return lastError();
  if (r == 0) transport_->table->deregisterMemory(endpoint_, handle);
  return {};
}

void Proxy::stage() {
  staging_ = std::make_unique<Staging>(transport_, endpoint_, node_, nodes_, heap_.base(heap_.localRank()), platform_);
}

std::vector<uint8_t> Proxy::registerHeap() {
  std::vector<uint8_t> keys(Heap::kParts * MK_TRANSPORT_KEY_BYTES);
  for (uint32_t i = 0; i < Heap::kParts; ++i) {
    if (local_[i] != nullptr) {
      transport_->table->deregisterMemory(endpoint_, local_[i]);
      local_[i] = nullptr;
    }
    parts_[i] = heap_.part(i);
    if (parts_[i].bytes == 0 || staged()) continue;
    if (const int r = registerPart(i, &local_[i], &keys[i * MK_TRANSPORT_KEY_BYTES]); r != 0)
      fail(static_cast<mkResult_t>(r), "transport %s cannot register %llu bytes of the heap: %s",
           transport_->name.c_str(), static_cast<unsigned long long>(parts_[i].bytes), lastError().c_str());
  }
  if (staged()) {
    staging_->setParts(parts_);
    std::copy(staging_->key().begin(), staging_->key().end(), keys.begin());
  }
  return keys;
}

void Proxy::importHeap(uint32_t node, const std::vector<uint8_t>& keys, int timeoutMs) {
  if (keys.size() != Heap::kParts * MK_TRANSPORT_KEY_BYTES) fail(mkErrorInternal, "keys of %zu bytes", keys.size());
  if (staged()) {
    staging_->connect(node, keys.data(), timeoutMs);
    return;
  }
  for (uint32_t i = 0; i < Heap::kParts; ++i) {
    void*& remote = peers_[node].remote[i];
    if (remote != nullptr) {
      transport_->table->releaseMemory(endpoint_, remote);
      remote = nullptr;
    }
    if (parts_[i].bytes == 0) continue;
    if (const int r = transport_->table->importMemory(endpoint_, static_cast<int>(node),
                                                      &keys[i * MK_TRANSPORT_KEY_BYTES], timeoutMs, &remote);
        r != 0)
      fail(static_cast<mkResult_t>(r), "transport %s cannot use the heap of the rail peer on node %u: %s",
           transport_->name.c_str(), node, lastError().c_str());
  }
}

void Proxy::start(std::function<void(int, const std::string&)> onFailure) {
  onFailure_ = std::move(onFailure);
  thread_ = startThread("mk-proxy", [this] { loop(); });
}

int Proxy::unfinishedNode() const {
  for (uint32_t n = 0; n < nodes_; ++n) {
    if (peers_[n].unfinished.load(std::memory_order_relaxed) != 0) return static_cast<int>(n);
    if (cardBusy(n)) return static_cast<int>(n);
  }
  return -1;
}

std::string Proxy::account() const {
  const auto number = [](const std::atomic<uint64_t>& n) {
    return static_cast<unsigned long long>(n.load(std::memory_order_relaxed));
  };
  const ProxyCounters& c = counters_;
  std::string text = format(
      "commands: %llu posted, %llu taken, %llu completed; %llu batches, %llu payload messages; %llu arrivals notified; "
      "longest round %llu ms; unfinished:",
      static_cast<unsigned long long>(platform_.word(protocol::OwnLayout::ringTail)), number(c.commands),
      number(c.completions), number(c.batches), number(c.payloadMessages), number(c.arrivals),
      number(c.longestRoundNs) / 1'000'000);
  for (uint32_t n = 0; n < nodes_; ++n)
    if (n != node_)
      text += format("%s %llu to node %u", text.back() == ':' ? "" : ",", number(peers_[n].unfinished), n);
  return text;
}

void Proxy::pause() {
  wanted_.store(1);
  while (thread_.joinable() && !parked_.load(std::memory_order_acquire)) std::this_thread::yield();
}

void Proxy::resume() {
  int expected = 1;
  wanted_.compare_exchange_strong(expected, 0);
  // Until it has seen that, or the next pause could take this one's parking for its own.
  while (thread_.joinable() && wanted_.load() == 0 && parked_.load(std::memory_order_acquire))
    std::this_thread::yield();
}

void Proxy::stop() {
  const std::lock_guard lock(stopMutex_);
  wanted_.store(2);
  if (thread_.joinable()) thread_.join();
  if (endpoint_ != nullptr && !queues_.empty()) platform_.dropCards();
  if (endpoint_ != nullptr && transport_->table->close(endpoint_) != 0)
    MK_WARN(proxy, "transport %s: close: %s", transport_->name.c_str(), lastError().c_str());
  endpoint_ = nullptr;
  staging_ = nullptr;
}

void Proxy::failed(int node, const std::string& text) {
  if (std::exchange(dead_, true)) return;
  MK_INFO(proxy, "%s", text.c_str());
  if (onFailure_) onFailure_(node, text);
}

void Proxy::loop() {
  try {
    static_cast<void>(platform_.bind());  // this thread's for good
    // A sleep takes as long as it says and 50 us more, unless the thread says otherwise.
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    moveNear(platform_.pciBusId());
  } catch (const std::exception& e) {
    failed(-1, e.what());
  }
  uint32_t idleRounds = 0;
  uint64_t workedAt = nowNs(), entered = 0, roundAt = 0;  // 0: this round is the first after a pause
  for (;;) {
    const int wanted = wanted_.load(std::memory_order_acquire);
    if (wanted == 2) return;
    if (wanted == 1) {
      parked_.store(true, std::memory_order_release);
      roundAt = 0;
      const timespec pause{0, kSleepNs};
      nanosleep(&pause, nullptr);
      continue;
    }
    parked_.store(false, std::memory_order_release);
    const uint64_t now = nowNs();
    if (roundAt != 0 && now - roundAt > counters_.longestRoundNs.load(std::memory_order_relaxed))
      counters_.longestRoundNs.store(now - roundAt, std::memory_order_relaxed);
    roundAt = now;
    bool worked = false;
    try {
      worked = collectEvents();
      worked |= takeCommands(now);
      worked |= submit(now);
    } catch (const std::exception& e) {  // the device has failed
      failed(-1, e.what());
    }
    const uint64_t newest = std::atomic_ref<const uint64_t>(*shared_.enteredNewest).load(std::memory_order_relaxed);
    if (worked || newest != entered) {
      entered = newest;
      workedAt = now;
      idleRounds = 0;
    } else if (++idleRounds < kSpins) {
      pauseCore();
    } else if (now - workedAt < kLingerNs) {
      std::this_thread::yield();
    } else {
      const timespec pause{0, kSleepNs};
      nanosleep(&pause, nullptr);
    }
  }
}

bool Proxy::translate(const mkCommand_t& c, uint32_t node, mkTransportWrite_t* w, std::string* why) const {
  if (mkHeaderOp(c.header) != MK_COMMAND_OP_WRITE || node >= nodes_ || node == node_ || c.slot >= sched::kMaxSlots ||
      mkPlaceMemory(c.source) != MK_MEMORY_HEAP || mkPlaceMemory(c.destination) != MK_MEMORY_HEAP) {
    *why = format("command that makes no sense: header %016llx, slot %llu", static_cast<unsigned long long>(c.header),
                  static_cast<unsigned long long>(c.slot));
    return false;
  }
  const auto partAt = [&](uint64_t offset, uint64_t bytes) {
    for (uint32_t i = 0; i < Heap::kParts; ++i) {
      if (offset >= parts_[i].offset && offset - parts_[i].offset <= parts_[i].bytes &&
          bytes <= parts_[i].bytes - (offset - parts_[i].offset))
        return static_cast<int>(i);
    }
    return -1;
  };
  *w = {};
  if (c.bytes != 0) {
    const uint64_t from = mkPlaceOffset(c.source);
    const uint64_t to = mkPlaceOffset(c.destination);
    const int source = partAt(from, c.bytes);
    const int destination = partAt(to, c.bytes);
    if (source < 0 || destination < 0) {
      *why = format("command outside the heap: %llu bytes from %llu to %llu", static_cast<unsigned long long>(c.bytes),
                    static_cast<unsigned long long>(from), static_cast<unsigned long long>(to));
      return false;
    }
    if (c.bytes > transport_->properties.maxBytes && !staged()) {
      *why = format("a message of %llu bytes; transport %s takes up to %llu: choose smaller chunks (tune.chunkTiles)",
                    static_cast<unsigned long long>(c.bytes), transport_->name.c_str(),
                    static_cast<unsigned long long>(transport_->properties.maxBytes));
      return false;
    }
    w->source = heap_.base(heap_.localRank()) + from;
    w->localMemory = local_[source];
    w->remoteMemory = peers_[node].remote[destination];
    w->remoteOffset = staged() ? to : to - parts_[destination].offset;
    w->bytes = c.bytes;
  }
  const uint64_t flag = sched::arrivalFlag(heap_.layout(), heap_.control(), c.slot, node_, c.epoch);
  const int flagPart = partAt(flag, 8);
  if (flagPart < 0) {
    *why = format("arrival slot %llu has no flag in the heap", static_cast<unsigned long long>(c.slot));
    return false;
  }
  w->flagMemory = peers_[node].remote[flagPart];
  w->flagOffset = staged() ? flag : flag - parts_[flagPart].offset;
  w->flagValue = c.epoch;
  w->immediate = mkImmediate(node_, c.slot, c.epoch);
  w->queue = mkHeaderQueue(c.header);
  w->cookie = c.bytes;
  return true;
}

bool Proxy::takeCommands(uint64_t now) {
  bool any = false;
  // What has been read and not submitted is bounded by the ring's size, so one stuck peer can hold up the ring, but no memory
  // grows.
  while (pendingTotal_ < shared_.ringSlots) {
    mkCommand_t& slot = shared_.ring[taken_ % shared_.ringSlots];
    const uint64_t header = std::atomic_ref<uint64_t>(slot.header).load(std::memory_order_acquire);
    if (mkHeaderLap(header) != mkCommandLap(taken_, shared_.ringSlots)) break;
    mkCommand_t c = slot;
    c.header = header;
    ++taken_;
    std::atomic_ref<uint64_t>(*shared_.credits).store(taken_, std::memory_order_release);
    any = true;
    counters_.commands.fetch_add(1, std::memory_order_relaxed);
    const uint32_t node = mkHeaderPeer(header);
    Pending pending = {{}, now};
    std::string why;
    if (!translate(c, node, &pending.write, &why)) {
      failed(-1, why);
      continue;
    }
    if (c.slot >= sched::kControlSlots) {
      counters_.payloadBytes.fetch_add(c.bytes, std::memory_order_relaxed);
      counters_.payloadMessages.fetch_add(1, std::memory_order_relaxed);
    }
    Peer& p = peers_[node];
    p.queue[(p.head + p.count++) % p.queue.size()] = pending;
    p.unfinished.fetch_add(1, std::memory_order_relaxed);
    ++pendingTotal_;
  }
  return any;
}

bool Proxy::submit(uint64_t now) {
  if (dead_) return false;
  bool any = false;
  const int limit = std::min<int>(kBatch, static_cast<int>(transport_->properties.maxBatch));
  for (uint32_t n = 0; n < nodes_; ++n) {
    Peer& p = peers_[n];
    while (p.count > 0) {
      const size_t ready = std::min<size_t>(p.count, static_cast<size_t>(limit));
      // With nothing under way to that node, company would only cost time.
      const bool quiet = p.unfinished.load(std::memory_order_relaxed) == p.count;
      if (ready < static_cast<size_t>(limit) && !quiet && now - p.queue[p.head].since < kBatchWindowNs) break;
      mkTransportWrite_t batch[kBatch];
      for (size_t i = 0; i < ready; ++i) batch[i] = p.queue[(p.head + i) % p.queue.size()].write;
      int accepted = 0;
      const auto offered = static_cast<int>(ready);
      if (const int r = staged() ? staging_->post(n, batch, offered, &accepted)
                                 : transport_->table->post(endpoint_, static_cast<int>(n), batch, offered, &accepted);
          r != 0) {
        failed(static_cast<int>(n),
               format("transport %s: post to node %u: %s", transport_->name.c_str(), n, lastError().c_str()));
        return true;
      }
      if (accepted == 0) break;  // the connection is full: its completions make room
      any = true;
      counters_.batches.fetch_add(1, std::memory_order_relaxed);
      counters_.batchSize[accepted].fetch_add(1, std::memory_order_relaxed);
      p.head = (p.head + static_cast<size_t>(accepted)) % p.queue.size();
      p.count -= static_cast<size_t>(accepted);
      pendingTotal_ -= static_cast<size_t>(accepted);
    }
  }
  return any;
}

bool Proxy::collectEvents() {
  mkTransportEvent_t events[32];
  int count = 0;
  if (const int r =
          staged() ? staging_->poll(events, 32, &count) : transport_->table->poll(endpoint_, events, 32, &count);
      r != 0) {
    failed(-1, format("transport %s: poll: %s", transport_->name.c_str(), lastError().c_str()));
    return false;
  }
  uint64_t sent = 0;
  for (int i = 0; i < count; ++i) {
    const mkTransportEvent_t& e = events[i];
    const bool ofDevice = e.peer == -1 && e.kind == MK_EVENT_ERROR;
    if (!ofDevice && (e.peer < 0 || static_cast<uint32_t>(e.peer) >= nodes_)) {
      failed(-1, format("transport %s: event of node %d, which does not exist", transport_->name.c_str(), e.peer));
      continue;
    }
    switch (e.kind) {
      case MK_EVENT_SENT:
        if (e.status == 0) {
          ++sent;
          peers_[static_cast<size_t>(e.peer)].unfinished.fetch_sub(1, std::memory_order_relaxed);
        } else {
          failed(e.peer, format("transport %s: a write of %llu bytes to node %d failed (%s)", transport_->name.c_str(),
                                static_cast<unsigned long long>(e.cookie), e.peer,
                                mkGetErrorString(static_cast<mkResult_t>(e.status))));
        }
        break;
      case MK_EVENT_ARRIVED:
        counters_.arrivals.fetch_add(1, std::memory_order_relaxed);
        arrived(e.peer, e.immediate);
        break;
      case MK_EVENT_RETIRED:
        retired(e);
        sent += e.immediate;
        break;
      case MK_EVENT_ERROR:
        // Which of several errors the reason is for does not matter: the first one is reported.
        failed(e.peer, ofDevice ? format("transport %s: %s", transport_->name.c_str(), lastError().c_str())
                                : format("transport %s: the connection to node %d is broken: %s",
                                         transport_->name.c_str(), e.peer, lastError().c_str()));
        break;
      default:
        failed(e.peer, format("transport %s: event of unknown kind %u", transport_->name.c_str(), e.kind));
    }
  }
  if (sent > 0) {
    const uint64_t completed = counters_.completions.fetch_add(sent, std::memory_order_relaxed) + sent;
    std::atomic_ref<uint64_t>(*shared_.completions).store(completed, std::memory_order_release);
  }
  return count > 0 || (!dead_ && staged() && staging_->busy());
}

void Proxy::arrived(int node, uint32_t immediate) {
  if (dead_) return;
  const uint32_t from = mkImmediateRail(immediate);
  const uint64_t slot = mkImmediateSlot(immediate);
  if (node < 0 || from != static_cast<uint32_t>(node) || from >= nodes_) {
    failed(node, format("a notification from node %d says it is from %u", node, from));
    return;
  }
  uint64_t reference = 0;
  std::atomic<uint64_t>* newest = nullptr;
  if (slot < sched::kControlSlots) {
    // Each is sent after the one before has completed: the reference is what came last.  Entered words alternate between two.
    newest = &arrivedControl_[slot * nodes_ + from];
    reference = newest->load(std::memory_order_relaxed);
    if (slot != sched::kSlotDone)
      reference = std::max(reference, arrivedControl_[(slot ^ 1u) * nodes_ + from].load(std::memory_order_relaxed));
  } else {
    reference = std::atomic_ref<const uint64_t>(*shared_.enteredNewest).load(std::memory_order_acquire);
  }
  const uint64_t epoch = mkImmediateEpoch(immediate, reference);
  const uint64_t flag = sched::arrivalFlag(heap_.layout(), heap_.control(), slot, from, epoch);
  bool inside = false;
  for (const Heap::Part& p : parts_) inside |= flag >= p.offset && flag + 8 <= p.offset + p.bytes;
  if (!inside) {
    failed(node, format("a notification from node %d is for slot %llu, which has no flag", node,
                        static_cast<unsigned long long>(slot)));
    return;
  }
  // The payload is visible (the transport's contract); whoever acquires the flag sees it.
  platform_.raiseFlag(flag, epoch);
  if (newest != nullptr) newest->store(epoch, std::memory_order_relaxed);
}

}  // namespace mk
