// The proxy's part where agents write the network cards' queues themselves: takes the queues from the transport, and tells the
// agents how far the cards have come.
#include <atomic>

#include "host/error.h"
#include "host/log.h"
#include "host/params.h"
#include "host/proxy.h"

namespace mk {

using protocol::Mlx5Queue;

// False: agents post to the ring.
bool Proxy::takeQueues() {
  const mkTransport_t& table = *transport_->table;
  if (staged() || params().directPost == 0 || transport_->properties.devicePosted == 0 ||
      table.queueDescriptor == nullptr || table.memoryDescriptor == nullptr)
    return false;
  std::vector<Mlx5Queue> taken(nodes_);
  bool any = false;
  for (uint32_t n = 0; n < nodes_; ++n) {
    if (n == node_) continue;
    mkQueueDescriptor_t d = {};
    d.structSize = sizeof(d);
    d.kind = MK_QUEUE_KIND_MLX5;
    d.version = MK_QUEUE_MLX5_VERSION;
    const int r = table.queueDescriptor(endpoint_, static_cast<int>(n), &d, sizeof(d));
    if (r == mkErrorVersion && !any) {
      MK_WARN(proxy, "transport %s: agents cannot write its queues, the proxy posts: %s", transport_->name.c_str(),
              lastError().c_str());
      return false;
    }
    if (r != 0)
      fail(static_cast<mkResult_t>(r), "transport %s: the queue to node %u: %s", transport_->name.c_str(), n,
           lastError().c_str());
    if (d.structSize < sizeof(d) || d.entries == nullptr || d.record == nullptr || d.doorbell == nullptr ||
        d.entryCount < 4 || d.entryCount > Mlx5Queue::kMaxEntries || (d.entryCount & (d.entryCount - 1)) != 0 ||
        d.immediates != (transport_->properties.contract == MK_CONTRACT_COMPLETION ? 1u : 0u))
      fail(mkErrorTransport, "transport %s: the queue to node %u makes no sense: %u bytes of description, %u entries",
           transport_->name.c_str(), n, d.structSize, d.entryCount);
    any = true;
    Mlx5Queue& q = taken[n];
    q.entries = static_cast<uint64_t*>(d.entries);
    q.record = static_cast<uint32_t*>(d.record);
    q.doorbell = static_cast<uint64_t*>(d.doorbell);
    q.entryCount = d.entryCount;
    q.number = d.number;
    q.immediates = d.immediates != 0;
    q.maxBytes = d.maxBytes;
    q.firstIndex = d.firstIndex;
  }
  queues_ = std::move(taken);
  MK_INFO(proxy, "agents write the queues of transport %s themselves", transport_->name.c_str());
  return true;
}

void Proxy::openCards() {
  if (queues_.empty() && !takeQueues()) return;
  const auto memory = [&](void* local, void* remote, uint32_t part) {
    mkQueueMemory_t m = {};
    m.structSize = sizeof(m);
    if (const int r = transport_->table->memoryDescriptor(endpoint_, local, remote, &m, sizeof(m)); r != 0)
      fail(static_cast<mkResult_t>(r), "transport %s: the heap's part %u in its queues: %s", transport_->name.c_str(),
           part, lastError().c_str());
    return Mlx5Queue::Memory{m.address - parts_[part].offset, m.key};
  };
  for (uint32_t n = 0; n < nodes_; ++n) {
    for (uint32_t i = 0; i < Heap::kParts && n != node_; ++i) {
      if (parts_[i].bytes == 0) continue;
      queues_[n].local[i] = memory(local_[i], nullptr, i);
      queues_[n].remote[i] = memory(nullptr, peers_[n].remote[i], i);
    }
  }
  platform_.setCards(queues_);
}

// Whether entries are under way; seen from the card's side, by the record: the agents' own words may be far away.
bool Proxy::cardBusy(uint32_t node) const {
  if (queues_.empty() || node == node_) return false;
  const uint32_t record = std::atomic_ref<uint32_t>(*queues_[node].record).load(std::memory_order_relaxed);
  const uint64_t done = std::atomic_ref<uint64_t>(*platform_.cardRetired(node)).load(std::memory_order_relaxed);
  return protocol::bigEndian(record) != (done & 0xffff);
}

void Proxy::retired(const mkTransportEvent_t& event) {
  const auto node = static_cast<size_t>(event.peer);
  if (event.peer < 0 || queues_.empty() || node == node_) {
    failed(event.peer, format("transport %s: entries of node %d have completed that nobody has posted",
                              transport_->name.c_str(), event.peer));
    return;
  }
  std::atomic_ref<uint64_t>(*platform_.cardRetired(static_cast<uint32_t>(node)))
      .store(event.cookie, std::memory_order_release);
}

}  // namespace mk
