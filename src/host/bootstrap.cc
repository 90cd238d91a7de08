// The client side of the bootstrap.  After joining, one thread per rank owns the connection: it alone reads, writes and calls
// the events; the user's threads leave frames for it and wait for what it finds.
#include "host/bootstrap.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "host/bootstrap_connect.h"
#include "host/hub.h"
#include "host/log.h"
#include "host/params.h"
#include "host/thread.h"

namespace mk {
namespace {

constexpr int tickMs = 10;
// If the hub has no verdict by then, this rank's own report becomes one.  The hub takes 2 s at most.
constexpr int verdictMs = 5000;
constexpr int farewellMs = 200;  // for the hub's answer to goodbye, if the time for departing is over
constexpr int lastFlushMs = 100;

class RankBootstrap final : public Bootstrap {
 public:
  RankBootstrap(JoinedHub hub, int rank, int timeoutMs, BootstrapEvents events)
      : rank_(rank),
        timeoutMs_(timeoutMs),
        welcome_(std::move(hub.welcome)),
        events_(std::move(events)),
        pid_(getpid()),
        wake_(Fd::event()),
        socket_(std::move(hub.socket)),
        letGo_(welcome_.peers.size(), false),
        gone_(welcome_.peers.size(), false),
        leaving_(welcome_.peers.size(), false) {
    thread_ = startThread("mk-bootstrap", [this] { run(); });
  }

