// State, launches and teardown of a communicator; its collective parts are in comm_init.cc, what watches it in comm_watch.cc.
#include "host/comm.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "emu/stream.h"
#include "host/comm_error.h"
#include "host/log.h"
#include "host/socket.h"

namespace mk {

namespace {

using protocol::FailRecord;
using protocol::OwnLayout;

// Held across every fork(), so that a child never finds it locked by a thread that it does not have.
std::mutex& registerMutex() { return forkMutex(); }
std::map<mkComm_t, std::shared_ptr<Comm>>& handles() {
  static auto* h = new std::map<mkComm_t, std::shared_ptr<Comm>>;  // outlives static destruction
  return *h;
}
FailureReport rejection(uint64_t epoch, uint32_t refusals, const std::string& text) {
  FailureReport report;
  report.kind = FailureReport::rejected;
  report.epoch = epoch;
  report.argumentHash = refusals;
  report.text = text;
  return report;
}

// What could not be freed because a peer may still write to it.
void keepForEver(std::shared_ptr<void> what) {
  static auto* kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(registerMutex());
  kept->push_back(std::move(what));
}

}  // namespace

// ---- Handles -----------------------------------------------------------------------------------------------------

mkComm_t Comm::publish(const std::shared_ptr<Comm>& comm) {
  const auto handle = reinterpret_cast<mkComm_t>(comm.get());
  const std::lock_guard lock(registerMutex());
  handles().emplace(handle, comm);
  return handle;
}

std::shared_ptr<Comm> Comm::find(mkComm_t handle) {
  if (handle == nullptr) fail(mkErrorInvalidArgument, "comm is NULL; legal: a communicator");
  std::shared_ptr<Comm> comm;
  {
    const std::lock_guard lock(registerMutex());
    const auto it = handles().find(handle);
    if (it != handles().end()) comm = it->second;
  }
  if (comm == nullptr)
    fail(mkErrorInvalidArgument, "comm %p is not a communicator, or was destroyed", static_cast<void*>(handle));
  if (comm->pid_ != getpid())
    fail(mkErrorInvalidUsage, "comm %p belongs to process %d; a forked child cannot use it", static_cast<void*>(handle),
         static_cast<int>(comm->pid_));
  return comm;
}

std::shared_ptr<Comm> Comm::retire(mkComm_t handle) {
  std::shared_ptr<Comm> comm = find(handle);
  const std::lock_guard lock(registerMutex());
  if (handles().erase(handle) == 0)
    fail(mkErrorInvalidArgument, "comm %p is being destroyed by another thread", static_cast<void*>(handle));
  return comm;
}

std::string commLastError(mkComm_t handle) { return Comm::find(handle)->lastErrorText(); }

// ---- State -------------------------------------------------------------------------------------------------------

int Comm::rankAt(int32_t node, int32_t local) const {
  return static_cast<int>(rankOf_[static_cast<size_t>(node) * place_.locals + static_cast<size_t>(local)]);
}

int Comm::rankOf(const protocol::Why& why) const {
  if (why.local >= 0) return rankAt(static_cast<int32_t>(place_.node), why.local);
  return why.node >= 0 ? rankAt(why.node, static_cast<int32_t>(place_.local)) : -1;
}

std::string Comm::stageText(const char* operation, uint64_t epoch, const protocol::Why& why) const {
  return format("%s, epoch %llu, stage \"%s\" (item %llu)", operation, static_cast<unsigned long long>(epoch),
                protocol::stageName(why.stage), static_cast<unsigned long long>(why.item));
}

std::string Comm::rankName(int rank) const {
  const Bootstrap* b = control_.load(std::memory_order_acquire);
  if (rank < 0 || b == nullptr) return "an unknown rank";
  const PeerInfo& p = b->peers()[static_cast<size_t>(rank)];
  return format("rank %d (host %s, pid %lld)", rank, p.host.c_str(), static_cast<long long>(p.pid));
}

void Comm::query(mkCommInfo_t* info) const {
  const sched::Place& place = place_;
  info->nranks = nranks_;
  info->rank = rank_;
  info->nnodes = static_cast<int32_t>(place.nodes);
  info->node = static_cast<int32_t>(place.node);
  info->ranksPerNode = static_cast<int32_t>(place.locals);
  info->localRank = static_cast<int32_t>(place.local);
  info->device = platform_->device();
  info->smCount = static_cast<int32_t>(platform_->smCount());
  info->heapBytes = workspace_;
  platform_->refresh(true);
  info->nextEpoch = platform_->word(OwnLayout::epoch) + 1;
  info->platform = settings_.platform.c_str();
  info->transport = transportName_.c_str();
  if (proxy_ != nullptr) {
    info->netPath = staged_ ? MK_NET_PATH_STAGED : MK_NET_PATH_DIRECT;
    info->netBytesSent = proxy_->counters().payloadBytes.load() + platform_->word(OwnLayout::cardBytes);
    info->netMessagesSent = proxy_->counters().payloadMessages.load() + platform_->word(OwnLayout::cardMessages);
    info->netBatches = proxy_->counters().batches.load();
  }
}

mkResult_t Comm::asyncError() const {
  std::unique_lock lock(mutex_);
  // A launch has ended with a record: the verdict that all ranks share is on its way.
  if (error_ == mkSuccess && (ownError_.code != mkSuccess || platform_->hasRecord()))
    changed_.wait_for(lock, std::chrono::milliseconds(2 * kVerdictMs), [this] { return error_ != mkSuccess; });
  return error_;
}
std::string Comm::lastErrorText() const {
  const std::lock_guard lock(mutex_);
  return errorText_;
}
void Comm::throwIfFailed() const {
  if (asyncError() == mkSuccess) return;
  const std::lock_guard lock(mutex_);
  if (error_ != mkSuccess) throw Error(error_, errorText_);
}

void Comm::setError(mkResult_t code, const std::string& text) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = error_ == mkSuccess;
    if (first) {
      error_ = code;
      errorText_ = text;
      MK_INFO(launch, "%s: %s", mkGetErrorString(code), text.c_str());
    }
  }
  // Agents leave; also those of launches to come.  While the communicator is being set up there are none.
  if (control_.load(std::memory_order_acquire) != nullptr) {
    platform_->revoke();
    if (first && proxy_ != nullptr) MK_INFO(proxy, "%s", proxy_->account().c_str());
  }
  changed_.notify_all();
}

