// A network card made of software: one thread that reads queues as cards of the mlx5 family are documented to read them
// (work-queue entries, doorbell record, doorbell), carries out RDMA writes between registered memories of this process,
// and writes completions.  Knows nothing of the project's own code and checks every field it reads: what a card would answer by
// silence or by nonsense is a complaint here, and what it would answer by an error completion is one here too.
//
// A register of a real card sees every store to it; this one is memory, and sees the newest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ibgda/wire.h"

namespace test {

class SoftNic {
 public:
  // How the thread waits: spinning is for measurements, and keeps a core busy.
  enum class Idle { sleep, spin };
  // `card`: its number among the cards of other processes, with which it is joined; 0: it is alone.
  explicit SoftNic(Idle idle = Idle::sleep, uint32_t card = 0);
  ~SoftNic();
  SoftNic(const SoftNic&) = delete;
  SoftNic& operator=(const SoftNic&) = delete;

  // `cqes`: 64 bytes each, a power of two; `record`: the consumer's counter.
  uint32_t createCompletions(void* cqes, uint32_t count, const uint32_t* record);
  void destroyCompletions(uint32_t handle);

  struct Pair {
    void* entries = nullptr;  // basic blocks of 64 bytes
    uint32_t entryCount = 0;
    const uint32_t* records = nullptr;  // receive counter, send counter
    uint64_t* doorbell = nullptr;
    uint32_t sendCompletions = 0, receiveCompletions = 0;  // handles; receive: 0 for none
    uint32_t domain = 0;                                   // keys of other protection domains are not for it
    uint32_t maxInline = 64;
  };
  uint32_t createPair(const Pair& pair);  // the number
  // To a pair of this card's, or of another's.
  void connectPair(uint32_t number, uint32_t remote, uint32_t card = 0);
  // As when the peer's process or link is gone: what is posted from now on completes with an error.
  void breakPair(uint32_t number);
  // As when its owner gives it up: what is posted from now on is flushed.
  void stopPair(uint32_t number);
  void destroyPair(uint32_t number);

  // What this process cannot simply read and write.
  class FarMemory {
   public:
    virtual ~FarMemory() = default;
    virtual void read(char* to, uint64_t from, uint64_t bytes) = 0;
    virtual void write(uint64_t to, const char* from, uint64_t bytes) = 0;
    virtual void store(uint64_t to, uint64_t word) = 0;  // an aligned word, after all before it
  };
  // far: what it is part of; null: memory of this process.
  uint32_t addMemory(void* address, uint64_t bytes, bool remoteWrite, uint32_t domain = 0, FarMemory* far = nullptr);
  bool removeMemory(uint32_t key);

  // Called for each complaint, on the card's thread.  Before any queue exists.
  void onComplaint(std::function<void(const std::string&)> heard) { heard_ = std::move(heard); }

  // A card that does nothing, and goes on where it was.
  void pause(bool paused) { paused_.store(paused); }
  // For tests that drive the card themselves, paused: looks at all queues once; true if there was anything to do.
  bool step();

  struct Counters {
    uint64_t doorbells = 0, entries = 0, payloads = 0, inlines = 0, immediates = 0, bytes = 0, completions = 0,
             errors = 0;
  };
  Counters counters() const;
  std::vector<std::string> complaints() const;

 private:
  struct Completions {
    uint64_t* cqes;
    uint32_t count;
    const uint32_t* record;
    uint64_t produced = 0;
  };
  struct PairState {
    uint32_t number = 0;
    Pair pair;
    uint32_t remote = 0, remoteCard = 0;  // the pair at the other end; card 0: of this one
    uint64_t rung = 0;                    // what the doorbell held when last looked at
    uint16_t rungEnd = 0;                 // entry behind the one it named
    bool everRung = false, broken = false, waitsForReceive = false;
    uint64_t fetched = 0;           // entries read
    uint64_t received = 0;          // receive entries used up
    std::vector<uint64_t> control;  // first word of the entry read last at each place
  };
  struct Memory {
    char* address;
    uint64_t bytes;
    bool remoteWrite;
    uint32_t domain;
    FarMemory* far;
  };
  struct Entry;
  enum class Outcome { done, wait };

  void loop();
  bool serve(PairState& p);
  bool hearDoorbell(PairState& p);
  Outcome execute(PairState& p);
  bool decode(PairState& p, Entry& e);
  uint8_t gather(const PairState& p, const Entry& e, std::vector<char>& bytes);
  uint8_t scatter(const PairState& p, const Entry& e, const std::vector<char>& bytes);
  uint8_t deliver(const Wire::Packet& packet, const char* bytes);
  const PairState* receiverOf(const Wire::Packet& packet) const;
  void complete(PairState& p, const Entry& e, uint8_t syndrome);
  void arrive(PairState& receiver, const Entry& e, uint64_t bytes);
  void putCqe(uint32_t handle, uint64_t (&words)[8]);
  const Memory* find(uint32_t key, uint64_t address, uint64_t bytes, uint32_t domain) const;
  void complain(const std::string& text);
  [[gnu::format(printf, 3, 4)]] void complain(const PairState& p, const char* fmt, ...);

  const Idle idle_;
  const uint32_t card_;
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  uint32_t asking_ = 0;  // the pair that waits for another card's answer, without the mutex
  std::map<uint32_t, Completions> completions_;
  std::map<uint32_t, PairState> pairs_;
  std::map<uint32_t, Memory> memories_;
  uint32_t nextCompletions_ = 1, nextPair_ = 0x11, nextKey_ = 1;
  Counters counters_;
  std::vector<std::string> complaints_;
  std::function<void(const std::string&)> heard_;
  std::unique_ptr<Entry> entry_;  // of the one being carried out, and its bytes; kept for their memory
  std::vector<char> bytes_;
  std::atomic<bool> paused_{false}, stop_{false};
  std::unique_ptr<Wire> wire_;  // to other cards
  std::thread thread_;
};

}  // namespace test
