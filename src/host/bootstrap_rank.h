// One rank's side of the bootstrap.  After joining, a thread of its own owns the connection (bootstrap_thread.cc): it alone
// reads, writes and calls the events; the user's threads (bootstrap.cc) leave frames for it and wait for what it finds.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/bootstrap_connect.h"
#include "host/hub.h"
#include "host/log.h"
#include "host/thread.h"

namespace mk {

// A collective call of this rank that waits for its end.
struct RunningCall {
  uint64_t sequence = 0;
  std::vector<std::vector<uint8_t>> parts;
  std::optional<mkResult_t> result;
  std::string text;
};

class RankBootstrap final : public Bootstrap {
 public:
  // initDeadline: timeoutMs after joining has begun.
  RankBootstrap(JoinedHub hub, int rank, int timeoutMs, TimePoint initDeadline, BootstrapEvents events)
      : rank_(rank),
        timeoutMs_(timeoutMs),
        welcome_(std::move(hub.welcome)),
        events_(std::move(events)),
        pid_(getpid()),
        wake_(Fd::event()),
        socket_(std::move(hub.socket)),
        initDeadline_(initDeadline),
        letGo_(welcome_.peers.size(), false),
        gone_(welcome_.peers.size(), false),
        leaving_(welcome_.peers.size(), false) {
    thread_ = std::make_unique<std::thread>();
    *thread_ = startThread("mk-bootstrap", [this] { run(); });
  }

  ~RankBootstrap() override {
    if (getpid() != pid_) {
      // In a forked child: the thread is the parent's.  Its object cannot be destroyed, and need not be.
      static_cast<void>(thread_.release());
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    signalEvent(wake_.get());
    thread_->join();
    reapHubs();
  }

  const std::vector<PeerInfo>& peers() const override { return welcome_.peers; }
  int nodes() const override { return welcome_.nodes; }
  int ranksPerNode() const override { return welcome_.ranksPerNode; }
  int leftMs() const override {
    const std::lock_guard lock(mutex_);
    return left();
  }
  void initialised() override {
    const std::lock_guard lock(mutex_);
    initDeadline_.reset();
  }

  std::vector<std::vector<uint8_t>> allgather(std::span<const uint8_t> mine, const std::string& what) override {
    if (mine.size() > maxGatherBytes)
      fail(mkErrorInternal, "allgather '%s': %zu bytes; legal are 0 to %zu", what.c_str(), mine.size(), maxGatherBytes);
    Contribution c;
    c.bytes.assign(mine.begin(), mine.end());
    return collective(std::move(c), what);
  }

  void agree(mkResult_t mine, const std::string& text, const std::string& what) override {
    Contribution c;
    c.kind = Contribution::agree;
    c.code = static_cast<uint32_t>(mine);
    c.text = text;
    collective(std::move(c), what);
  }

  void check(const std::string& what) override {
    const std::lock_guard lock(mutex_);
    if (const auto early = early_.find(nextSequence_); early != early_.end()) throw early->second;
    throwIfFailed(what);
  }

  void noteLaunched(uint64_t epoch) override { launched_.store(epoch, std::memory_order_relaxed); }

  void report(const FailureReport& report) override;
  void revoke() override {
    if (getpid() != pid_) return;
    const std::lock_guard lock(mutex_);
    if (revoked_ || departed_) return;
    revoked_ = true;
    post(encodeEmpty(Message::revoke));
    changed_.notify_all();
  }

  void letGo(int rank) override {
    if (getpid() != pid_ || rank < 0 || rank >= nranks() || rank == rank_) return;
    const std::lock_guard lock(mutex_);
    post(encodeRank(Message::letGo, rank));
  }

  std::vector<int> depart(int timeoutMs) override;

 private:
  int nranks() const { return static_cast<int>(welcome_.peers.size()); }
  std::string name(int rank) const {
    const PeerInfo& p = welcome_.peers[static_cast<size_t>(rank)];
    return rankName(rank, p.host, p.pid);
  }
  void checkProcess() const {
    if (getpid() != pid_)
      fail(mkErrorInvalidUsage, "the communicator belongs to process %d, this is %d: a forked child cannot use it",
           static_cast<int>(pid_), static_cast<int>(getpid()));
  }

  // With mutex_ held.
  void post(FrameBytes frame) {
    if (hubGone_) return;
    outbox_.push_back(std::move(frame));
    signalEvent(wake_.get());
  }
  int left() const;
  void throwIfFailed(const std::string& what) const;
  std::vector<int> holders() const;

  std::vector<std::vector<uint8_t>> collective(Contribution c, const std::string& what);

  // In the bootstrap's thread.
  void run();
  bool turn(TimePoint* nextTick);
  void receive();
  bool handle(const Frame& frame);
  void hubEnded(const std::string& how);
  void checkOwnReport();
  void setFailure(mkResult_t code, const std::string& text);
  void flushOutbox();
  // An event that throws must not cost the messages that follow.
  template <typename Event>
  void call(const Event& event) {
    try {
      event();
    } catch (const std::exception& e) {
      MK_WARN(bootstrap, "an event has thrown: %s", e.what());
    }
  }

  const int rank_;
  const int timeoutMs_;
  const Welcome welcome_;
  const BootstrapEvents events_;
  const pid_t pid_;
  Fd wake_;
  std::optional<FramedSocket> socket_;  // only in the bootstrap's thread; empty once it has ended

  std::atomic<uint64_t> launched_{0};

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool stop_ = false, revoked_ = false, departed_ = false, hubGone_ = false, farewell_ = false;
  std::optional<TimePoint> initDeadline_;
  std::vector<FrameBytes> outbox_;
  std::optional<Error> failure_;  // the verdict
  std::optional<FailureReport> ownReport_;
  TimePoint ownReportUntil_;
  uint64_t nextSequence_ = 0;
  std::map<uint64_t, Error> early_;  // failures of collectives that this rank has not come to yet, by sequence
  std::optional<RunningCall> running_;
  std::vector<bool> letGo_, gone_, leaving_;  // by rank: let go of my memory; died or left for good; has begun to leave

  std::unique_ptr<std::thread> thread_;
};

}  // namespace mk