// ---- Launches ----------------------------------------------------------------------------------------------------

void Comm::launch(Operation operation, mkStream_t stream) {
  if (platform_->asynchronous()) return launchAsync(operation, stream);
  std::shared_ptr<emu::Stream> queue;
  uint32_t refusals = 0;
  if (stream != nullptr) {
    queue = emu::findStream(stream);
    if (queue == nullptr)
      fail(mkErrorInvalidArgument,
           "stream %p is not one of mkCpuStreamCreate; legal on the CPU platform: one of those, or NULL",
           static_cast<void*>(stream));
  }
  {
    const std::lock_guard lock(mutex_);
    if (error_ != mkSuccess) throw Error(error_, errorText_);
    if (departed_ >= 0) fail(mkErrorRemote, "%s has left the communicator", rankName(departed_).c_str());
    if (pending_ > 0 && pendingStream_ != stream)
      fail(mkErrorInvalidUsage,
           "an operation of this communicator is unfinished on stream %p; launching on stream %p needs it to have "
           "finished",
           static_cast<void*>(pendingStream_), static_cast<void*>(stream));
    if (pending_ > 0 && stream == nullptr)
      fail(mkErrorInvalidUsage, "another thread is running an operation of this communicator");
    ++pending_;
    pendingStream_ = stream;
    const auto refused = refusals_.find(++launched_);
    refusals = refused != refusals_.end() ? refused->second : 0;
    bootstrap_->noteLaunched(settings_.epochStart + launched_);
  }
  if (refusals > 0) bootstrap_->report(rejection(settings_.epochStart + launched_, refusals, {}));
  if (queue == nullptr) {
    runLaunch(operation);
    finishLaunch();
    throwIfFailed();
    return;
  }
  try {
    queue->enqueue([self = shared_from_this(), op = std::move(operation)]() mutable {
      const std::shared_ptr<Comm> comm = std::move(self);
      comm->runLaunch(op);
      comm->finishLaunch();
    });
  } catch (...) {  // want of memory: it was not launched
    {
      const std::lock_guard lock(mutex_);
      bootstrap_->noteLaunched(settings_.epochStart + --launched_);
    }
    finishLaunch();
    throw;
  }
}

