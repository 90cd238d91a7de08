// See gpu_traffic.h.
#include "cuda/gpu_traffic.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/gpu_watch.h"

namespace test {
namespace {

using namespace std::chrono_literals;

constexpr size_t kChunk = 256 << 10;
constexpr std::byte kGuard{0xa5}, kSpent{0x5a};

unsigned long long wide(uint64_t value) { return value; }

class Pinned {
 public:
  explicit Pinned(size_t bytes)
      : device_(CudaDevice::current()), data_(static_cast<std::byte*>(device_.pinned(bytes))) {}
  ~Pinned() { device_.releasePinned(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  std::byte* data() const { return data_; }

 private:
  CudaDevice& device_;
  std::byte* const data_;
};

// ---- Traffic -------------------------------------------------------------------------------------------------------

constexpr size_t kSlots = 200;
constexpr size_t kFlags = 4096;  // bytes for them, and for what guards them

struct Slot {
  uint64_t bytes, at;  // in both memories
};

// The same on both ranks.
std::vector<Slot> makeSlots(uint64_t seed) {
  constexpr uint64_t kSizes[] = {0, 1, 8, 24, 1000, 4096, 65536, 65549, kChunk, kChunk, 1 << 20};
  std::mt19937_64 random(seed);
  std::vector<Slot> slots(kSlots);
  uint64_t at = kFlags;
  for (Slot& slot : slots) {
    slot = {kSizes[random() % std::size(kSizes)], at};
    at += slot.bytes + (random() % 2 == 0 ? 0 : random() % 40);  // some are contiguous
  }
  return slots;
}

// One round of it: fresh patterns, all written once.
class Round {
 public:
  Round(Link& link, uint64_t seed)
      : link_(link),
        rank_(link.rank()),
        peer_(1 - rank_.index),
        seed_(seed),
        slots_(makeSlots(seed)),
        bytes_(slots_.back().at + slots_.back().bytes + kFlags),
        in_(bytes_),
        out_(bytes_),
        host_(bytes_),
        flags_(kFlags),
        now_(bytes_) {
    CudaDevice& device = CudaDevice::current();
    std::memset(host_.data(), static_cast<int>(kGuard), bytes_);
    std::memset(host_.data(), 0, kSlots * 8);
    device.copy(in_.data(), host_.data(), bytes_);
    for (size_t i = 0; i < kSlots; ++i)
      fillPattern(host_.data() + slots_[i].at, slots_[i].bytes, pattern(rank_.index, i));
    device.copy(out_.data(), host_.data(), bytes_);
    std::memset(host_.data(), static_cast<int>(kSpent), bytes_);
    Bytes unused;
    local_ = link_.registerMemory(out_.piece(), &unused);
    remote_ = link_.share(in_.piece())[static_cast<size_t>(peer_)];
    rank_.barrier();
  }

  void run() {
    const auto deadline = rank_.deadline();
    size_t posted = 0;
    while (sent_ < kSlots || seen_ < kSlots) {
      expect(Clock::now() < deadline, "lost: %zu completions and %zu notifications of %zu", sent_, seen_, kSlots);
      if (posted < kSlots) posted += post(posted);
      for (const Event& event : link_.poll()) handle(event);
      if (link_.ordered()) lookAtFlags();
    }
    checkSilence();
  }

 private:
  uint64_t pattern(int from, size_t slot) const { return mix(seed_, static_cast<uint64_t>(from), slot); }

  size_t post(size_t from) {
    std::vector<Write> writes(std::min<size_t>(8, kSlots - from));
    for (size_t i = 0; i < writes.size(); ++i) {
      const Slot& slot = slots_[from + i];
      Write& write = writes[i];
      write.source = out_.data() + slot.at;
      write.localMemory = local_;
      write.remoteMemory = write.flagMemory = remote_;
      write.remoteOffset = slot.at;
      write.bytes = slot.bytes;
      write.flagOffset = 8 * (from + i);
      write.flagValue = from + i + 1;
      write.immediate = static_cast<uint32_t>(from + i);
      write.queue = static_cast<uint32_t>((from + i) % 3);
      write.cookie = from + i;
    }
    return static_cast<size_t>(link_.post(peer_, writes.data(), static_cast<int>(writes.size())));
  }

  void handle(const Event& event) {
    expect(event.kind != MK_EVENT_ERROR, "error event: %s", link_.table().lastError());
    if (event.kind == MK_EVENT_ARRIVED) {
      expect(event.immediate < kSlots, "arrival %u was never sent", event.immediate);
      return notified(event.immediate);
    }
    expect(event.status == mkSuccess, "write %llu completed with status %d", wide(event.cookie), event.status);
    ++sent_;
    // From here on the source is ours again.
    const Slot& slot = slots_[event.cookie];
    if (slot.bytes > 0) CudaDevice::current().copy(out_.data() + slot.at, host_.data() + slot.at, slot.bytes);
  }

  void lookAtFlags() {
    CudaDevice::current().copy(flags_.data(), in_.data(), kSlots * 8);
    for (size_t i = 0; i < kSlots; ++i) {
      uint64_t value;
      std::memcpy(&value, flags_.data() + 8 * i, 8);
      expect(value == 0 || value == i + 1, "flag %zu has the value %llu", i, wide(value));
      if (value != 0 && !done_[i]) notified(i);
    }
  }

  void notified(size_t i) {
    const Slot& slot = slots_[i];
    if (slot.bytes > 0) {
      CudaDevice::current().copy(now_.data(), in_.data() + slot.at, slot.bytes);
      const int64_t wrong = findDifference(now_.data(), slot.bytes, pattern(peer_, i));
      expect(wrong < 0, "payload of write %zu (%llu bytes) is wrong from byte %lld on at its notification", i,
             wide(slot.bytes), static_cast<long long>(wrong));
    }
    if (!done_[i]) ++seen_;
    done_[i] = true;
  }

  void checkSilence() {
    CudaDevice& device = CudaDevice::current();
    rank_.barrier();
    device.copy(now_.data(), in_.data(), bytes_);
    uint64_t from = kSlots * 8;
    for (size_t i = 0; i <= kSlots; ++i) {
      const uint64_t to = i < kSlots ? slots_[i].at : bytes_;
      expect(findOther(now_.data() + from, to - from, kGuard) < 0, "the guard before write %zu is overwritten", i);
      if (i == kSlots) break;
      expect(findDifference(now_.data() + to, slots_[i].bytes, pattern(peer_, i)) < 0, "write %zu has changed", i);
      from = to + slots_[i].bytes;
    }
    device.copy(in_.data(), host_.data(), bytes_);
    for (const Event& event : link_.pollFor(10ms))
      expect(event.kind == MK_EVENT_ARRIVED, "event of kind %u after completion", event.kind);
    device.copy(now_.data(), in_.data(), bytes_);
    expect(findOther(now_.data(), bytes_, kSpent) < 0, "memory is written after completion");
    rank_.barrier();
    link_.releaseMemory(remote_);
    link_.deregisterMemory(local_);
    rank_.barrier();
  }

  Link& link_;
  Rank& rank_;
  const int peer_;
  const uint64_t seed_;
  const std::vector<Slot> slots_;
  const size_t bytes_;
  SharedMemory in_, out_;
  Pinned host_, flags_, now_;
  void *local_ = nullptr, *remote_ = nullptr;
  size_t sent_ = 0, seen_ = 0;
  std::vector<bool> done_ = std::vector<bool>(kSlots);
};

// ---- Chunks --------------------------------------------------------------------------------------------------------

// Flags, then a window of chunks; chunk n goes to place n % window.
class Chunks {
 public:
  Chunks(Link& link, size_t window, bool contiguous)
      : link_(link),
        window_(window),
        // Coprime to any power of two, and never neighbours.
        stride_(contiguous ? 1 : 7),
        flagBytes_((window * 8 + kChunk - 1) / kChunk * kChunk),
        in_(flagBytes_ + window * kChunk),
        out_(window * kChunk) {
    Pinned host(kChunk);
    for (size_t i = 0; i < window_; ++i) {
      uint64_t* const words = reinterpret_cast<uint64_t*>(host.data());
      for (uint64_t word = 0; word < kChunk / 8; ++word) words[word] = watchedWord(i, word);
      CudaDevice::current().copy(out_.data() + i * kChunk, host.data(), kChunk);
    }
    std::memset(host.data(), 0, kChunk);
    for (size_t at = 0; at < in_.bytes(); at += kChunk)
      CudaDevice::current().copy(in_.data() + at, host.data(), kChunk);
    Bytes unused;
    local_ = link.registerMemory(out_.piece(), &unused);
    remote_ = link.share(in_.piece())[static_cast<size_t>(1 - link.rank().index)];
  }

  std::byte* flags() const { return in_.data(); }
  std::byte* payload() const { return in_.data() + flagBytes_; }

  // Sends and completes `count`; seconds it took.
  double send(size_t count) {
    const int peer = 1 - link_.rank().index;
    const auto start = Clock::now(), deadline = link_.rank().deadline();
    for (size_t posted = 0, sent = 0; sent < count;) {
      // In batches as a proxy has them.
      Write writes[8];
      int ready = 0;
      for (; ready < 8 && posted + static_cast<size_t>(ready) < count; ++ready)
        writes[ready] = write(posted + static_cast<size_t>(ready));
      if (ready > 0) posted += static_cast<size_t>(link_.post(peer, writes, ready));
      Event events[32];
      int got = 0;
      link_.rank().plugin.succeed(link_.table().poll(link_.endpoint(), events, 32, &got), "poll");
      for (int i = 0; i < got; ++i) {
        expect(events[i].kind != MK_EVENT_ERROR, "error event: %s", link_.table().lastError());
        expect(events[i].kind == MK_EVENT_ARRIVED || events[i].status == mkSuccess, "a write failed");
        sent += events[i].kind == MK_EVENT_SENT;
      }
      expect(Clock::now() < deadline, "%zu of %zu chunks completed by the deadline", sent, count);
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // At the end of the peer's: its last window is here.
  void check() const {
    Pinned host(kChunk);
    for (size_t i = 0; i < window_; ++i) {
      CudaDevice::current().copy(host.data(), payload() + i * kChunk, kChunk);
      const uint64_t* const words = reinterpret_cast<const uint64_t*>(host.data());
      for (uint64_t word = 0; word < kChunk / 8; ++word)
        expect(words[word] == watchedWord(i, word), "word %llu of chunk %zu is wrong", wide(word), i);
    }
  }

 private:
  Write write(size_t number) const {
    const size_t place = number * stride_ % window_;
    Write write = {};
    write.source = out_.data() + place * kChunk;
    write.localMemory = local_;
    write.remoteMemory = write.flagMemory = remote_;
    write.remoteOffset = flagBytes_ + place * kChunk;
    write.bytes = kChunk;
    write.flagOffset = 8 * place;
    write.flagValue = watchedFlag(place);
    write.immediate = static_cast<uint32_t>(number);
    return write;
  }

  Link& link_;
  const size_t window_, stride_, flagBytes_;
  SharedMemory in_, out_;
  void *local_ = nullptr, *remote_ = nullptr;
};

void tell(const Rank& rank, const char* name, size_t chunks, double seconds) {
  std::printf("%-40s rank %d: %6.1f GB/s, %.2f us per chunk and flag\n", name, rank.index,
              static_cast<double>(chunks * kChunk) / seconds * 1e-9, seconds / static_cast<double>(chunks) * 1e6);
  std::fflush(stdout);
}

}  // namespace

void gpuTraffic(Rank& rank) {
  Link link(rank);
  for (uint64_t seed = 1; seed <= 3; ++seed) Round(link, seed).run();
}

void gpuSpeed(Rank& rank, const SpeedRun& run) {
  Link link(rank);
  Chunks chunks(link, std::min<size_t>(run.chunks, 256), run.contiguous);
  rank.barrier();
  chunks.send(std::min<size_t>(run.chunks, 256));
  rank.barrier();
  const double seconds = chunks.send(run.chunks);
  tell(rank, run.name, run.chunks, seconds);
  rank.barrier();
  chunks.check();
  const double rate = static_cast<double>(run.chunks * kChunk) / seconds * 1e-9;
  expect(rate >= run.least, "%.1f GB/s; at least %g are wanted", rate, run.least);
  expect(run.most == 0 || rate <= run.most, "%.1f GB/s; the model allows %g", rate, run.most);
  rank.barrier();
}

void gpuWatched(Rank& rank, size_t count) {
  Link link(rank);
  Chunks chunks(link, count, false);
  Watch watch(chunks.flags(), chunks.payload(), count, kChunk / 8);
  rank.barrier();
  watch.start();
  rank.barrier();  // the peer's is launched too
  const double seconds = chunks.send(count);
  const auto deadline = rank.deadline();
  while (!watch.done()) {
    link.poll();
    expect(Clock::now() < deadline, "the kernel that watches does not end");
  }
  tell(rank, "beside a kernel that fills the GPU", count, seconds);
  expect(watch.missing() == 0, "%llu flags were not seen in time", wide(watch.missing()));
  expect(watch.wrong() == 0, "%llu words were wrong when their flag was seen", wide(watch.wrong()));
  rank.barrier();
}

}  // namespace test
