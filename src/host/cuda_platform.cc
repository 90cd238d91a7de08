#include "host/cuda_platform.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "host/cuda.h"
#include "host/heap.h"
#include "host/log.h"
#include "kernels/launch.h"
#include "mkernel/transport.h"

namespace mk::cuda {

namespace {

using protocol::OwnLayout;

constexpr uint64_t kRaised = 4096;    // flags under way
constexpr int kAnswerMs = 2'000;      // the GPU's copy engine answers by then
constexpr uint64_t kRevokedWord = 1;  // in pinned memory, behind the copied words: what revoke() copies
constexpr uint64_t kPinnedAlign = 256;
constexpr uint64_t kQueueWords = protocol::Mlx5Queue::countWords(protocol::Mlx5Queue::kMaxEntries);

}  // namespace

std::unique_ptr<Platform> makePlatform(const Settings& settings) {
  if (const std::string why = unusable(); !why.empty())
    fail(mkErrorNotSupported, "platform is \"cuda\": %s; legal: \"cpu\", or a device that can be used", why.c_str());
  return std::make_unique<CudaPlatform>(settings);
}

CudaPlatform::CudaPlatform(const Settings& settings) {
  check(cudaGetDevice(&device_), "asking for the current device");
  const OnDevice on(device_);
  check(cudaFree(nullptr), "initialising the device");
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, device_), "asking for the device's properties");
  static_assert(sizeof(properties.uuid) == sizeof(uuid_));
  std::memcpy(uuid_.data(), &properties.uuid, sizeof(uuid_));
  driver();
  kernels::KernelDevice loaded;
  if (const std::string why = kernels::loadKernels(&loaded); !why.empty())
    fail(mkErrorUnhandledCuda, "%s", why.c_str());
  smCount_ = static_cast<uint32_t>(properties.multiProcessorCount);
  clusters_ = loaded.clusters;
  cacheBytes_ = static_cast<uint64_t>(properties.l2CacheSize);
  if (settings.maxSMs != 0 && settings.maxSMs < smCount_) {
    smCount_ = settings.maxSMs;
    clusters_ = std::min(clusters_, settings.maxSMs / sched::kClusterBlocks);
    if (clusters_ == 0)
      fail(mkErrorInvalidArgument, "config.maxSMs is %u; legal: 0 (all), or at least %u", settings.maxSMs,
           sched::kClusterBlocks);
  }
  check(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), "creating a stream");
  check(cudaStreamCreateWithFlags(&flags_, cudaStreamNonBlocking), "creating a stream");
  check(cudaEventCreateWithFlags(&copiedEvent_, cudaEventDisableTiming), "creating an event");
  check(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming), "creating an event");
  check(cudaEventCreateWithFlags(&perThread_, cudaEventDisableTiming), "creating an event");
}

CudaPlatform::~CudaPlatform() {
  try {
    const OnDevice on(device_);
    if (side_ != nullptr) cudaStreamDestroy(side_);
    if (flags_ != nullptr) cudaStreamDestroy(flags_);
    if (copiedEvent_ != nullptr) cudaEventDestroy(copiedEvent_);
    if (order_ != nullptr) cudaEventDestroy(order_);
    if (perThread_ != nullptr) cudaEventDestroy(perThread_);
    cards_.reset();
    if (cardQueues_ != nullptr) cudaFree(cardQueues_);
    if (memory_.own != nullptr) cudaFree(memory_.own);
    if (memory_.splitCounts != nullptr) cudaFree(memory_.splitCounts);
    if (pinned_ != nullptr) cudaFreeHost(pinned_);
  } catch (const std::exception& e) {
    MK_WARN(init, "freeing the memory of device %d: %s", device_, e.what());
  }
}

std::string CudaPlatform::pciBusId() const {
  char id[32] = "";
  check(cudaDeviceGetPCIBusId(id, sizeof(id), device_), "asking for the device's PCI bus id");
  return id;
}

// The capture mode is part of it: calls of the library never disturb a capture.
int CudaPlatform::bind() const { return enterDevice(device_); }

void CudaPlatform::restore(int before) const { leaveDevice(device_, before); }

uint32_t CudaPlatform::memoryKind() const { return MK_MEMORY_KIND_CUDA; }

