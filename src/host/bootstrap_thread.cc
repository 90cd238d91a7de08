// The bootstrap's thread of a rank; see bootstrap_rank.h.
#include <poll.h>

#include <cerrno>
#include <cstdint>

#include "host/bootstrap_rank.h"

namespace mk {
namespace {

constexpr int tickMs = 10;
constexpr int lastFlushMs = 100;

}  // namespace

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
  bool anyHost = false;
  {
    const std::lock_guard lock(mutex_);
    for (int rank = nranks() - 1; rank >= 0; --rank) {
      const auto i = static_cast<size_t>(rank);
      if (!welcome_.inHubProcess[i]) continue;
      anyHost = true;
      if (!leaving_[i] && !gone_[i]) host = rank;
      gone_[i] = true;  // with its process: nothing holds this rank's memory there
    }
  }
  // First, because who sees the hub gone must see why.  Where its ranks have left, so may their process.
  if (!anyHost || host >= 0)
    setFailure(mkErrorRemote, (host >= 0 ? name(host)
                                         : format("the process that made the unique id (host %s, pid %lld)",
                                                  welcome_.hubHost.c_str(), static_cast<long long>(welcome_.hubPid))) +
                                  " died or closed its connection");
  const std::lock_guard lock(mutex_);
  hubGone_ = true;
  outbox_.clear();
  changed_.notify_all();
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
    ownReport_.reset();
    if (failure_.has_value() || departed_ || farewell_) return;
  }
  // First, so that who hears of it from a call that has failed finds it in the communicator too.
  if (events_.onVerdict) call([&] { events_.onVerdict(code, text); });
  const std::lock_guard lock(mutex_);
  failure_.emplace(code, text);
  changed_.notify_all();
}

}  // namespace mk
