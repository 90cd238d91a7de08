// Small helpers of the schedule functions.  Everything in src/sched is a pure constexpr function of its arguments, for host
// and device alike, and includes nothing from outside but fixed-width integers.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MK_HD __host__ __device__
#else
#define MK_HD
#endif

namespace mk::sched {

MK_HD constexpr uint64_t ceilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
MK_HD constexpr uint64_t alignUp(uint64_t a, uint64_t b) { return ceilDiv(a, b) * b; }
MK_HD constexpr uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
MK_HD constexpr uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Index of `other` among the members of a group without `self`, and back.
MK_HD constexpr uint32_t skipSelf(uint32_t other, uint32_t self) { return other < self ? other : other - 1; }
MK_HD constexpr uint32_t unskipSelf(uint32_t index, uint32_t self) { return index < self ? index : index + 1; }

// Where a rank stands: N nodes x L local ranks.
struct Place {
  uint32_t nodes = 1;
  uint32_t locals = 1;  // ranks per node
  uint32_t node = 0;
  uint32_t local = 0;  // local rank
};

}  // namespace mk::sched