void CudaPlatform::setUp(int, const sched::Place& place, const sched::RankMap& ranks, const Heap& heap,
                         const Settings& settings) {
  if (place.locals > kernels::kMaxLocals)
    fail(mkErrorNotSupported, "%u ranks on a node; legal on the CUDA platform: up to %u", place.locals,
         kernels::kMaxLocals);
  memory_.place = place;
  memory_.heapLayout = heap.layout();
  memory_.controlLayout = heap.control();
  for (uint32_t l = 0; l < place.locals; ++l) memory_.heaps[l] = heap.base(l);
  memory_.ringSlots = settings.ringSlots;
  memory_.timeoutNs = static_cast<uint64_t>(settings.timeoutMs) * 1'000'000u;

  viewWords_ = OwnLayout::firstCounter(place.locals, place.nodes);
  const uint64_t queues = place.nodes > 1 ? place.nodes : 0;
  const uint64_t tableAt = viewWords_ + sched::kMaxSlots + queues * kQueueWords;
  const uint64_t tableBytes = ranks.table != nullptr ? place.nodes * place.locals * sizeof(uint32_t) : 0;
  const uint64_t words = tableAt + sched::ceilDiv(tableBytes, sizeof(uint64_t));
  if (cudaMalloc(reinterpret_cast<void**>(&memory_.own), words * sizeof(uint64_t)) != cudaSuccess)
    throw std::bad_alloc();
  if (place.nodes == 1) {
    const sched::SplitMemory split{clusters_};
    if (cudaMalloc(reinterpret_cast<void**>(&memory_.splitCounts), split.bytes()) != cudaSuccess)
      throw std::bad_alloc();
    memory_.splitSums = reinterpret_cast<char*>(memory_.splitCounts) + split.countBytes();
    memory_.splitSlots = split.slots;
    check(cudaMemsetAsync(memory_.splitCounts, 0, split.countBytes(), side_), "clearing the counts of parts of tiles");
  }
  uint64_t bytes = 0;
  const auto take = [&bytes](uint64_t size) {
    const uint64_t at = bytes;
    bytes += sched::alignUp(size, kPinnedAlign);
    return at;
  };
  const uint64_t hostAt = take(kernels::HostWords::retired(queues) * sizeof(uint64_t));
  const uint64_t recordAt = take(sizeof(protocol::FailRecord));
  const uint64_t copiedAt = take((viewWords_ + kRevokedWord) * sizeof(uint64_t));
  const uint64_t raisedAt = take(kRaised * sizeof(uint64_t));
  const uint64_t ringAt = take(settings.ringSlots * sizeof(mkCommand_t));
  check(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), bytes, cudaHostAllocPortable | cudaHostAllocMapped),
        "allocating pinned memory");
  std::memset(pinned_, 0, bytes);
  memory_.host = reinterpret_cast<uint64_t*>(pinned_ + hostAt);
  memory_.record = new (pinned_ + recordAt) protocol::FailRecord;
  memory_.ring = reinterpret_cast<mkCommand_t*>(pinned_ + ringAt);
  copied_ = reinterpret_cast<uint64_t*>(pinned_ + copiedAt);
  raised_ = reinterpret_cast<uint64_t*>(pinned_ + raisedAt);
  memory_.host[kernels::HostWords::enteredNewest] = settings.epochStart;

  view_.assign(viewWords_, 0);
  view_[OwnLayout::epoch] = view_[OwnLayout::donePublished] = view_[OwnLayout::enteredNewest] = settings.epochStart;
  std::memcpy(copied_, view_.data(), viewWords_ * sizeof(uint64_t));
  check(cudaMemsetAsync(memory_.own, 0, words * sizeof(uint64_t), side_), "clearing private words");
  check(cudaMemcpyAsync(memory_.own, copied_, viewWords_ * sizeof(uint64_t), cudaMemcpyHostToDevice, side_),
        "setting private words");
  if (ranks.table != nullptr) {
    memory_.rankTable = reinterpret_cast<const uint32_t*>(memory_.own + tableAt);
    check(cudaMemcpyAsync(memory_.own + tableAt, ranks.table, tableBytes, cudaMemcpyHostToDevice, side_),
          "handing over the table of ranks");
  }
  check(cudaStreamSynchronize(side_), "setting private words");
  copied_[viewWords_] = kRevokedWord;
  viewAt_ = progressAt_ = nowNs();
  requestView();  // whatever such a copy loads on first use is loaded now
  check(cudaStreamSynchronize(side_), "reading private words");
  takeView();
}

