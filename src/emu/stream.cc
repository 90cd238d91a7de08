#include "emu/stream.h"

#include <pthread.h>

#include <csignal>
#include <map>
#include <utility>

namespace mk::emu {

Stream::Stream() {
  // Deaf to signals, which are for the application's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "mk-stream");
}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !running_; });
}

void Stream::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    {
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
      lock.unlock();
      work();
    }
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

namespace {

std::mutex& registryMutex() {
  static std::mutex mutex;
  // Held across fork(), so that a child never finds it locked by a thread that it does not have.
  static const int handlers = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
  static_cast<void>(handlers);
  return mutex;
}
std::map<mkStream_t, std::shared_ptr<Stream>>& registry() {
  static auto* streams = new std::map<mkStream_t, std::shared_ptr<Stream>>;  // outlives static destruction
  return *streams;
}

}  // namespace

mkStream_t createStream() {
  auto stream = std::make_shared<Stream>();
  const auto handle = reinterpret_cast<mkStream_t>(stream.get());
  const std::lock_guard lock(registryMutex());
  registry().emplace(handle, std::move(stream));
  return handle;
}

std::shared_ptr<Stream> findStream(mkStream_t handle) {
  const std::lock_guard lock(registryMutex());
  const auto it = registry().find(handle);
  return it == registry().end() || !it->second->ofThisProcess() ? nullptr : it->second;
}

bool destroyStream(mkStream_t handle) {
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(registryMutex());
    const auto it = registry().find(handle);
    if (it == registry().end() || !it->second->ofThisProcess()) return false;
    stream = std::move(it->second);
    registry().erase(it);
  }
  return true;  // the last reference joins the thread
}

}  // namespace mk::emu