// The stream keeps the order; whether a launch has ended, and how, is seen by tick() and by whoever asks the platform.
void Comm::launchAsync(const Operation& operation, mkStream_t stream) {
  const bool captured = platform_->follow(stream);
  uint32_t refusals = 0;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (error_ != mkSuccess) throw Error(error_, errorText_);
    if (departed_ >= 0) fail(mkErrorRemote, "%s has left the communicator", rankName(departed_).c_str());
    if (pending_ > 0) fail(mkErrorInvalidUsage, "another thread is launching an operation of this communicator");
    ++pending_;
    runningName_ = operation.name;
    if (argumentTexts_.size() > 4096) argumentTexts_.clear();  // of so many, whoever differs differs in the newest
    argumentTexts_[operation.hash] = operation.text;
    if (!captured) {
      const auto refused = refusals_.find(++launched_);
      refusals = refused != refusals_.end() ? refused->second : 0;
      number = settings_.epochStart + launched_;
      bootstrap_->noteLaunched(number);
    }
  }
  try {
    static_cast<void>(operation.run(*platform_));
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!captured) bootstrap_->noteLaunched(settings_.epochStart + --launched_);
    }
    finishLaunch();
    throw;
  }
  if (refusals > 0) bootstrap_->report(rejection(number, refusals, {}));
  finishLaunch();
}

void Comm::noteRejected(const char* operation, const std::string& text) {
  if (nranks_ == 1) return;
  uint64_t epoch = 0;
  uint32_t refusals = 0;
  {
    const std::lock_guard lock(mutex_);
    if (error_ != mkSuccess || departed_ >= 0) return;
    refusals = ++refusals_[launched_ + 1];
    epoch = settings_.epochStart + launched_ + 1;
  }
  bootstrap_->report(rejection(epoch, refusals, format("%s: %s", operation, text.c_str())));
}

void Comm::finishLaunch() {
  {
    const std::lock_guard lock(mutex_);
    refusals_.erase(refusals_.begin(), refusals_.upper_bound(launched_ - --pending_));
  }
  changed_.notify_all();
}

void Comm::runLaunch(const Operation& operation) {
  if (asyncError() != mkSuccess) return;
  {
    const std::lock_guard lock(mutex_);
    runningSince_ = nowNs();
    runningName_ = operation.name;
    runningHash_ = operation.hash;
    runningText_ = operation.text;
  }
  FailRecord record;
  try {
    record = operation.run(*platform_);
  } catch (const std::exception& e) {
    record.kind = FailRecord::internal;
    MK_WARN(launch, "%s: %s", operation.name, e.what());
  }
  {
    const std::lock_guard lock(mutex_);
    runningSince_ = 0;
  }
  if (record.kind == FailRecord::none) return;
  const OwnError own = reportRecord(operation.name, operation.hash, record);
  awaitVerdict(kVerdictMs);
  setError(own.code, own.text);
}

// Tells the hub, and returns the error this rank has if no verdict comes.
Comm::OwnError Comm::reportRecord(const char* name, uint32_t hash, const FailRecord& record) {
  const int missing = rankOf(record.why);
  FailureReport report;
  report.stageOrder = static_cast<uint32_t>(record.why.stage);
  report.missingRank = missing;
  report.epoch = record.epoch;
  const auto epoch = static_cast<unsigned long long>(record.epoch);
  const char* stage = protocol::stageName(record.why.stage);
  mkResult_t code = mkErrorInternal;
  switch (record.kind) {
    case FailRecord::revoked:
      break;  // whoever revoked has set, or will send, the error
    case FailRecord::timeout:
      code = mkErrorTimeout;
      report.kind = FailureReport::timeout;
      report.text = stageText(name, record.epoch, record.why) + format(": no progress for %d ms", settings_.timeoutMs);
      break;
    case FailRecord::mismatch:
      code = mkErrorInvalidUsage;
      report.kind = FailureReport::mismatch;
      report.argumentHash = hash;
      report.missingHash = sched::enteredHash(record.seen);
      report.text = format("%s, epoch %llu: the arguments of rank %d and rank %d differ", name, epoch, rank_, missing);
      break;
    case FailRecord::message:
      code = mkErrorTransport;
      report.kind = FailureReport::protocol;
      report.text = format(
          "%s, epoch %llu: a message of %llu bytes; transport %s takes up to %llu: choose smaller chunks "
          "(tune.chunkTiles, tune.chunkRows)",
          name, epoch, static_cast<unsigned long long>(record.seen), transportName_.c_str(),
          static_cast<unsigned long long>(record.expected));
      break;
    default:
      report.kind = FailureReport::protocol;
      report.text =
          record.kind == FailRecord::internal
              ? format("%s, epoch %llu: rank %d ran out of memory", name, epoch, rank_)
              : format("%s, epoch %llu, stage \"%s\": expected %llx, saw %llx", name, epoch, stage,
                       static_cast<unsigned long long>(record.expected), static_cast<unsigned long long>(record.seen));
  }
  OwnError own;
  own.at = nowNs();
  if (record.kind == FailRecord::revoked) {
    own.code = mkErrorRevoked;
    own.text = "the communicator has been revoked";
    return own;
  }
  bootstrap_->report(report);
  own.code = code;
  own.text = report.text + (missing >= 0 ? ", waiting for " + rankName(missing) : std::string());
  return own;
}

