// Streams of the CPU platform: a thread that runs what is put on it, in order.  mkStream_t points at one.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "mkernel.h"

namespace mk::emu {

class Stream {
 public:
  Stream();
  ~Stream();  // runs what is left
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool ofThisProcess() const { return owner_ == getpid(); }  // a forked child has the object, but not its thread
  void enqueue(std::function<void()> work);
  void synchronize();

 private:
  void loop();

  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool running_ = false;  // an item has left the queue and has not finished
  bool stop_ = false;
  std::thread thread_;
};

// Handles are checked against the set of live streams, so that a stale one is an error and not a crash.
mkStream_t createStream();
std::shared_ptr<Stream> findStream(mkStream_t handle);  // null if there is none in this process
bool destroyStream(mkStream_t handle);                  // false if there is none in this process

}  // namespace mk::emu
