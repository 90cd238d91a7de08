// See link.h.
#include "link.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

namespace test {

namespace {

class HostMemory final : public MemorySource {
 public:
  mkTransportMemory_t make(size_t bytes) override {
    mkTransportMemory_t memory = {};
    memory.structSize = sizeof(memory);
    memory.kind = MK_MEMORY_KIND_HOST;
    memory.bytes = bytes;
    memory.fd = memfd_create("mkernel-test", MFD_CLOEXEC);
    expect(memory.fd >= 0 && ftruncate(memory.fd, static_cast<off_t>(bytes)) == 0, "no memory of %zu bytes", bytes);
    memory.address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    expect(memory.address != MAP_FAILED, "no mapping of %zu bytes", bytes);
    return memory;
  }
  void destroy(const mkTransportMemory_t& memory) override {
    munmap(memory.address, memory.bytes);
    ::close(memory.fd);
  }
} hostMemory;

class RepeatedMemory final : public MemorySource {
 public:
  mkTransportMemory_t make(size_t bytes) override {
    mkTransportMemory_t memory = hostMemory.make(bytes);
    if (bytes <= size_t{1} << 30) return memory;
    const int filler = memfd_create("mkernel-test-filler", MFD_CLOEXEC);
    expect(filler >= 0 && ftruncate(filler, kPiece) == 0, "no memory of %zu bytes", kPiece);
    for (size_t at = kPiece; at + 2 * kPiece <= bytes; at += kPiece) {
      const size_t past = at % (size_t{1} << 32);
      if (past < kPiece || past + kPiece == size_t{1} << 32) continue;
      void* const place = static_cast<std::byte*>(memory.address) + at;
      expect(mmap(place, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, filler, 0) == place,
             "no mapping of %zu bytes", kPiece);
    }
    ::close(filler);
    return memory;
  }
  void destroy(const mkTransportMemory_t& memory) override { hostMemory.destroy(memory); }

 private:
  static constexpr size_t kPiece = 2 << 20;
} repeated;

thread_local MemorySource* memorySource = &hostMemory;

}  // namespace

void useMemory(MemorySource* source) { memorySource = source != nullptr ? source : &hostMemory; }

MemorySource& repeatedMemory() { return repeated; }

SharedMemory::SharedMemory(size_t bytes) : source_(memorySource), bytes_(bytes), memory_(source_->make(bytes)) {}

SharedMemory::~SharedMemory() { source_->destroy(memory_); }

mkTransportMemory_t SharedMemory::piece(size_t offset, size_t bytes) const {
  mkTransportMemory_t memory = memory_;
  memory.address = data() + offset;
  memory.bytes = bytes != 0 ? bytes : memory_.bytes - offset;
  memory.fdOffset = offset;
  return memory;
}

Link::Link(Rank& rank) : rank_(rank) {
  Bytes address(MK_TRANSPORT_ADDRESS_BYTES);
  const int device = rank_.index % rank_.setup.devices;
  rank_.plugin.succeed(table().open(rank_.plugin.context(), device, &endpoint_, address.data()), "open");
  Bytes all;
  for (const Bytes& one : rank_.allgather(address)) all.insert(all.end(), one.begin(), one.end());
  rank_.plugin.succeed(table().connect(endpoint_, rank_.count, rank_.index, all.data(), rank_.setup.waitMs), "connect");
}

Link::~Link() {
  if (endpoint_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    try {
      rank_.exchange.announceFailure(rank_.index);
    } catch (const std::exception&) {
      // Told or not, the endpoint has to be closed.
    }
  }
  table().close(endpoint_);
}

void Link::close() { rank_.plugin.succeed(table().close(std::exchange(endpoint_, nullptr)), "close"); }

void* Link::registerMemory(const mkTransportMemory_t& memory, Bytes* key) {
  key->resize(MK_TRANSPORT_KEY_BYTES);
  void* handle = nullptr;
  rank_.plugin.succeed(table().registerMemory(endpoint_, &memory, &handle, key->data()), "registerMemory");
  return handle;
}

void Link::deregisterMemory(void* handle) {
  rank_.plugin.succeed(table().deregisterMemory(endpoint_, handle), "deregisterMemory");
}

void* Link::importMemory(int peer, const Bytes& key) {
  void* remote = nullptr;
  rank_.plugin.succeed(table().importMemory(endpoint_, peer, key.data(), rank_.setup.waitMs, &remote), "importMemory");
  return remote;
}

void Link::releaseMemory(void* remote) {
  rank_.plugin.succeed(table().releaseMemory(endpoint_, remote), "releaseMemory");
}

std::vector<void*> Link::share(const mkTransportMemory_t& memory) {
  Bytes key;
  std::vector<void*> result(static_cast<size_t>(rank_.count));
  result[static_cast<size_t>(rank_.index)] = registerMemory(memory, &key);
  const std::vector<Bytes> keys = rank_.allgather(key);
  for (int peer = 0; peer < rank_.count; ++peer)
    if (peer != rank_.index) result[static_cast<size_t>(peer)] = importMemory(peer, keys[static_cast<size_t>(peer)]);
  return result;
}

int Link::post(int peer, const Write* writes, int count) {
  int accepted = -1;
  rank_.plugin.succeed(table().post(endpoint_, peer, writes, count, &accepted), "post");
  expect(accepted >= 0 && accepted <= count, "post of %d writes accepted %d", count, accepted);
  return accepted;
}

void Link::postAll(int peer, std::vector<Write> writes) {
  const auto deadline = rank_.deadline();
  for (size_t done = 0; done < writes.size();) {
    done += static_cast<size_t>(post(peer, writes.data() + done, static_cast<int>(writes.size() - done)));
    if (done == writes.size()) return;
    expect(Clock::now() < deadline, "%zu of %zu writes are not accepted", writes.size() - done, writes.size());
    for (const Event& event : poll()) seen_.push_back(event);
  }
}

std::vector<Event> Link::poll(int capacity) {
  std::vector<Event> events(static_cast<size_t>(capacity));
  int count = -1;
  rank_.plugin.succeed(table().poll(endpoint_, events.data(), capacity, &count), "poll");
  expect(count >= 0 && count <= capacity, "poll with room for %d events returned %d", capacity, count);
  if (count == 0) std::this_thread::yield();  // there are more ranks than cores
  events.resize(static_cast<size_t>(count));
  return events;
}

std::vector<Event> Link::awaitSent(size_t count) {
  const auto deadline = rank_.deadline();
  std::vector<Event> all = std::exchange(seen_, {});
  size_t sent = 0, looked = 0;
  for (;;) {
    for (; looked < all.size(); ++looked) {
      if (all[looked].kind != MK_EVENT_SENT) continue;
      expect(all[looked].status == mkSuccess, "a write completed with status %d", all[looked].status);
      ++sent;
    }
    expect(sent <= count, "%zu completions for %zu writes", sent, count);
    if (sent == count) return all;
    expect(Clock::now() < deadline, "%zu of %zu completions have not come: lost", count - sent, count);
    for (const Event& event : poll()) all.push_back(event);
  }
}

void Link::awaitNotification(int peer, uint32_t value, std::byte* flag) { await(peer, value, flag, false); }

void Link::awaitArrival(int peer, uint32_t value, std::byte* flag) { await(peer, value, flag, true); }

void Link::await(int peer, uint32_t value, std::byte* flag, bool sent) {
  const auto deadline = rank_.deadline();
  bool arrived = false;
  std::vector<Event> events = std::exchange(seen_, {});
  while (!sent || !arrived) {
    for (const Event& event : events) {
      expect(event.kind != MK_EVENT_ERROR || event.peer != peer, "peer %d has failed: %s", peer, table().lastError());
      if (event.peer != peer) continue;
      if (event.kind == MK_EVENT_SENT) {
        expect(event.status == mkSuccess, "a write to peer %d completed with status %d", peer, event.status);
        sent = true;
      }
      // Earlier immediates may repeat.
      if (event.kind == MK_EVENT_ARRIVED && event.immediate == value) arrived = true;
    }
    if (ordered() && loadFlag(flag) == value) arrived = true;
    expect(Clock::now() < deadline, "lost: peer %d: completion %s, notification %s", peer, sent ? "came" : "missing",
           arrived ? "came" : "missing");
    events = poll();
  }
  seen_ = std::move(events);
}

std::vector<Event> Link::pollFor(std::chrono::milliseconds time) {
  std::vector<Event> all = std::exchange(seen_, {});
  for (const auto end = Clock::now() + time; Clock::now() < end;)
    for (const Event& event : poll()) all.push_back(event);
  return all;
}

uint64_t loadFlag(std::byte* flag) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(flag)).load(std::memory_order_acquire);
}