void Comm::awaitVerdict(int timeoutMs) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeoutMs), [this] { return error_ != mkSuccess; });
}

// ---- Ends --------------------------------------------------------------------------------------------------------

// A launch has not ended.
bool Comm::busy(bool strict) const {
  {
    const std::lock_guard lock(mutex_);
    if (pending_ > 0) return true;
  }
  const bool busy = platform_->busy(strict);
  noteEpoch(bootstrap_.get());
  return busy;
}

// Graphs launch without this rank's host: it learns from the epoch.  Before its part in a collective call says how far it is.
void Comm::noteEpoch(Bootstrap* bootstrap) const {
  if (!platform_->asynchronous()) return;
  const std::lock_guard lock(mutex_);
  const uint64_t epoch = platform_->word(OwnLayout::epoch);
  if (epoch <= settings_.epochStart + launched_) return;
  launched_ = epoch - settings_.epochStart;
  bootstrap->noteLaunched(epoch);
  refusals_.erase(refusals_.begin(), refusals_.upper_bound(launched_));
}

void Comm::requireQuiet(const char* what) const {
  platform_->requireNoCapture(what);
  if (!busy(true)) return;
  const std::lock_guard lock(mutex_);
  fail(mkErrorInvalidUsage, "%s while %s of this communicator are unfinished; synchronise the stream first", what,
       pending_ > 0 ? format("%u operation(s)", pending_).c_str() : "operations");
}

void Comm::requireDestroyable() const {
  if (asyncError() == mkSuccess) requireQuiet("mkCommDestroy");
}

bool Comm::awaitIdle(Deadline deadline) {
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [this] { return pending_ == 0; })) return false;
  }
  while (busy(true)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

bool Comm::awaitNetwork(Deadline deadline) const {
  while (!networkSettled()) {
    if (std::chrono::steady_clock::now() > deadline || asyncError() != mkSuccess) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void Comm::requireNetworkSettled() const {
  if (awaitNetwork(after(settings_.timeoutMs))) return;
  throwIfFailed();
  fail(mkErrorTimeout, "network writes of earlier operations have not completed within %d ms", settings_.timeoutMs);
}

void Comm::revoke() {
  setError(mkErrorRevoked, format("rank %d, this one, revoked the communicator", rank_));
  bootstrap_->revoke();
}

void Comm::destroy() {
  const Deadline deadline = after(settings_.teardownTimeoutMs);
  if (asyncError() != mkSuccess && !awaitIdle(deadline)) {
    keepForEver(shared_from_this());
    fail(mkErrorTimeout, "an operation has not left within %d ms; its memory stays allocated",
         settings_.teardownTimeoutMs);
  }
  // In order: peers let go first, while this rank still takes what they send at the end of their last operation.  After a
  // failure: this rank stops sending first.
  leave(asyncError() == mkSuccess && awaitNetwork(deadline), deadline);
}

void Comm::abort() {
  const Deadline deadline = after(settings_.teardownTimeoutMs);
  revoke();
  if (!awaitIdle(deadline)) {
    keepForEver(shared_from_this());
    fail(mkErrorTimeout, "an operation has not left within %d ms; its memory stays allocated",
         settings_.teardownTimeoutMs);
  }
  leave(false, deadline);
}

void Comm::leave(bool inOrder, Deadline deadline) {
  // Either way nothing of this rank's is being written to peers from here on; they may write here until they let go.
  const auto stop = [this] {
    if (proxy_ != nullptr) proxy_->stop();
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  };
  if (!inOrder) stop();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  const std::vector<int> holding = bootstrap_->depart(static_cast<int>(std::max<int64_t>(left, 0)));
  stop();
  if (holding.empty()) return;
  std::string names;
  for (const int r : holding) names += (names.empty() ? "" : ", ") + rankName(r);
  keepForEver(std::shared_ptr<void>(std::move(heap_)));
  for (auto& [id, window] : windows_) keepForEver(std::shared_ptr<void>(std::move(window)));
  windows_.clear();
  if (std::chrono::steady_clock::now() < deadline)  // there was nobody left to ask
    fail(mkErrorRemote,
         "whether %s has let go of this rank's memory cannot be known any more, because the communicator's hub has "
         "ended; it stays allocated",
         names.c_str());
  fail(mkErrorRemote, "%s did not let go of this rank's memory within %d ms; it stays allocated", names.c_str(),
       settings_.teardownTimeoutMs);
}

}  // namespace mk
