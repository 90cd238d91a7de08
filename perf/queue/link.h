// A transport plugin, loaded by its public table, and one endpoint of it that is connected to the other rank's, with memory
// registered on both sides: what mk_queue_perf measures through.  Every failure is thrown; no call waits without end but
// those that say so, and there the watchdog of World ends the process.  Called by queue.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/world.h"
#include "mkernel/transport.h"

namespace mk::perf {

class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Plugin {
 public:
  // A name or the path of a file.
  explicit Plugin(const std::string& transport);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const mkTransport_t& table() const { return *table_; }
  void* context() const { return context_; }
  const mkTransportProperties_t& properties() const { return properties_; }
  bool ordered() const { return properties_.contract == MK_CONTRACT_ORDERED; }
  const std::string& path() const { return path_; }
  std::string deviceName(int device) const;
  // Throws with the plugin's own reason unless the result is success.
  void succeed(int result, const char* what) const;

 private:
  void take();

  std::string path_;
  void* object_ = nullptr;
  const mkTransport_t* table_ = nullptr;
  void* context_ = nullptr;
  mkTransportProperties_t properties_ = {};
};

// Host memory that other processes can map.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_.address); }
  const mkTransportMemory_t& description() const { return memory_; }

 private:
  mkTransportMemory_t memory_ = {};
};

class Link {
 public:
  static constexpr size_t kSlots = 65536;  // writes to one peer that can be told apart at a time

  // Collective.  `bytes`: of the memory to send from and to receive in.
  Link(World& world, const Plugin& plugin, int device, size_t bytes, uint32_t queues, int timeoutMs);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::byte* source() const { return source_.data(); }
  std::byte* received() const { return received_.data(); }

  // The writes that are to arrive next: numbers first and up.  Larger ones than ever before; the other rank may begin after
  // the next barrier.
  void expect(uint32_t first, size_t count);
  bool arrived(size_t index) const;
  // Write `number` from slot `slot` of the memory here to the same place there; slots are of `bytes` bytes.
  mkTransportWrite_t write(size_t slot, size_t bytes, uint32_t number) const;
  // Number accepted.
  int post(const mkTransportWrite_t* writes, int count);
  void poll();
  // These wait without end.
  void postOne(const mkTransportWrite_t& write);
  void awaitArrival(size_t index);
  void awaitSent();  // of all that was posted
  void barrier();    // makes progress meanwhile, for the other rank may need it

 private:
  void open(int device, int timeoutMs);
  void* share(const SharedMemory& memory, int timeoutMs);
  void* registerMemory(const SharedMemory& memory, uint8_t* key);

  World& world_;
  const Plugin& plugin_;
  const int peer_;
  const uint32_t queues_;
  const bool ordered_;
  SharedMemory source_, received_, flags_;
  void* endpoint_ = nullptr;
  void* sourceHandle_ = nullptr;
  void* remote_ = nullptr;
  void* remoteFlags_ = nullptr;
  int64_t outstanding_ = 0;
  uint32_t first_ = 1;
  std::vector<uint8_t> seen_;  // completion contract: by index
  int idle_ = 0;               // polls in a row that brought nothing
};

}  // namespace mk::perf
