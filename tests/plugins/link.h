// An endpoint in a test, connected to those of the other ranks; memory to register; and bytes that tell where they belong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "world.h"

namespace test {

using Event = mkTransportEvent_t;
using Write = mkTransportWrite_t;

// What SharedMemory is made of.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // At least this many bytes, described as a plugin wants it.
  virtual mkTransportMemory_t make(size_t bytes) = 0;
  virtual void destroy(const mkTransportMemory_t& memory) = 0;
};
// From now on in this thread; null: host memory, as at first.
void useMemory(MemorySource* source);
// For transports that pin what they register: of more than a GiB only 2 MiB at the beginning, at the end and on both sides of
// each 4 GiB mark are memory of their own; in between lie the same few pages again and again.
MemorySource& repeatedMemory();

// Memory that other processes can map.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_.address); }
  size_t bytes() const { return bytes_; }
  // The piece [offset, offset + bytes) as a plugin wants it; offset + bytes 0: all.  Pieces only of host memory.
  mkTransportMemory_t piece(size_t offset = 0, size_t bytes = 0) const;

 private:
  MemorySource* const source_;
  const size_t bytes_;
  mkTransportMemory_t memory_;
};

class Link {
 public:
  // Collective.
  explicit Link(Rank& rank);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  Rank& rank() const { return rank_; }
  const mkTransport_t& table() const { return rank_.plugin.table(); }
  void* endpoint() const { return endpoint_; }
  bool ordered() const { return rank_.plugin.properties().contract == MK_CONTRACT_ORDERED; }

  void* registerMemory(const mkTransportMemory_t& memory, Bytes* key);
  void deregisterMemory(void* handle);
  void* importMemory(int peer, const Bytes& key);
  void releaseMemory(void* remote);
  // Collective: registers on every rank and imports from every other; [own index]: the registration.
  std::vector<void*> share(const mkTransportMemory_t& memory);

  // Number accepted.
  int post(int peer, const Write* writes, int count);
  void postAll(int peer, std::vector<Write> writes);  // by the deadline; polls meanwhile
  std::vector<Event> poll(int capacity = 16);
  // Polls until it has seen `count` completions, all of them successful, and returns all events.
  std::vector<Event> awaitSent(size_t count);
  // Polls until one write has completed and this notification has come: the immediate, or the flag.
  void awaitNotification(int peer, uint32_t value, std::byte* flag);
  // Polls until this notification has come.
  void awaitArrival(int peer, uint32_t value, std::byte* flag);
  // Polls for a while.
  std::vector<Event> pollFor(std::chrono::milliseconds time);
  void close();

 private:
  void await(int peer, uint32_t value, std::byte* flag, bool sent);

  Rank& rank_;
  void* endpoint_ = nullptr;
  std::vector<Event> seen_;  // by postAll, not yet returned
};

// Fills with bytes that are a function of seed and position, or finds the first one that is not (-1: none).
void fillPattern(std::byte* data, size_t bytes, uint64_t seed);
int64_t findDifference(const std::byte* data, size_t bytes, uint64_t seed);
// The same for one value.
int64_t findOther(const std::byte* data, size_t bytes, std::byte value);

// Flags, as their readers and writers beside the plugin have to treat them.
uint64_t loadFlag(std::byte* flag);
void storeFlag(std::byte* flag, uint64_t value);

uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0);

}  // namespace test