  ~RankBootstrap() override {
    if (getpid() != pid_) {
      // In a forked child: the thread is the parent's.  Its object cannot be destroyed, and need not be.
      static_cast<void>(new std::thread(std::move(thread_)));
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    signalEvent(wake_.get());
    thread_.join();
    reapHubs();
  }

  const std::vector<PeerInfo>& peers() const override { return welcome_.peers; }
  int nodes() const override { return welcome_.nodes; }
  int ranksPerNode() const override { return welcome_.ranksPerNode; }

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

  void report(const FailureReport& report) override {
    if (getpid() != pid_) return;
    const std::lock_guard lock(mutex_);
    if (failure_.has_value() || departed_) return;
    const bool isFailure = report.kind != FailureReport::rejected && report.kind != FailureReport::waiting;
    if (isFailure && !ownReport_.has_value()) {
      ownReport_ = report;
      ownReportUntil_ = afterMs(verdictMs);
    }
    post(encode(report));
    signalEvent(wake_.get());  // also where the hub is gone
  }

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
  bool noteFailure(mkResult_t code, const std::string& text);
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

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool stop_ = false, revoked_ = false, departed_ = false, hubGone_ = false, farewell_ = false;
  std::vector<FrameBytes> outbox_;
  std::optional<Error> failure_;  // the verdict
  std::optional<FailureReport> ownReport_;
  TimePoint ownReportUntil_;
  uint64_t nextSequence_ = 0;
  std::map<uint64_t, Error> early_;  // failures of collectives that this rank has not come to yet, by sequence
  struct Running {
    uint64_t sequence = 0;
    std::vector<std::vector<uint8_t>> parts;
    std::optional<mkResult_t> result;
    std::string text;
  };
  std::optional<Running> running_;
  std::vector<bool> letGo_, gone_, leaving_;  // by rank: let go of my memory; died or left for good; has begun to leave

  std::thread thread_;
};

// ---- The user's thread ---------------------------------------------------------------------------------------------

void RankBootstrap::throwIfFailed(const std::string& what) const {
  if (departed_) fail(mkErrorInvalidUsage, "%s: this rank has left the communicator", what.c_str());
  if (failure_.has_value()) throw *failure_;
  if (revoked_) fail(mkErrorRevoked, "%s: this rank has revoked the communicator", what.c_str());
  if (!hubGone_) return;
  for (int rank = 0; rank < nranks(); ++rank)
    if (leaving_[static_cast<size_t>(rank)])
      fail(mkErrorRemote, "%s: %s has left the communicator", what.c_str(), name(rank).c_str());
  fail(mkErrorRemote, "%s: the communicator has ended", what.c_str());
}

std::vector<std::vector<uint8_t>> RankBootstrap::collective(Contribution c, const std::string& what) {
  checkProcess();
  std::unique_lock lock(mutex_);
  // That it has failed already came before whatever has happened since.
  if (const auto early = early_.find(nextSequence_); early == early_.end()) throwIfFailed(what);
  if (running_.has_value())
    fail(mkErrorInvalidUsage, "%s: another thread of this rank is in a collective call", what.c_str());
  const TimePoint deadline = afterMs(timeoutMs_);
  c.sequence = nextSequence_++;
  c.timeoutMs = static_cast<uint32_t>(timeoutMs_);
  c.launched = launched_.load(std::memory_order_relaxed);
  c.what = what;
  running_.emplace();
  running_->sequence = c.sequence;
  if (c.kind == Contribution::allgather) running_->parts.resize(welcome_.peers.size());
  post(encode(c));
  if (auto early = early_.extract(c.sequence)) {
    running_->result = early.mapped().code();
    running_->text = early.mapped().what();
  }
  changed_.wait_until(lock, deadline, [&] {
    return running_->result.has_value() || failure_.has_value() || revoked_ || departed_ || hubGone_;
  });
  Running done = std::move(*running_);
  running_.reset();
  // An answer that is there counts, whatever happened since.
  if (!done.result.has_value()) {
    throwIfFailed(what);
    fail(mkErrorTimeout, "%s: no answer from the hub (host %s, pid %lld) within %d ms", what.c_str(),
         welcome_.hubHost.c_str(), static_cast<long long>(welcome_.hubPid), timeoutMs_);
  }
  if (*done.result != mkSuccess) throw Error(*done.result, done.text);
  return std::move(done.parts);
}

// Ranks that may still touch this rank's memory.
std::vector<int> RankBootstrap::holders() const {
  std::vector<int> result;
  for (int rank = 0; rank < nranks(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    if (rank != rank_ && !letGo_[i] && !gone_[i]) result.push_back(rank);
  }
  return result;
}

std::vector<int> RankBootstrap::depart(int timeoutMs) {
  checkProcess();
  std::unique_lock lock(mutex_);
  if (departed_) return {};
  const TimePoint deadline = afterMs(std::max(timeoutMs, 0));
  post(encodeEmpty(Message::leave));
  changed_.wait_until(lock, deadline, [&] { return holders().empty() || hubGone_; });
  post(encodeEmpty(Message::goodbye));
  // In the hub's own process the answer comes only once the others have left too.
  changed_.wait_until(lock, std::max(deadline, afterMs(farewellMs)), [&] { return farewell_ || hubGone_; });
  departed_ = true;
  return holders();
}

// ---- The bootstrap's thread ----------------------------------------------------------------------------------------

void RankBootstrap::run() {
  logSetRank(rank_);
  TimePoint nextTick = afterMs(tickMs);
  for (;;) {
    try {
      if (!turn(&nextTick)) return;
    } catch (const std::exception& e) {
      MK_WARN(bootstrap, "%s", e.what());  // want of memory
    }
  }
}

bool RankBootstrap::turn(TimePoint* nextTick) {
  TimePoint wakeAt = TimePoint::max();
  {
    const std::lock_guard lock(mutex_);
    if (ownReport_.has_value()) wakeAt = hubGone_ ? Clock::now() : ownReportUntil_;
  }
  if (events_.onTick) wakeAt = std::min(wakeAt, *nextTick);
  pollfd polled[2] = {{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}};
  if (socket_.has_value()) {
    polled[1].fd = socket_->fd();
    if (socket_->wantsWrite()) polled[1].events = POLLIN | POLLOUT;
  }
  const int timeout = wakeAt == TimePoint::max() ? -1 : pollMs(Clock::now(), wakeAt);
  if (poll(polled, 2, timeout) < 0) {
    if (errno != EINTR) std::this_thread::sleep_for(pollRefusedPause);
    polled[0].revents = polled[1].revents = POLLIN;  // look all the same: nothing here blocks
  }
  if (polled[0].revents != 0) drainEvent(wake_.get());
  flushOutbox();
  if (polled[1].revents != 0 && socket_.has_value()) receive();
  checkOwnReport();
  if (events_.onTick && Clock::now() >= *nextTick) {
    *nextTick = afterMs(tickMs);
    call(events_.onTick);
  }
  const std::lock_guard lock(mutex_);
  if (!stop_) return true;
  // What was said last (a revoke, a letGo) should still get out.
  const TimePoint deadline = afterMs(lastFlushMs);
  if (socket_.has_value()) {
    for (FrameBytes& frame : outbox_) socket_->queue(std::move(frame));
    socket_->flush();
    while (socket_->wantsWrite() && waitFd(socket_->fd(), POLLOUT, deadline)) socket_->flush();
    socket_.reset();
  }
  return false;
}

void RankBootstrap::flushOutbox() {
  std::vector<FrameBytes> frames;
  {
    const std::lock_guard lock(mutex_);
    frames.swap(outbox_);
  }
  if (!socket_.has_value()) return;
  for (FrameBytes& frame : frames) socket_->queue(std::move(frame));
  socket_->flush();
}

void RankBootstrap::receive() {
  std::vector<Frame> frames;
  const auto state = socket_->receive(&frames, SIZE_MAX);
  for (const Frame& frame : frames) {
    if (!handle(frame)) {
      hubEnded(format("sent a message (type %u, %zu bytes) that is not legal", frame.type, frame.body.size()));
      return;
    }
    if (!socket_.has_value()) return;
  }
  if (state != FramedSocket::State::open) hubEnded(socket_->problem());
}

// False if the hub broke the protocol.  Events are called without the lock.
bool RankBootstrap::handle(const Frame& frame) {
  WireReader reader(frame.body);
  std::unique_lock lock(mutex_);
  switch (static_cast<Message>(frame.type)) {
    case Message::part: {
      const uint64_t sequence = reader.u64();
      const int rank = reader.i32();
      const auto bytes = reader.bytes(maxGatherBytes);
      if (!reader.atEnd() || rank < 0 || rank >= nranks()) return false;
      // Parts of a call that has given up waiting are dropped.
      if (running_.has_value() && running_->sequence == sequence && !running_->parts.empty())
        running_->parts[static_cast<size_t>(rank)].assign(bytes.begin(), bytes.end());
      return true;
    }
    case Message::collected: {
      const uint64_t sequence = reader.u64();
      const auto code = static_cast<mkResult_t>(reader.u32());
      std::string text = reader.text(maxTextBytes);
      if (!reader.atEnd()) return false;
      if (running_.has_value() && running_->sequence == sequence) {
        running_->result = code;
        running_->text = std::move(text);
        changed_.notify_all();
      } else if (sequence >= nextSequence_ && code != mkSuccess) {
        early_.emplace(sequence, Error(code, text));
      }
      return true;
    }
    case Message::verdict: {
      const auto code = static_cast<mkResult_t>(reader.u32());
      const std::string text = reader.text(maxTextBytes);
      if (!reader.atEnd()) return false;
      lock.unlock();
      setFailure(code, text);
      return true;
    }
    case Message::askArguments: {
      const uint32_t hash = reader.u32();
      const uint64_t epoch = reader.u64();
      if (!reader.atEnd()) return false;
      lock.unlock();
      std::string text;
      call([&] { text = events_.argumentText ? events_.argumentText(hash, epoch) : std::string(); });
      lock.lock();
      post(WireWriter(Message::arguments).u32(hash).u64(epoch).text(text, maxReportBytes).done());
      return true;
    }
    case Message::leaving:
    case Message::letGo:
    case Message::gone: {
      const int rank = reader.i32();
      if (!reader.atEnd() || rank < 0 || rank >= nranks()) return false;
      const auto message = static_cast<Message>(frame.type);
      (message == Message::leaving ? leaving_
       : message == Message::letGo ? letGo_
                                   : gone_)[static_cast<size_t>(rank)] = true;
      changed_.notify_all();
      lock.unlock();
      if (message != Message::leaving) return true;
      if (events_.onLeaving)
        call([&] { events_.onLeaving(rank); });
      else
        letGo(rank);  // whoever does not listen writes nowhere
      return true;
    }
    case Message::farewell:
      farewell_ = true;
      hubGone_ = true;
      socket_.reset();
      changed_.notify_all();
      return true;
    default:
      return false;
  }
}

void RankBootstrap::hubEnded(const std::string& how) {
  MK_INFO(bootstrap, "the hub's connection: %s", how.c_str());
  socket_.reset();
  int host = -1;  // the lowest rank of the hub's process that has not left
  bool anyHost = false, isNew = false;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    hubGone_ = true;
    outbox_.clear();
    for (int rank = nranks() - 1; rank >= 0; --rank) {
      const auto i = static_cast<size_t>(rank);
      if (!welcome_.inHubProcess[i]) continue;
      anyHost = true;
      if (!leaving_[i] && !gone_[i]) host = rank;
      gone_[i] = true;  // with its process: nothing holds this rank's memory there
    }
    if (!anyHost || host >= 0) {  // else they have left, and so may their process
      text = (host >= 0 ? name(host)
                        : format("the process that made the unique id (host %s, pid %lld)", welcome_.hubHost.c_str(),
                                 static_cast<long long>(welcome_.hubPid))) +
             " died or closed its connection";
      isNew = noteFailure(mkErrorRemote, text);  // at once: who sees the hub gone must see why
    }
    changed_.notify_all();
  }
  if (isNew && events_.onVerdict) call([&] { events_.onVerdict(mkErrorRemote, text); });
}

// The verdict on this rank's report if the hub cannot give one.
void RankBootstrap::checkOwnReport() {
  mkResult_t code = mkErrorInternal;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (!ownReport_.has_value() || (!hubGone_ && Clock::now() < ownReportUntil_)) return;
    const FailureReport& r = *ownReport_;
    if (r.kind == FailureReport::timeout) code = mkErrorTimeout;
    if (r.kind == FailureReport::mismatch) code = mkErrorInvalidUsage;
    if (r.kind == FailureReport::transport) code = mkErrorTransport;
    text = r.text;
    if (r.missingRank >= 0 && r.missingRank < nranks()) text += "; waited for " + name(r.missingRank);
    int host = 0;
    while (host < nranks() && !welcome_.inHubProcess[static_cast<size_t>(host)]) ++host;
    text += format(
        "; reported by %s; other ranks may have other errors, because the hub (%s) %s", name(rank_).c_str(),
        host < nranks()
            ? ("in the process of " + name(host)).c_str()
            : format("host %s, pid %lld", welcome_.hubHost.c_str(), static_cast<long long>(welcome_.hubPid)).c_str(),
        hubGone_ ? "has ended" : "does not answer");
    ownReport_.reset();
  }
  setFailure(code, text);
}

void RankBootstrap::setFailure(mkResult_t code, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (!noteFailure(code, text)) return;
  }
  if (events_.onVerdict) call([&] { events_.onVerdict(code, text); });
}

// With mutex_ held.  False if there is one already, or none is wanted any more.
bool RankBootstrap::noteFailure(mkResult_t code, const std::string& text) {
  ownReport_.reset();
  if (failure_.has_value() || departed_ || farewell_) return false;
  failure_.emplace(code, text);
  changed_.notify_all();
  return true;
}

}  // namespace

