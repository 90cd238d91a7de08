// What the agents of a launch wait for just now, for whoever must say why it does not go on: the agent whose deadline has
// passed, and the host while the launch runs.  Kept by the communicator; any thread may read.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "protocol/types.h"

namespace mk::emu {

class WaitBoard {
 public:
  explicit WaitBoard(uint32_t agents) : waits_(agents) {}

  void begin(uint32_t agent, const protocol::Why& why) { waits_[agent].store(pack(why), std::memory_order_relaxed); }
  void end(uint32_t agent) { waits_[agent].store(0, std::memory_order_relaxed); }
  void progress(uint64_t nowNs) { progress_.store(nowNs, std::memory_order_relaxed); }
  void polled(uint64_t nowNs) { polled_.store(nowNs, std::memory_order_relaxed); }
  uint64_t lastProgress() const { return progress_.load(std::memory_order_relaxed); }
  uint64_t lastPoll() const { return polled_.load(std::memory_order_relaxed); }

  // The wait that the others follow from, because a stage waits for earlier ones only.  Of one stage rather one for another
  // rank than one for this rank's own agents.  Stage none: nobody waits.
  protocol::Why root() const {
    uint64_t best = 0;
    for (const std::atomic<uint64_t>& word : waits_) {
      const uint64_t wait = word.load(std::memory_order_relaxed);
      if (wait != 0 && (best == 0 || order(wait) < order(best))) best = wait;
    }
    return unpack(best);
  }

 private:
  // 5 bits of stage, 16 of local + 1, 11 of node + 1, 32 of item.
  static uint64_t pack(const protocol::Why& w) {
    return uint64_t(w.stage) << 59 | (uint64_t(w.local + 1) & 0xffff) << 43 | (uint64_t(w.node + 1) & 0x7ff) << 32 |
           (w.item & 0xffff'ffff);
  }
  static protocol::Why unpack(uint64_t word) {
    return {static_cast<protocol::Stage>(word >> 59), static_cast<int32_t>(word >> 43 & 0xffff) - 1,
            static_cast<int32_t>(word >> 32 & 0x7ff) - 1, word & 0xffff'ffff};
  }
  static uint64_t order(uint64_t word) { return word >> 59 << 1 | ((word >> 32 & 0x7ff'ffff) == 0 ? 1 : 0); }
  static_assert(uint32_t(protocol::Stage::roles) < 32);

  std::vector<std::atomic<uint64_t>> waits_;  // by agent; 0: it does not wait
  std::atomic<uint64_t> progress_{0}, polled_{0};
};

}  // namespace mk::emu
