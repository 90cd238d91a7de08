#include "host/cpu_platform.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "host/ag_gemm_call.h"
#include "host/error.h"
#include "host/gemm_ar_call.h"
#include "host/gemm_rs_call.h"
#include "host/heap.h"
#include "host/memory.h"
#include "host/shared_memory.h"
#include "mkernel/transport.h"

namespace mk {

namespace {

using protocol::OwnLayout;

class CpuHeap final : public HeapMemory {
 public:
  // Own, or attached without an owner in this process: then accept() brings the memory.
  CpuHeap(uint64_t bytes, bool own) : bytes_(bytes), own_(own) {
    if (own) memory_ = SharedMemory::create("mkernel-heap", bytes);
  }
  // Of a thread of this process, which has made it and opens its parts.
  CpuHeap(uint64_t bytes, std::shared_ptr<SharedMemory> memory)
      : bytes_(bytes), own_(false), shared_(true), memory_(std::move(memory)) {}

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

  char* base() const override { return memory_->base(); }
  void prepare(uint32_t, uint64_t offset, uint64_t bytes) override {
    if (own_) {
      memory_->back(offset, bytes);
    } else if (!shared_) {
      memory_->open(offset, bytes);
    }
  }
  std::vector<int> descriptors() const override { return passed_ ? std::vector<int>{} : std::vector{memory_->fd()}; }
  void accept(std::vector<UniqueFd> descriptors) override {
    if (!descriptors.empty())
      memory_ = SharedMemory::attach(std::move(descriptors.front()), bytes_, "mkernel-heap of a peer");
  }
  void commit() override { passed_ = true; }
  void discard() override {}  // what has been taken stays for the next time
  void write(uint64_t offset, const void* from, uint64_t bytes) override {
    std::memcpy(memory_->base() + offset, from, bytes);
  }
  int descriptor(uint32_t, uint64_t* offset) const override {
    static_cast<void>(offset);  // the file has the heap's layout
    return memory_->fd();
  }