// ---- Interface -----------------------------------------------------------------------------------------------------

void Bootstrap::createId(mkUniqueId_t* id) {
  HubOptions options;
  options.interfaces = params().socketIfname;
  options.family = params().socketFamily;
  options.initTimeoutMs = params().initTimeoutMs;
  *id = startHub(options);
}

std::unique_ptr<Bootstrap> Bootstrap::join(const mkUniqueId_t& id, const Identity& identity, int initTimeoutMs,
                                           BootstrapEvents events) {
  const HubPlace place = decodeUniqueId(id);
  if (identity.hostId.size() > maxNameBytes)
    fail(mkErrorInvalidArgument, "hostId: %zu characters; legal are up to %zu", identity.hostId.size(), maxNameBytes);
  if (identity.settings.size() > maxSettingsBytes)
    fail(mkErrorInternal, "settings of %zu bytes; at most %zu can be compared", identity.settings.size(),
         maxSettingsBytes);
  Hello hello;
  hello.secret = place.secret;
  hello.rank = identity.rank;
  hello.nranks = identity.nranks;
  hello.pid = getpid();
  hello.host = hostName();
  hello.inHubProcess = hubRunsHere(place.secret);
  hello.hostId = identity.hostId;
  hello.deviceId = identity.deviceId;
  hello.settings = identity.settings;
  const int timeoutMs = std::max(initTimeoutMs, 1);
  return std::make_unique<RankBootstrap>(joinHub(place, std::move(hello), timeoutMs), identity.rank, timeoutMs,
                                         std::move(events));
}

}  // namespace mk
