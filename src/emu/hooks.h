// Places where a test can step into an operation on the CPU platform: to stall, kill or count.  Nothing is installed in
// normal use.
#pragma once

#include <atomic>
#include <cstdint>

namespace mk::emu {

enum class Point : uint32_t { launch, entered, multiply, post };

// item: the tile for multiply, else 0.  Called by the agent itself; may block, sleep or kill the process.
using Hook = void (*)(int rank, uint64_t epoch, Point point, uint64_t item);

inline std::atomic<Hook>& hook() {
  static std::atomic<Hook> installed{nullptr};
  return installed;
}
inline void callHook(int rank, uint64_t epoch, Point point, uint64_t item) {
  if (Hook h = hook().load(std::memory_order_acquire)) h(rank, epoch, point, item);
}

}  // namespace mk::emu