// A kernel that read host memory would take the whole context with it.
void CudaPlatform::requireOperand(const void* ptr, const char* name) const {
  CUmemorytype type = {};
  unsigned managed = 0;
  int owner = -1;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &owner};
  const CUresult e =
      driver().pointerAttributes(3, names, values, static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(ptr)));
  if (e == CUDA_SUCCESS && (managed != 0 || (type == CU_MEMORYTYPE_DEVICE && owner == device_))) return;
  if (e == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE)
    fail(mkErrorInvalidArgument, "%s.data is %p, memory of device %d; legal: memory of the communicator's device, %d",
         name, ptr, owner, device_);
  fail(mkErrorInvalidArgument, "%s.data is %p, which is not device memory; legal: memory of device %d", name, ptr,
       device_);
}

uint64_t CudaPlatform::hostWord(uint64_t index) const {
  return std::atomic_ref<uint64_t>(memory_.host[index]).load(std::memory_order_acquire);
}

ProxyShared CudaPlatform::proxyShared() {
  ProxyShared shared;
  shared.ring = memory_.ring;
  shared.ringSlots = memory_.ringSlots;
  shared.credits = memory_.host + kernels::HostWords::credits;
  shared.completions = memory_.host + kernels::HostWords::completions;
  shared.enteredNewest = memory_.host + kernels::HostWords::enteredNewest;
  return shared;
}

uint64_t CudaPlatform::completions() const { return hostWord(kernels::HostWords::completions); }

// ---- Looking at the words ------------------------------------------------------------------------------------------------

// With viewMutex_ held, as takeView().
void CudaPlatform::requestView() {
  check(cudaMemcpyAsync(copied_, memory_.own, viewWords_ * sizeof(uint64_t), cudaMemcpyDeviceToHost, side_),
        "reading private words");
  check(cudaEventRecord(copiedEvent_, side_), "reading private words");
  copying_ = true;
}

void CudaPlatform::takeView() {
  copying_ = false;
  viewAt_ = nowNs();
  // Words that nothing but progress changes, and no wait.
  if (std::memcmp(copied_, view_.data(), viewWords_ * sizeof(uint64_t)) == 0) return;
  std::memcpy(view_.data(), copied_, viewWords_ * sizeof(uint64_t));
  progressAt_ = viewAt_;
}

// With viewMutex_ held.  Whether the copy under way has landed.
bool CudaPlatform::awaitView(bool wait) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAnswerMs);
  for (;;) {
    const cudaError_t e = cudaEventQuery(copiedEvent_);
    if (e == cudaSuccess) break;
    if (e != cudaErrorNotReady) check(e, "the device has failed");
    static_cast<void>(cudaGetLastError());
    if (!wait) return false;
    if (std::chrono::steady_clock::now() > deadline)
      fail(mkErrorTimeout, "device %d has not answered a small copy within %d ms", device_, kAnswerMs);
    std::this_thread::yield();
  }
  takeView();
  return true;
}

void CudaPlatform::refresh(bool wait) {
  const OnDevice on(device_);
  const std::lock_guard lock(viewMutex_);
  if (copying_ && !awaitView(wait)) return;
  requestView();
  // What was asked for earlier may have been answered before that which the caller wants to see.
  if (wait) awaitView(true);
}

uint64_t CudaPlatform::word(uint64_t index) const {
  const std::lock_guard lock(viewMutex_);
  return view_[index];
}

bool CudaPlatform::running() const {
  const std::lock_guard lock(viewMutex_);
  return view_[OwnLayout::blocksBegun] != view_[OwnLayout::blocksLeft];
}

