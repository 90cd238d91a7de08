// See world.h.
#include "world.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

namespace test {
namespace {

constexpr auto kWorldTime = std::chrono::seconds(60);

// Another rank has failed; its reason counts.
class Aborted : public std::exception {};

// ---- Threads -------------------------------------------------------------------------------------------------------

class ThreadExchange : public Exchange {
 public:
  explicit ThreadExchange(int count) : running_(count), given_(static_cast<size_t>(count)) {}

  std::vector<Bytes> allgather(int rank, const Bytes& mine) override {
    std::unique_lock lock(mutex_);
    given_[static_cast<size_t>(rank)] = mine;
    ++waiting_;
    const uint64_t round = round_;
    finishRound();
    if (!changed_.wait_for(lock, kWorldTime, [&] { return round_ != round || failed_; }))
      throw CheckFailed("the other ranks do not come");
    if (round_ == round) throw Aborted();
    return result_;
  }

  void announceFailure(int rank) override {
    const std::lock_guard lock(mutex_);
    if (firstFailing_ < 0) firstFailing_ = rank;
  }

  void leave(int rank, const std::string& failure) {
    if (!failure.empty()) announceFailure(rank);
    const std::lock_guard lock(mutex_);
    --running_;
    if (!failure.empty() && rank == firstFailing_) failure_ = failure;
    if (!failure.empty()) failed_ = true;
    finishRound();
    changed_.notify_all();
  }

  const std::string& failure() const { return failure_; }

 private:
  void finishRound() {
    if (waiting_ < running_ || waiting_ == 0) return;
    result_ = given_;
    given_.assign(given_.size(), {});
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int running_, waiting_ = 0;
  uint64_t round_ = 0;
  bool failed_ = false;
  int firstFailing_ = -1;
  std::vector<Bytes> given_, result_;
  std::string failure_;
};

void runThreads(const Setup& setup, int count, const std::function<void(Rank&)>& body) {
  const Plugin plugin(setup.path, setup.params);
  ThreadExchange exchange(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      std::string failure;
      try {
        Rank rank{i, count, setup, plugin, exchange};
        if (setup.prepare != nullptr) setup.prepare(i);
        body(rank);
      } catch (const Aborted&) {
      } catch (const std::exception& error) {
        failure = "rank " + std::to_string(i) + ": " + error.what();
      }
      exchange.leave(i, failure);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!exchange.failure().empty()) throw CheckFailed(exchange.failure());
}

// ---- Processes -----------------------------------------------------------------------------------------------------

// Every child has a socket to the parent, which passes on what they gather.  A message is one letter and its data: G to
// gather, A a failure ahead, F the failure, D done.
constexpr size_t kMessageMax = 1 << 16;

class ChildExchange : public Exchange {
 public:
  ChildExchange(int socket, int count) : socket_(socket), count_(count) {}

  std::vector<Bytes> allgather(int, const Bytes& mine) override {
    tell('G', mine.data(), mine.size());
    Bytes answer(kMessageMax);
    pollfd wait = {socket_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kWorldTime).count())) != 1)
      throw CheckFailed("the other ranks do not come");
    const ssize_t got = recv(socket_, answer.data(), answer.size(), 0);
    if (got <= 0) throw Aborted();
    std::vector<Bytes> result;
    size_t at = 0;
    for (int i = 0; i < count_; ++i) {
      uint32_t size;
      std::memcpy(&size, answer.data() + at, sizeof(size));
      at += sizeof(size);
      result.emplace_back(answer.begin() + static_cast<ptrdiff_t>(at),
                          answer.begin() + static_cast<ptrdiff_t>(at + size));
      at += size;
    }
    return result;
  }

  // With the time: what one rank's failure makes of the others is heard after it, but may be read before.
  void announceFailure(int) override {
    const int64_t now = Clock::now().time_since_epoch().count();
    tell('A', &now, sizeof(now));
  }

  void tell(char letter, const void* data, size_t size) {
    Bytes message(1 + size);
    message[0] = static_cast<uint8_t>(letter);
    if (size > 0) std::memcpy(message.data() + 1, data, size);
    if (send(socket_, message.data(), message.size(), MSG_NOSIGNAL) < 0) throw Aborted();
  }

 private:
  const int socket_, count_;
};

