// All ranks write to all others, and look at every byte: the payload at the moment of its notification, the bytes around it,
// the source's reuse after completion, and that nothing is written any more after completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "link.h"

namespace test {

class Traffic {
 public:
  // Collective.  Every rank writes one write of each size to every other, spread over the queues.
  Traffic(Link& link, const std::vector<uint64_t>& sizes, uint32_t queues, uint64_t seed);

  // Everything; something has to happen within the setup's time.
  void run();

  // Parts of it.  Each returns quickly.
  void send();     // posts what is accepted, in batches of random length
  void receive();  // polls, and looks for notifications
  // Up to `count` writes of this rank to the peer, without polling; number accepted.
  int post(int peer, int count);
  bool allSent() const;
  bool allReceived() const;
  size_t posted(int peer) const { return to_[static_cast<size_t>(peer)].posted; }
  size_t completed(int peer) const { return to_[static_cast<size_t>(peer)].completed; }
  size_t received(int peer) const { return from_[static_cast<size_t>(peer)].received; }
  std::string missing() const;

 private:
  struct Slot {
    uint64_t bytes, source, destination;  // the offsets in the pair's part of the memory
    uint32_t queue;
  };
  struct To {
    size_t posted = 0, completed = 0;
    std::vector<bool> done;
  };
  struct From {
    size_t received = 0, firstOpen = 0;
    std::vector<bool> seen;
  };

  static constexpr uint32_t kSlotBits = 18;  // of an immediate; the others tell whether it is the right one

  uint64_t patternOf(int from, int to, size_t slot) const {
    return mix(seed_ + slot, static_cast<uint64_t>(from), static_cast<uint64_t>(to));
  }
  uint64_t flagOf(int from, int to, size_t slot) const { return mix(patternOf(from, to, slot), 1) | 1; }
  uint32_t immediateOf(int from, int to, size_t slot) const {
    return static_cast<uint32_t>(slot) | static_cast<uint32_t>(mix(patternOf(from, to, slot), 2) << kSlotBits);
  }
  // Where in the memory of `owner` what it has of `other` is.
  uint64_t part(int owner, int other) const {
    return static_cast<uint64_t>(other < owner ? other : other - 1) * partBytes_;
  }
  std::byte* in(int peer) const { return in_->data() + part(rank_.index, peer); }
  std::byte* out(int peer) const { return out_->data() + part(rank_.index, peer); }
  Write writeOf(int peer, size_t slot) const;
  void handle(const Event& event);
  void handleSent(const Event& event);
  void handleArrived(const Event& event);
  void lookAtFlags();
  void notified(int from, size_t slot);
  void checkPayload(int from, size_t slot, const char* when) const;
  void checkGuards(int from) const;
  void checkSilence();

  Link& link_;
  Rank& rank_;
  const uint64_t seed_;
  std::vector<Slot> slots_;
  uint64_t partBytes_ = 0;  // per pair: flags, then guard, payload, guard, payload, guard
  std::unique_ptr<SharedMemory> in_, out_;
  void* outHandle_ = nullptr;
  std::vector<void*> remotes_;
  std::vector<To> to_;
  std::vector<From> from_;
  std::mt19937_64 random_;
};

}  // namespace test
