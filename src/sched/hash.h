// The plan hash: 32 bits over everything that must be the same on all ranks of one operation (FNV-1a over 64-bit words,
// folded).  Fowler, Noll, Vo: draft-eastlake-fnv.
#pragma once

#include "sched/common.h"

namespace mk::sched {

class PlanHash {
 public:
  MK_HD constexpr PlanHash& add(uint64_t word) {
    for (int i = 0; i < 8; ++i) {
      state_ ^= word >> (8 * i) & 0xffu;
      state_ *= 1099511628211ull;
    }
    return *this;
  }
  MK_HD constexpr uint32_t value() const { return static_cast<uint32_t>(state_ ^ state_ >> 32); }

 private:
  uint64_t state_ = 14695981039346656037ull;
};

// The word a rank publishes on entering an operation.
MK_HD constexpr uint64_t enteredWord(uint64_t epoch, uint32_t hash) {
  return (epoch & 0xffffffffu) | static_cast<uint64_t>(hash) << 32;
}
MK_HD constexpr uint32_t enteredEpoch(uint64_t word) { return static_cast<uint32_t>(word); }
MK_HD constexpr uint32_t enteredHash(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

}  // namespace mk::sched
