// A GPU that writes a network card's queues itself: many blocks post into queues in pinned host memory, which the software
// network card serves.  `gpu_test check` proves that nothing is lost or torn; `gpu_test compare` prints how long posts take,
// and how many there can be, with the GPU writing entries and with a proxy thread writing them for it.  The card is a thread:
// the figures say what the two ways of posting cost a GPU, not what a real card would do with them.
//
// By hand: nvcc -std=c++20 -O2 -arch=sm_90a -Iinclude -Isrc -Itests -o gpu_test tests/ibgda/gpu_agents.cu
// tests/ibgda/gpu_test.cc tests/ibgda/soft_nic.cc tests/ibgda/wire.cc src/host/cuda_cards.cc src/host/cuda_api.cc src/host/error.cc
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "host/cuda_cards.h"
#include "ibgda/card.h"
#include "ibgda/gpu_agents.h"
#include "protocol/command_ring.h"

namespace {

using namespace mk;
using kernels::HostWords;
using kernels::RankMemory;
using protocol::Mlx5Queue;
using protocol::OwnLayout;
using protocol::Write;

using gpu::kWords;
constexpr int kTimeoutS = 60;  // of a kernel
constexpr uint32_t kMostBlocks = 132;
constexpr uint64_t kRingSlots = 1024;

[[noreturn]] void die(const std::string& text) {
  std::printf("FAIL %s\n", text.c_str());
  std::fflush(stdout);
  _exit(1);
}
#define CUDA(call)                                                                                   \
  do {                                                                                               \
    if (const cudaError_t e = (call); e != cudaSuccess)                                              \
      die(std::string(#call) + ", line " + std::to_string(__LINE__) + ": " + cudaGetErrorString(e)); \
  } while (0)

// ---- Host ----------------------------------------------------------------------------------------------------------

template <class T>
T* pinned(uint64_t count) {
  void* p = nullptr;
  CUDA(cudaHostAlloc(&p, count * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped));
  std::memset(p, 0, count * sizeof(T));
  return static_cast<T*>(p);
}
template <class T>
T* onDevice(uint64_t count) {
  void* p = nullptr;
  CUDA(cudaMalloc(&p, count * sizeof(T)));
  CUDA(cudaMemset(p, 0, count * sizeof(T)));
  return static_cast<T*>(p);
}

// The host's side of posting, for a proxy: the same protocol over plain memory, one thread.
class HostPoster {
 public:
  HostPoster(const sched::Place& place, const sched::HeapLayout& layout, const sched::ControlLayout& control,
             std::vector<Mlx5Queue> queues)
      : place_(place), layout_(layout), control_(control), queues_(std::move(queues)) {
    uint64_t next = OwnLayout::countWords;
    for (Mlx5Queue& q : queues_) {
      q.firstWord = next;
      q.retiredWord = q.word(Mlx5Queue::retired);
      next += Mlx5Queue::countWords(Mlx5Queue::kMaxEntries);
    }
    own_.resize(next);
  }
  sched::Place place() const { return place_; }
  const sched::HeapLayout& heapLayout() const { return layout_; }
  const sched::ControlLayout& controlLayout() const { return control_; }
  uint64_t ringSlots() const { return 0; }
  const Mlx5Queue* cardQueue(uint32_t node) const { return &queues_[node]; }
  uint64_t ownAdd(uint64_t word, uint64_t n) {
    own_[word] += n;
    return own_[word] - n;
  }
  uint64_t ownLoad(uint64_t word) { return own_[word]; }
  uint64_t look(const protocol::FarWord& far) { return own_[far.seen] = own_[far.word]; }
  void write(const protocol::Ref& r, uint64_t value) { own_[r.offset / 8] = value; }
  void publish(const protocol::Ref& r, uint64_t value, protocol::Scope) { write(r, value); }
  void storeCommand(uint64_t, const mkCommand_t&) {}
  void storeEntry(uint64_t* entry, const uint64_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) std::atomic_ref<uint64_t>(entry[i]).store(words[i], std::memory_order_relaxed);
  }
  void storeRecord(uint32_t* record, uint32_t value) {
    std::atomic_ref<uint32_t>(*record).store(value, std::memory_order_release);
  }
  void storeDoorbell(uint64_t* doorbell, uint64_t value) {
    std::atomic_ref<uint64_t>(*doorbell).store(value, std::memory_order_release);
  }
  template <class Work>
  void asOne(Work&& work) {
    work(*this);
  }
  void setRetired(uint32_t node, uint64_t entries) { own_[queues_[node].retiredWord] = entries; }

 private:
  const sched::Place place_;
  const sched::HeapLayout layout_;
  const sched::ControlLayout control_;
  std::vector<Mlx5Queue> queues_;
  std::vector<uint64_t> own_;
};

// Node 0 of three, its rail peers' heaps, the card between them, and a thread that reads completions and, if asked, posts for
// the GPU.
class Rig {
 public:
  static constexpr uint32_t kNodes = 3;
  Rig(uint32_t entries, bool proxy, test::SoftNic::Idle idle) : proxy_(proxy), nic_(idle) {
    control_.nodes = kNodes;
    layout_.controlBytes = control_.bytes();
    layout_.maxWorkspace = 32 * sched::kWorkspaceUnit;
    for (uint32_t n = 0; n < kNodes; ++n) {
      heaps_[n] = pinned<char>(layout_.totalBytes());
      for (uint32_t i = 0; i < sched::HeapLayout::kParts; ++i) {
        const uint64_t begin = layout_.partOffset(i);
        const uint64_t end = i + 1 < sched::HeapLayout::kParts ? layout_.partOffset(i + 1) : layout_.totalBytes();
        keys_[n][i] = nic_.addMemory(heaps_[n] + begin, end - begin, true);
      }
    }
    const uint64_t firstWord = OwnLayout::firstCounter(1, kNodes) + 16;
    const uint64_t words = firstWord + kNodes * Mlx5Queue::countWords(Mlx5Queue::kMaxEntries);
    memory_.own = onDevice<uint64_t>(words);
    const uint64_t entered = 1;
    CUDA(cudaMemcpy(memory_.own + OwnLayout::allEntered, &entered, 8, cudaMemcpyHostToDevice));
    memory_.host = pinned<uint64_t>(HostWords::retired(kNodes));
    memory_.record = pinned<protocol::FailRecord>(1);
    memory_.ring = pinned<mkCommand_t>(kRingSlots);
    memory_.ringSlots = kRingSlots;
    memory_.place = {kNodes, 1, 0, 0};
    memory_.heapLayout = layout_;
    memory_.controlLayout = control_;
    memory_.heaps[0] = heaps_[0];
    memory_.timeoutNs = gpu::kTimeoutNs;

    int device = 0;
    CUDA(cudaGetDevice(&device));
    map_ = std::make_unique<cuda::CardMap>(device);
    std::vector<Mlx5Queue> host(kNodes), mapped(kNodes);
    for (uint32_t n = 1; n < kNodes; ++n) {
      // Memory as a driver would take it, not the GPU's: mapped for it afterwards.
      cards_[n] = makeCard(entries);
      peers_[n] = makeCard(entries);
      nic_.connectPair(cards_[n]->number(), peers_[n]->number());
      nic_.connectPair(peers_[n]->number(), cards_[n]->number());
      Mlx5Queue& q = host[n] = cards_[n]->queue();
      q.firstWord = firstWord + n * Mlx5Queue::countWords(Mlx5Queue::kMaxEntries);
      q.retiredWord = HostWords::kHere + HostWords::retired(n);
      for (uint32_t i = 0; i < sched::HeapLayout::kParts; ++i) {
        q.local[i] = {reinterpret_cast<uint64_t>(heaps_[0]), keys_[0][i]};
        q.remote[i] = {reinterpret_cast<uint64_t>(heaps_[n]), keys_[n][i]};
      }
      mapped[n] = map_->map(q);
    }
    if (!proxy) {
      auto* const queues = onDevice<Mlx5Queue>(kNodes);
      CUDA(cudaMemcpy(queues, mapped.data(), kNodes * sizeof(Mlx5Queue), cudaMemcpyHostToDevice));
      memory_.cardQueues = queues;
    }
    poster_ = std::make_unique<HostPoster>(memory_.place, layout_, control_, host);
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    thread_ = std::thread([this] { loop(); });
  }
  ~Rig() {
    stop_.store(true);
    thread_.join();
    CUDA(cudaStreamDestroy(stream_));
    map_.reset();
    for (char* heap : heaps_) CUDA(cudaFreeHost(heap));
    CUDA(cudaFree(memory_.own));
    CUDA(cudaFree(const_cast<Mlx5Queue*>(memory_.cardQueues)));
    CUDA(cudaFreeHost(memory_.host));
    CUDA(cudaFreeHost(memory_.record));
    CUDA(cudaFreeHost(memory_.ring));
    for (auto& card : cards_) card.reset();
    for (auto& card : peers_) card.reset();
    for (void* memory : cardMemory_) std::free(memory);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  const RankMemory& memory() const { return memory_; }
  cudaStream_t stream() const { return stream_; }
  test::SoftNic& nic() { return nic_; }
  uint64_t completions() const {
    return std::atomic_ref<uint64_t>(memory_.host[HostWords::completions]).load(std::memory_order_acquire);
  }
  const uint64_t* heapWord(uint32_t node, uint64_t offset) const {
    return reinterpret_cast<const uint64_t*>(heaps_[node] + offset);
  }
  // Flags lie in the bank of their epoch.
  const uint64_t* flag(uint32_t node, uint64_t place, uint64_t epoch) const {
    return heapWord(node, sched::arrivalFlag(layout_, control_, sched::kControlSlots + place, 0, epoch));
  }

  // Until the kernel has ended and `commands` have completed; says what went wrong.
  void finish(uint64_t commands, const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kTimeoutS);
    const auto late = [&] { return std::chrono::steady_clock::now() > deadline; };
    for (;;) {
      const cudaError_t e = cudaStreamQuery(stream_);
      if (e == cudaSuccess) break;
      if (e != cudaErrorNotReady) die(std::string(what) + ": " + cudaGetErrorString(e));
      if (late()) die(std::string(what) + ": the kernel does not end" + complaint());
    }
    if (memory_.record->kind != protocol::FailRecord::none)
      die(std::string(what) + ": an agent waited in vain for " + protocol::stageName(memory_.record->why.stage) +
          ", expected " + std::to_string(memory_.record->expected) + ", saw " + std::to_string(memory_.record->seen) +
          complaint());
    while (completions() < commands)
      if (late())
        die(std::string(what) + ": " + std::to_string(completions()) + " of " + std::to_string(commands) +
            " commands have completed" + complaint());
    if (completions() != commands) die(std::string(what) + ": more completions than commands");
    if (const std::string c = complaint(); !c.empty()) die(what + c);
    if (errors_.load() != 0) die(std::string(what) + ": " + std::to_string(errors_.load()) + " error completions");
  }

 private:
  std::unique_ptr<test::Card> makeCard(uint32_t entries) {
    const uint64_t bytes = (test::Card::bytes(entries) + 4095) / 4096 * 4096;
    void* const memory = std::aligned_alloc(4096, bytes);
    std::memset(memory, 0, bytes);
    cardMemory_.push_back(memory);
    return std::make_unique<test::Card>(nic_, memory, entries);
  }
  std::string complaint() const {
    const auto all = nic_.complaints();
    return all.empty() ? "" : "; the card: " + all.front();
  }

  void loop() {
    uint64_t taken = 0, completed = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
      for (uint32_t n = 1; n < kNodes; ++n) {
        const test::Card::Retired got = cards_[n]->collect();
        errors_ += got.errors;
        if (got.commands == 0) continue;
        completed += got.commands;
        if (proxy_)
          poster_->setRetired(n, got.entries);
        else
          std::atomic_ref<uint64_t>(memory_.host[HostWords::retired(n)]).store(got.entries, std::memory_order_release);
        std::atomic_ref<uint64_t>(memory_.host[HostWords::completions]).store(completed, std::memory_order_release);
      }
      for (int batch = 0; proxy_ && batch < 8; ++batch) {
        const mkCommand_t& slot = memory_.ring[taken % kRingSlots];
        const uint64_t header =
            std::atomic_ref<uint64_t>(const_cast<uint64_t&>(slot.header)).load(std::memory_order_acquire);
        if (mkHeaderLap(header) != mkCommandLap(taken, kRingSlots)) break;
        if (!protocol::tryPost(*poster_, Write{mkHeaderPeer(header), mkPlaceOffset(slot.source),
                                               mkPlaceOffset(slot.destination), slot.bytes, slot.slot, slot.epoch}))
          break;
        ++taken;
        std::atomic_ref<uint64_t>(memory_.host[HostWords::credits]).store(taken, std::memory_order_release);
      }
    }
  }

  const bool proxy_;
  test::SoftNic nic_;
  sched::HeapLayout layout_;
  sched::ControlLayout control_;
  char* heaps_[kNodes] = {};
  uint32_t keys_[kNodes][sched::HeapLayout::kParts] = {};
  RankMemory memory_;
  std::unique_ptr<cuda::CardMap> map_;
  std::vector<void*> cardMemory_;
  std::unique_ptr<test::Card> cards_[kNodes], peers_[kNodes];
  std::unique_ptr<HostPoster> poster_;
  cudaStream_t stream_ = nullptr;
  std::atomic<uint64_t> errors_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// ---- Modes ---------------------------------------------------------------------------------------------------------

void check(uint32_t entries, uint32_t blocks, uint64_t each) {
  const std::string what = std::to_string(blocks) + " blocks, queues of " + std::to_string(entries);
  Rig rig(entries, false, test::SoftNic::Idle::spin);
  // A place is used again only when the queues, which have room for half as many posts as entries, cannot hold the last one.
  const gpu::Job job{each, entries + 2};
  const uint64_t slots = uint64_t{blocks} * job.places * Rig::kNodes;
  if (slots * 8 > sched::HeapLayout::bankFlagBytes(rig.memory().heapLayout.maxWorkspace))
    die(what + ": too many flags");
  CUDA(gpu::post(rig.memory(), job, blocks, rig.stream()));
  rig.finish(blocks * each, what.c_str());
  const auto c = rig.nic().counters();
  if (c.inlines != blocks * each || c.payloads != blocks * each || c.completions != blocks * each || c.errors != 0)
    die(what + ": the card has carried out " + std::to_string(c.payloads) + " payloads and " +
        std::to_string(c.inlines) + " flags of " + std::to_string(blocks * each));
  uint64_t looked = 0;
  for (uint64_t agent = 0; agent < blocks; ++agent) {
    for (uint64_t i = each - std::min<uint64_t>(each, job.places); i < each; ++i, ++looked) {
      const uint64_t place = agent * job.places + i % job.places, epoch = i + 1;
      const auto node = 1 + static_cast<uint32_t>((i + agent) & 1);
      if (*rig.flag(node, place, epoch) != epoch) die(what + ": a flag is missing");
      for (uint32_t x = 0; x < kWords; ++x)
        if (*rig.heapWord(node, rig.memory().heapLayout.data(0) + (place * kWords + x) * 8) !=
            gpu::payloadWord(place, epoch, x))
          die(what + ": a payload is wrong");
    }
  }
  std::printf("ok   %s: %llu commands, %llu doorbells, newest %llu flags and payloads right\n", what.c_str(),
              static_cast<unsigned long long>(blocks * each), static_cast<unsigned long long>(c.doorbells),
              static_cast<unsigned long long>(looked));
}

void latency(bool proxy) {
  constexpr uint64_t kRounds = 4000;
  Rig rig(1024, proxy, test::SoftNic::Idle::spin);
  auto* const times = pinned<uint64_t>(kRounds);
  CUDA(gpu::bounce(rig.memory(), kRounds, rig.flag(1, 0, 0), rig.flag(1, 0, 1), times, rig.stream()));
  rig.finish(kRounds, "latency");
  std::vector<uint64_t> sorted(times + kRounds / 10, times + kRounds);  // the first are warm-up
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double q) {
    return static_cast<double>(sorted[static_cast<size_t>(q * (sorted.size() - 1))]) / 1000;
  };
  std::printf("latency  %-13s p50 %6.2f us  [p10 %6.2f, p90 %6.2f]\n", proxy ? "proxy-posted" : "GPU-posted", at(0.5),
              at(0.1), at(0.9));
  CUDA(cudaFreeHost(times));
}

void rate(bool proxy, uint32_t blocks) {
  const uint64_t each = std::max<uint64_t>(500, 60000 / blocks);
  Rig rig(1024, proxy, test::SoftNic::Idle::spin);
  const gpu::Job job{each, 8, 1};
  const auto begin = std::chrono::steady_clock::now();
  CUDA(gpu::post(rig.memory(), job, blocks, rig.stream()));
  rig.finish(blocks * each, "rate");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto c = rig.nic().counters();
  std::printf("rate     %-13s %4u agents  %7.3f million posts/s  (%.1f posts per doorbell)\n",
              proxy ? "proxy-posted" : "GPU-posted", blocks, static_cast<double>(blocks * each) / seconds / 1e6,
              static_cast<double>(blocks * each) / static_cast<double>(c.doorbells));
}

// What the card itself can do: entries written by one host thread that does nothing else.
void cardAlone() {
  constexpr uint64_t kPosts = 200000;
  Rig rig(1024, true, test::SoftNic::Idle::spin);
  mkCommand_t* const ring = rig.memory().ring;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < kPosts; ++i) {
    while (i - std::atomic_ref<uint64_t>(rig.memory().host[HostWords::credits]).load(std::memory_order_acquire) >=
           kRingSlots)
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(kTimeoutS)) die("the card stands still");
    mkCommand_t& c = ring[i % kRingSlots];
    c.source = c.destination = mkPlace(MK_MEMORY_HEAP, rig.memory().heapLayout.data(0));
    c.bytes = 8;
    c.slot = sched::kControlSlots;
    c.epoch = i + 1;
    std::atomic_ref<uint64_t>(c.header).store(
        mkCommandHeader(mkCommandLap(i, kRingSlots), MK_COMMAND_OP_WRITE, 0, 1 + static_cast<uint32_t>(i & 1)),
        std::memory_order_release);
  }
  rig.finish(kPosts, "the card alone");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("rate     host threads alone, no GPU:  %7.3f million posts/s: no figure above can pass it\n",
              static_cast<double>(kPosts) / seconds / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const std::string mode = argc > 1 ? argv[1] : "check";
  CUDA(cudaSetDevice(0));
  if (mode == "check") {
    check(1024, 8, 5000);
    check(256, kMostBlocks, 1000);
    check(64, kMostBlocks, 500);
    check(4, 16, 500);
    check(64, 1, 40000);  // past the sixteenth bit of the index
  } else if (mode == "compare") {
    for (const bool proxy : {false, true}) latency(proxy);
    for (const uint32_t blocks : {1u, 8u, 32u, kMostBlocks})
      for (const bool proxy : {false, true}) rate(proxy, blocks);
    cardAlone();
  } else {
    std::printf("usage: gpu_test [check|compare]\n");
    return 2;
  }
  return 0;
}