 private:
  const uint64_t bytes_;
  const bool own_, shared_ = false;
  bool passed_ = false;
  std::shared_ptr<SharedMemory> memory_;
};

struct Claim {
  uint64_t segment, offset, segmentBytes;
};

// Where in a rank's private memory the words of the queue to a node begin: behind the operations' counters.
uint64_t queueWords(const sched::Place& place, uint64_t node) {
  return OwnLayout::firstCounter(place.locals, place.nodes) + sched::kMaxSlots +
         node * protocol::Mlx5Queue::countWords(protocol::Mlx5Queue::kMaxEntries);
}

}  // namespace

uint32_t CpuPlatform::memoryKind() const { return MK_MEMORY_KIND_HOST; }

std::shared_ptr<HeapMemory> CpuPlatform::createHeap(uint64_t addressBytes) {
  return std::make_shared<CpuHeap>(addressBytes, true);
}

std::shared_ptr<HeapMemory> CpuPlatform::attachHeap(uint64_t addressBytes, const std::shared_ptr<HeapMemory>& owner) {
  if (owner == nullptr) return std::make_shared<CpuHeap>(addressBytes, false);
  return std::make_shared<CpuHeap>(addressBytes, dynamic_cast<const CpuHeap&>(*owner).memory());
}

WindowExport CpuPlatform::exportWindow(void* ptr, size_t bytes) {
  const auto pinned = std::make_shared<Pinned>(ptr, bytes);
  const Claim claim = {pinned->segment(), pinned->offset(), pinned->memory()->bytes()};
  WindowExport window;
  window.claim.resize(sizeof(claim));
  std::memcpy(window.claim.data(), &claim, sizeof(claim));
  window.fds = {pinned->memory()->fd()};
  window.hold = pinned;
  return window;
}

WindowMapping CpuPlatform::importWindow(const std::vector<uint8_t>& claim, std::vector<UniqueFd> fds,
                                        bool sameProcess) {
  Claim theirs = {};
  if (claim.size() != sizeof(theirs)) fail(mkErrorInternal, "a window's claim of %zu bytes", claim.size());
  std::memcpy(&theirs, claim.data(), sizeof(theirs));
  std::shared_ptr<SharedMemory> memory;
  if (sameProcess) {
    memory = std::static_pointer_cast<SharedMemory>(findSegment(theirs.segment));
    if (memory == nullptr) fail(mkErrorInternal, "the window of a rank, a thread of this process, is gone");
  } else {
    if (fds.size() != 1) fail(mkErrorInternal, "%zu descriptors of a peer's window", fds.size());
    memory = SharedMemory::attach(std::move(fds.front()), theirs.segmentBytes, "a peer's window");
    memory->open(0, theirs.segmentBytes);
  }
  return {memory->base() + theirs.offset, memory};
}

void CpuPlatform::setUp(int rank, const sched::Place& place, const sched::RankMap&, const Heap& heap,
                        const Settings& settings) {
  const uint64_t words = queueWords(place, place.nodes > 1 ? place.nodes : 0);
  own_.reset(static_cast<uint64_t*>(std::calloc(words, sizeof(uint64_t))));
  if (own_ == nullptr) throw std::bad_alloc();
  own_.get()[OwnLayout::epoch] = settings.epochStart;
  own_.get()[OwnLayout::donePublished] = settings.epochStart;
  own_.get()[OwnLayout::enteredNewest] = settings.epochStart;
  ring_.resize(settings.ringSlots);
  // Room for whatever split an operation is given.
  agents_ = std::make_unique<emu::Agents>(agentCount_ + 4);
  memory_.rank = rank;
  memory_.place = place;
  memory_.heapLayout = heap.layout();
  memory_.controlLayout = heap.control();
  for (uint32_t l = 0; l < place.locals; ++l) memory_.heaps.push_back(heap.base(l));
  memory_.own = own_.get();
  memory_.ring = ring_.data();
  memory_.ringSlots = settings.ringSlots;
  memory_.timeoutNs = static_cast<uint64_t>(settings.timeoutMs) * 1'000'000u;
}

ProxyShared CpuPlatform::proxyShared() {
  ProxyShared shared;
  shared.ring = ring_.data();
  shared.ringSlots = ring_.size();
  shared.credits = own_.get() + OwnLayout::credits;
  shared.completions = own_.get() + OwnLayout::completions;
  shared.enteredNewest = own_.get() + OwnLayout::enteredNewest;
  return shared;
}

void CpuPlatform::setCards(const std::vector<protocol::Mlx5Queue>& queues) {
  const bool first = memory_.cardQueues.empty();
  memory_.cardQueues = queues;
  for (uint32_t n = 0; n < queues.size(); ++n) {
    protocol::Mlx5Queue& q = memory_.cardQueues[n];
    q.firstWord = queueWords(memory_.place, n);
    q.retiredWord = q.word(protocol::Mlx5Queue::retired);
    if (!first) continue;
    using Queue = protocol::Mlx5Queue;
    for (const auto word : {Queue::taken, Queue::tail, Queue::posted, Queue::seen, Queue::retired})
      memory_.ownWord(q.word(word)).store(q.firstIndex, std::memory_order_relaxed);
  }
}

void CpuPlatform::raiseFlag(uint64_t offset, uint64_t value) {
  memory_.flag(protocol::heap(memory_.place.local, offset)).store(value, std::memory_order_release);
}

template <class Call, class Plan>
void CpuPlatform::accept(Call* call, const Plan& plan) const {
  // MKERNEL_CPU_AGENTS is how large the machine is, and roles beyond it get fibres all the same; this is a promise.
  if (maxSMs_ != 0 && plan.roles.minimum() > maxSMs_)
    fail(mkErrorInvalidArgument, "the operation needs %u agents here; config.maxSMs leaves it %u", plan.roles.minimum(),
         maxSMs_);
  const uint32_t most = maxSMs_ != 0 ? std::min(maxSMs_, agents_->pool.maxAgents()) : agents_->pool.maxAgents();
  if (plan.roles.total() > most)
    fail(mkErrorInvalidArgument, "tune asks for %u agents in all; legal: up to %u", plan.roles.total(), most);
  call->plan = plan;
  call->minSMs = plan.roles.minimum();
}

void CpuPlatform::planGemmAr(const sched::GemmArShape& shape, const sched::GemmChoice& choice, GemmArCall* call) const {
  accept(call, sched::planGemmAr(shape, choice, agentCount_));
}

protocol::FailRecord CpuPlatform::runGemmAr(const GemmArCall& call, mkStream_t) {
  return emu::runGemmAr(*agents_, memory_, call.plan, call.hash, call.operands, call.peerC);
}

void CpuPlatform::planGemmRs(const sched::GemmRsShape& shape, const sched::GemmChoice& choice, GemmRsCall* call) const {
  accept(call, sched::planGemmRs(shape, choice, agentCount_));
}

protocol::FailRecord CpuPlatform::runGemmRs(const GemmRsCall& call, mkStream_t) {
  return emu::runGemmRs(*agents_, memory_, call.plan, call.hash, call.operands);
}

void CpuPlatform::planAgGemm(const sched::AgGemmShape& shape, const sched::GemmChoice& choice, AgGemmCall* call) const {
  accept(call, sched::planAgGemm(shape, choice, agentCount_));
}

protocol::FailRecord CpuPlatform::runAgGemm(const AgGemmCall& call, mkStream_t) {
  return emu::runAgGemm(*agents_, memory_, call.plan, call.hash, call.operands, {call.gathered, call.gatheredStride});
}

LaunchView CpuPlatform::view() const {
  const emu::WaitBoard& waits = agents_->waits;
  return {word(OwnLayout::epoch) + 1, waits.lastProgress(), waits.lastPoll(), waits.root()};
}

}  // namespace mk