void storeFlag(std::byte* flag, uint64_t value) {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(flag)).store(value, std::memory_order_release);
}

uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t value = a + 0x9e3779b97f4a7c15u * (b + 1) + 0xd1b54a32d192ed03u * (c + 1);
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

namespace {

// Byte i belongs to word i / 8, whatever the alignment.
constexpr size_t kBlock = 512;
void patternBlock(std::array<uint64_t, kBlock / 8>& block, size_t index, uint64_t seed) {
  for (size_t i = 0; i < block.size(); ++i) block[i] = mix(seed, index * block.size() + i);
}

}  // namespace

void fillPattern(std::byte* data, size_t bytes, uint64_t seed) {
  std::array<uint64_t, kBlock / 8> block;
  for (size_t at = 0; at < bytes; at += kBlock) {
    patternBlock(block, at / kBlock, seed);
    std::memcpy(data + at, block.data(), std::min(kBlock, bytes - at));
  }
}

int64_t findDifference(const std::byte* data, size_t bytes, uint64_t seed) {
  std::array<uint64_t, kBlock / 8> block;
  for (size_t at = 0; at < bytes; at += kBlock) {
    patternBlock(block, at / kBlock, seed);
    const size_t length = std::min(kBlock, bytes - at);
    if (std::memcmp(data + at, block.data(), length) == 0) continue;
    for (size_t i = 0; i < length; ++i)
      if (data[at + i] != reinterpret_cast<const std::byte*>(block.data())[i]) return static_cast<int64_t>(at + i);
  }
  return -1;
}

int64_t findOther(const std::byte* data, size_t bytes, std::byte value) {
  // All are like the first if all are like their neighbours.
  if (bytes == 0 || (*data == value && std::memcmp(data, data + 1, bytes - 1) == 0)) return -1;
  const auto found = std::find_if(data, data + bytes, [&](std::byte one) { return one != value; });
  return found != data + bytes ? found - data : -1;
}

}  // namespace test