[[noreturn]] void runChild(const Setup& setup, int index, int count, int socket,
                           const std::function<void(Rank&)>& body) {
  ChildExchange exchange(socket, count);
  int status = 0;
  try {
    {
      const Plugin plugin(setup.path, setup.params);
      Rank rank{index, count, setup, plugin, exchange};
      if (setup.prepare != nullptr) setup.prepare(index);
      body(rank);
    }
    exchange.tell('D', nullptr, 0);
  } catch (const Aborted&) {
    status = 1;
  } catch (const std::exception& error) {
    status = 1;
    try {
      exchange.tell('F', error.what(), std::strlen(error.what()));
    } catch (const Aborted&) {
    }
  }
  std::fflush(nullptr);
  _exit(status);
}

struct ChildProcess {
  pid_t pid = -1;
  int socket = -1;
  bool running = true, waiting = false, done = false;
  Bytes given;
};

class ProcessWorld {
 public:
  ProcessWorld(const Setup& setup, int count, const std::function<void(Rank&)>& body) {
    std::fflush(nullptr);
    for (int i = 0; i < count; ++i) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw CheckFailed("socketpair failed");
      const pid_t pid = fork();
      if (pid < 0) throw CheckFailed("fork failed");
      if (pid == 0) {
        close(ends[0]);
        for (const ChildProcess& child : children_) close(child.socket);
        runChild(setup, i, count, ends[1], body);
      }
      close(ends[1]);
      ChildProcess& child = children_.emplace_back();
      child.pid = pid;
      child.socket = ends[0];
    }
  }

  ~ProcessWorld() {
    for (const ChildProcess& child : children_) {
      if (child.running) kill(child.pid, SIGKILL);
      close(child.socket);
      int status;
      while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
      }
    }
  }
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  void run(int mayDie) {
    const auto deadline = Clock::now() + kWorldTime;
    while (answerIfAllWait()) {
      std::vector<pollfd> waits;
      for (const ChildProcess& child : children_) waits.push_back({child.running ? child.socket : -1, POLLIN, 0});
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      expect(left > 0 && ::poll(waits.data(), waits.size(), static_cast<int>(left)) > 0, "a rank does not end");
      for (size_t i = 0; i < children_.size(); ++i)
        if ((waits[i].revents & (POLLIN | POLLHUP)) != 0) hear(static_cast<int>(i), static_cast<int>(i) == mayDie);
    }
  }

 private:
  // False: no child runs any more.
  bool answerIfAllWait() {
    bool any = false;
    for (const ChildProcess& child : children_) {
      if (child.running && !child.waiting) return true;
      any |= child.running;
    }
    if (!any) return false;
    Bytes answer;
    for (ChildProcess& child : children_) {
      const uint32_t size = static_cast<uint32_t>(child.given.size());
      const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&size);
      answer.insert(answer.end(), bytes, bytes + sizeof(size));
      answer.insert(answer.end(), child.given.begin(), child.given.end());
      child.given.clear();
      child.waiting = false;
    }
    for (const ChildProcess& child : children_)
      if (child.running && send(child.socket, answer.data(), answer.size(), MSG_NOSIGNAL) < 0)
        throw CheckFailed("a rank cannot be reached");
    return true;
  }

  void hear(int index, bool mayDie) {
    ChildProcess& child = children_[static_cast<size_t>(index)];
    Bytes message(kMessageMax);
    const ssize_t got = recv(child.socket, message.data(), message.size(), 0);
    if (got <= 0) {
      child.running = false;
      expect(child.done || mayDie || firstFailing_ >= 0, "rank %d ended without a word", index);
      expect(index != firstFailing_, "rank %d failed and did not say why", index);
      return;
    }
    message.resize(static_cast<size_t>(got));
    const std::string text(message.begin() + 1, message.end());
    if (message[0] == 'A') {
      int64_t at = 0;
      std::memcpy(&at, message.data() + 1, std::min(sizeof(at), message.size() - 1));
      if (firstFailing_ < 0 || at < firstFailureAt_) {
        firstFailing_ = index;
        firstFailureAt_ = at;
      }
    }
    if (message[0] == 'F') expect(firstFailing_ >= 0 && index != firstFailing_, "rank %d: %s", index, text.c_str());
    if (message[0] == 'D') child.done = true;
    if (message[0] != 'G') return;
    child.given.assign(message.begin() + 1, message.end());
    child.waiting = true;
  }

  std::vector<ChildProcess> children_;
  int firstFailing_ = -1;
  int64_t firstFailureAt_ = 0;  // of the children's common clock
};

}  // namespace

void runWorld(const Setup& setup, Mode mode, int count, const std::function<void(Rank&)>& body, int mayDie) {
  if (mode == Mode::threads) return runThreads(setup, count, body);
  ProcessWorld(setup, count, body).run(mayDie);
}

}  // namespace test
