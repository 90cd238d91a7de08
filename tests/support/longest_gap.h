// How long a thread that only sleeps was held up, at most: what a machine that stood still, or was full, did to whoever had a
// deadline meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace test {

class LongestGap {
 public:
  LongestGap() : awakeAt_(now()), thread_([this] { watch(); }) {}
  ~LongestGap() {
    done_.store(true);
    thread_.join();
  }
  LongestGap(const LongestGap&) = delete;
  LongestGap& operator=(const LongestGap&) = delete;

  // So far, a gap that has not ended included.
  int64_t milliseconds() const { return std::max(longest_.load(), late(awakeAt_.load())); }

 private:
  static constexpr int64_t kNapMs = 10;
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static int64_t late(int64_t since) { return std::max<int64_t>(0, now() - since - kNapMs); }
  void watch() {
    while (!done_.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kNapMs));
      longest_.store(std::max(longest_.load(), late(awakeAt_.load())));
      awakeAt_.store(now());
    }
  }

  std::atomic<int64_t> longest_{0}, awakeAt_;
  std::atomic<bool> done_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace test
