// Registered memory: how the device is given access to it, the keys that name it to peers, and the board, the endpoint's own
// registered memory on which it and its peers leave each other a few words.  Used by endpoint.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/verbs_memory.h"
#include "mkernel/transport.h"
#include "wireup.h"

namespace mk::plugin::ibverbs {

// A registration of this endpoint.
struct LocalMemory {
  uint64_t address = 0, bytes = 0;
  const char* way = "";  // how the device reaches it, for the log
  // Flags are written through `strict`: they stay behind all that was written before them.  Payload goes through `relaxed`,
  // whose writes may overtake each other on the bus, but are not overtaken by a flag.  Without it, all goes through strict.
  RegistrationPtr strict, relaxed;
  uint32_t readKey = 0;                  // for the device here, as a source
  uint32_t flagKey = 0, payloadKey = 0;  // for peers
  uint32_t slot = 0;                     // on the board
  uint64_t sequence = 0;                 // the slot's value
  uint32_t underWay = 0;                 // writes from it
};

// See Reached; relaxed: a second registration, for payload, where the device has it.
std::unique_ptr<LocalMemory> registerWith(Registrar& registrar, const mkTransportMemory_t& memory, bool relaxed);

// What registerMemory hands out.
struct Key {
  uint32_t magic;
  uint32_t slot;      // of the owner's list of registrations
  Token endpoint;     // the owner's
  uint64_t sequence;  // the slot's value as long as the registration lasts
  uint64_t address, bytes;
  uint32_t flagKey, payloadKey;
};
static_assert(sizeof(Key) <= MK_TRANSPORT_KEY_BYTES);

// A peer's registration, imported.
struct RemoteMemory {
  int peer;
  uint64_t address, bytes;
  uint32_t flagKey, payloadKey;
};

constexpr uint32_t kSlots = 4096;  // registrations of an endpoint at a time

// Words that peers write (farewell, beat) or read (the list of registrations), and one per peer for what is read from it.
class Board {
 public:
  struct PeerWords {
    uint64_t farewell = 0;  // not 0: the peer has closed its endpoint in order
    uint64_t beat = 0;      // written now and then to see whether the connection is alive
    uint64_t looked = 0;    // the word of the peer's list that was asked for last
  };
  static constexpr uint64_t kFarewellAt = 0, kBeatAt = 8;

  Board(ibv_pd* domain, size_t peers);

  uint32_t localKey() const { return registration_->lkey; }
  uint32_t remoteKey() const { return registration_->rkey; }
  uint64_t wordsAddress(int peer) const { return reinterpret_cast<uint64_t>(&words(peer)); }
  uint64_t listAddress() const { return reinterpret_cast<uint64_t>(list()); }
  uint64_t lookedAddress(int peer) const { return reinterpret_cast<uint64_t>(&words(peer).looked); }
  bool saidFarewell(int peer) const { return load(words(peer).farewell) != 0; }
  uint64_t looked(int peer) const { return load(words(peer).looked); }

  // Announces a registration; false: there are kSlots already.
  bool announce(LocalMemory& memory);
  void withdraw(const LocalMemory& memory);

 private:
  static uint64_t load(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire); }
  PeerWords& words(int peer) const { return reinterpret_cast<PeerWords*>(memory_.get())[peer]; }
  uint64_t* list() const { return reinterpret_cast<uint64_t*>(&words(static_cast<int>(peers_))); }

  const size_t peers_;
  std::unique_ptr<uint64_t[]> memory_;
  MemoryPtr registration_;
  std::vector<uint32_t> freeSlots_;
  uint64_t sequence_ = 0;
};

}  // namespace mk::plugin::ibverbs