// Before all have entered there is no deadline on the device, and its words say who is missing.
LaunchView CudaPlatform::view() const {
  const std::lock_guard lock(viewMutex_);
  LaunchView v;
  v.progressAt = progressAt_;
  v.polledAt = viewAt_;
  const uint64_t epoch = view_[OwnLayout::epoch] + 1;
  v.epoch = epoch;
  if (view_[OwnLayout::blocksBegun] == view_[OwnLayout::blocksLeft] || view_[OwnLayout::allEntered] == epoch) return v;
  v.waits.stage = protocol::Stage::entered;
  const sched::Place& at = memory_.place;
  for (uint32_t l = 0; l < at.locals; ++l) {
    if (l == at.local || view_[OwnLayout::peerOpen(l)] == epoch) continue;
    v.waits.local = static_cast<int32_t>(l);
    return v;
  }
  for (uint32_t n = 0; n < at.nodes; ++n) {
    if (n == at.node || view_[OwnLayout::railOpen(at.locals, n)] == epoch) continue;
    v.waits.node = static_cast<int32_t>(n);
    return v;
  }
  v.waits.stage = protocol::Stage::none;  // for a local peer whose own rail is not complete: it says so itself
  return v;
}

bool CudaPlatform::hasRecord() const {
  return memory_.record != nullptr &&
         std::atomic_ref<uint32_t>(memory_.record->kind).load(std::memory_order_acquire) != protocol::FailRecord::none;
}

// ---- Writing words -------------------------------------------------------------------------------------------------------

void CudaPlatform::raiseFlag(uint64_t offset, uint64_t value) {
  if (++raisedCount_ % (kRaised / 2) == 0) check(cudaStreamSynchronize(flags_), "raising flags");
  uint64_t* const from = raised_ + raisedCount_ % kRaised;
  *from = value;
  check(
      cudaMemcpyAsync(memory_.heaps[memory_.place.local] + offset, from, sizeof(value), cudaMemcpyHostToDevice, flags_),
      "raising a flag");
}

void CudaPlatform::revoke() {
  try {
    const OnDevice on(device_);
    check(cudaMemcpyAsync(memory_.own + OwnLayout::revoked, copied_ + viewWords_, sizeof(uint64_t),
                          cudaMemcpyHostToDevice, side_),
          "revoking");
  } catch (const Error& e) {
    MK_WARN(launch, "%s", e.what());  // the device has failed: nothing runs on it any more
  }
}

// ---- Network cards' queues -----------------------------------------------------------------------------------------------

void CudaPlatform::setCards(const std::vector<protocol::Mlx5Queue>& queues) {
  using Queue = protocol::Mlx5Queue;
  const OnDevice on(device_);
  const bool first = cards_ == nullptr;
  if (first) cards_ = std::make_unique<CardMap>(device_);
  if (cardQueues_ == nullptr &&
      cudaMalloc(reinterpret_cast<void**>(&cardQueues_), queues.size() * sizeof(Queue)) != cudaSuccess)
    throw std::bad_alloc();
  std::vector<Queue> mapped(queues.size());
  for (uint32_t n = 0; n < queues.size(); ++n) {
    if (queues[n].entries == nullptr) continue;
    Queue& q = mapped[n] = cards_->map(queues[n]);
    q.firstWord = viewWords_ + sched::kMaxSlots + n * kQueueWords;
    q.retiredWord = kernels::HostWords::kHere + kernels::HostWords::retired(n);
    if (!first) continue;
    std::atomic_ref<uint64_t>(*cardRetired(n)).store(q.firstIndex, std::memory_order_relaxed);
    uint64_t words[Queue::firstMark] = {};
    for (const auto word : {Queue::taken, Queue::tail, Queue::posted, Queue::seen}) words[word] = q.firstIndex;
    check(cudaMemcpyAsync(memory_.own + q.firstWord, words, sizeof(words), cudaMemcpyHostToDevice, side_),
          "setting the words of a network card's queue");
  }
  check(cudaMemcpyAsync(cardQueues_, mapped.data(), mapped.size() * sizeof(Queue), cudaMemcpyHostToDevice, side_),
        "handing over network cards' queues");
  check(cudaStreamSynchronize(side_), "handing over network cards' queues");
  memory_.cardQueues = cardQueues_;
}

void CudaPlatform::dropCards() {
  memory_.cardQueues = nullptr;
  cards_.reset();
}

}  // namespace mk::cuda
