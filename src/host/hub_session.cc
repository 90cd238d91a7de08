// See hub_session.h.
#include "host/hub_session.h"

#include <algorithm>

#include "host/log.h"

namespace mk {
namespace {

// After a failed join the hub waits at least this long for ranks that still come, to tell them the same error.
constexpr int lingerMs = 2000;

std::string versionText(uint32_t library, uint32_t wire) {
  return format("version %u.%u.%u (bootstrap %u)", library / 10000, library / 100 % 100, library % 100, wire);
}

}  // namespace

HubSession::HubSession(ConnectionLine* line, std::string hubHost, int64_t hubPid, TimePoint deadline)
    : line_(line), hubHost_(std::move(hubHost)), hubPid_(hubPid), deadline_(deadline) {}

bool HubSession::reachable(int rank) const {
  const Presence p = ranks_[static_cast<size_t>(rank)].presence;
  return p == Presence::joined || p == Presence::leaving;
}

void HubSession::send(int rank, const FrameBytes& frame) {
  if (reachable(rank)) line_->send(ranks_[static_cast<size_t>(rank)].connection, frame);
}

void HubSession::broadcast(const FrameBytes& frame, int except) {
  for (int rank = 0; rank < nranks(); ++rank)
    if (rank != except) send(rank, frame);
}

std::string HubSession::hubName() const {
  return format("host %s, pid %lld", hubHost_.c_str(), static_cast<long long>(hubPid_));
}

// ---- Joining -------------------------------------------------------------------------------------------------------

// What makes this rank impossible at once, whoever else comes.
std::optional<std::string> HubSession::misfit(const Hello& hello, mkResult_t* code) const {
  *code = mkErrorVersion;
  if (hello.wire != wireVersion || hello.library != MK_VERSION_CODE)
    return format("library versions differ: %s runs %s, the process that made the unique id (%s) runs %s",
                  rankName(hello).c_str(), versionText(hello.library, hello.wire).c_str(), hubName().c_str(),
                  versionText(MK_VERSION_CODE, wireVersion).c_str());
  *code = mkErrorInvalidUsage;
  if (hello.nranks < 1 || hello.nranks > maxRanks)
    return format("nranks is %d on %s; legal are 1 to %d", hello.nranks, rankName(hello).c_str(), maxRanks);
  if (!ranks_.empty() && hello.nranks != nranks()) {
    const Hello& other = *present().front();
    return format("nranks differs between ranks: %d on %s, %d on %s", other.nranks, rankName(other).c_str(),
                  hello.nranks, rankName(hello).c_str());
  }
  if (hello.rank < 0 || hello.rank >= hello.nranks)
    return format("%s is out of range; with %d ranks legal are 0 to %d", rankName(hello).c_str(), hello.nranks,
                  hello.nranks - 1);
  if (!ranks_.empty() && ranks_[static_cast<size_t>(hello.rank)].presence != Presence::absent)
    return format("rank %d was given twice: to %s and to %s", hello.rank, name(hello.rank).c_str(),
                  rankName(hello).c_str());
  return std::nullopt;
}

void HubSession::join(uint64_t connection, Hello hello) {
  if (joinError_.has_value()) {
    tellJoinError(connection, hello.rank);
    return;
  }
  if (phase_ != Phase::joining) {
    const std::string text = format(
        "%s comes to a communicator that is complete: its %d ranks have all joined; every communicator needs a "
        "unique id of its own",
        rankName(hello).c_str(), nranks());
    MK_WARN(bootstrap, "%s", text.c_str());
    line_->send(connection, encodeError(Message::joinError, mkErrorInvalidUsage, text));
    line_->close(connection);
    return;
  }
  mkResult_t code = mkSuccess;
  if (const auto text = misfit(hello, &code); text.has_value()) {
    failJoin(code, *text);
    tellJoinError(connection, hello.rank);
    return;
  }
  const TimePoint ownDeadline = afterMs(hubShareOfTimeout(hello.leftMs));
  if (ranks_.empty()) {
    ranks_.resize(static_cast<size_t>(hello.nranks));
    deadline_ = TimePoint::max();
  }
  if (ownDeadline < deadline_) {
    deadline_ = ownDeadline;
    shortestTimeoutMs_ = hello.timeoutMs;
  }
  Rank& rank = ranks_[static_cast<size_t>(hello.rank)];
  rank.presence = Presence::joined;
  rank.connection = connection;
  rankOf_[connection] = hello.rank;
  rank.hello = std::move(hello);
  if (++joined_ == ranks_.size()) welcomeAll();
}

std::vector<const Hello*> HubSession::present() const {
  std::vector<const Hello*> result;
  for (const Rank& rank : ranks_)
    if (rank.presence != Presence::absent) result.push_back(&rank.hello);
  return result;
}

void HubSession::welcomeAll() {
  Welcome welcome;
  try {
    compareRanks(present());
    welcome = arrangeRanks(present());
  } catch (const Error& e) {
    failJoin(e.code(), e.what());
    return;
  }
  welcome.hubHost = hubHost_;
  welcome.hubPid = hubPid_;
  RankLine* const ranks = this;
  collectives_ = std::make_unique<HubCollectives>(ranks);
  failure_ = std::make_unique<HubFailure>(
      ranks, [this](mkResult_t code, const std::string& text) { verdict(code, text, /*except=*/-1); });
  phase_ = Phase::running;
  broadcast(encode(welcome), -1);
  for (Rank& rank : ranks_) rank.hello.settings = std::string();
  MK_INFO(bootstrap, "all %d ranks have joined, %d nodes", nranks(), welcome.nodes);
}

void HubSession::failJoin(mkResult_t code, const std::string& text) {
  phase_ = Phase::failed;
  joinError_.emplace(code, text);
  deadline_ = std::max(deadline_, afterMs(lingerMs));
  MK_INFO(bootstrap, "initialisation failed: %s", text.c_str());
  for (int rank = 0; rank < nranks(); ++rank)
    if (reachable(rank)) tellJoinError(ranks_[static_cast<size_t>(rank)].connection, rank);
}

void HubSession::tellJoinError(uint64_t connection, int rank) {
  line_->send(connection, encodeError(Message::joinError, joinError_->code(), joinError_->what()));
  line_->close(connection);
  noteTold(rank);
}

void HubSession::noteTold(int rank) {
  if (rank >= 0 && rank < nranks()) toldJoinError_.insert(rank);
  if (!ranks_.empty() && toldJoinError_.size() == ranks_.size()) phase_ = Phase::over;
}

void HubSession::joinDeadline() {
  if (ranks_.empty()) {
    MK_INFO(bootstrap, "no rank has come: the unique id is no longer valid");
    phase_ = Phase::over;
    return;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < nranks(); ++rank)
    if (!reachable(rank)) missing.push_back(rank);
  const std::string text = format("%zu of %d ranks had not joined within %u ms: rank %s%s", missing.size(), nranks(),
                                  shortestTimeoutMs_, rankList(missing).c_str(), line_->acceptTrouble().c_str());
  try {
    compareRanks(present());
  } catch (const Error& e) {
    failJoin(e.code(), format("%s; besides, %s", e.what(), text.c_str()));
    return;
  }
  failJoin(mkErrorTimeout, text);
}

// ---- Running -------------------------------------------------------------------------------------------------------

bool HubSession::message(uint64_t connection, const Frame& frame) {
  const auto found = rankOf_.find(connection);
  if (found == rankOf_.end()) return false;
  const int rank = found->second;
  Rank& sender = ranks_[static_cast<size_t>(rank)];
  // After a failed join the ranks close; after a goodbye what was still under way says nothing new.
  if (phase_ == Phase::failed || phase_ == Phase::over || !reachable(rank)) return true;
  if (phase_ == Phase::joining) return false;
  WireReader reader(frame.body);
  switch (static_cast<Message>(frame.type)) {
    case Message::contribution: {
      Contribution c;
      if (!decode(frame.body, &c) || !collectives_->contribute(rank, std::move(c))) return false;
      compareCalls();
      return true;
    }
    case Message::report: {
      FailureReport r;
      if (!decode(frame.body, &r)) return false;
      MK_INFO(bootstrap, "%s reports: %s", name(rank).c_str(), r.text.c_str());
      if (hasVerdict_) return true;
      failure_->report(rank, std::move(r));
      compareCalls();
      return true;
    }
    case Message::arguments: {
      const uint32_t hash = reader.u32();
      const uint64_t epoch = reader.u64();
      const std::string text = reader.text(maxReportBytes);
      if (!reader.atEnd()) return false;
      failure_->arguments(rank, hash, epoch, text);
      return true;
    }
    case Message::revoke:
      verdict(mkErrorRemote, name(rank) + " revoked the communicator", rank);
      return true;
    case Message::leave:
      if (sender.presence == Presence::leaving) return false;
      sender.presence = Presence::leaving;
      broadcast(encodeRank(Message::leaving, rank), rank);
      collectives_->rankLeft(rank);
      return true;
    case Message::letGo: {
      const int leaver = reader.i32();
      if (!reader.atEnd() || leaver < 0 || leaver >= nranks()) return false;
      send(leaver, encodeRank(Message::letGo, rank));
      return true;
    }
    case Message::goodbye:
      if (sender.presence != Presence::leaving) return false;
      sender.saidGoodbye = true;
      setGone(rank);
      return true;
    default:
      return false;
  }
}

void HubSession::lost(uint64_t connection, const std::string& how) {
  const auto found = rankOf_.find(connection);
  if (found == rankOf_.end()) return;
  const int rank = found->second;
  rankOf_.erase(found);
  if (phase_ == Phase::failed || phase_ == Phase::over) return;
  const std::string who = name(rank);
  if (phase_ == Phase::joining) {
    MK_INFO(bootstrap, "%s: %s", who.c_str(), how.c_str());
    ranks_[static_cast<size_t>(rank)].presence = Presence::gone;
    failJoin(mkErrorRemote, who + " died or closed its connection during initialisation");
    noteTold(rank);
    return;
  }
  const Presence before = ranks_[static_cast<size_t>(rank)].presence;
  if (before == Presence::gone) return;
  MK_INFO(bootstrap, "%s: %s", who.c_str(), how.c_str());
  setGone(rank);
  // Where arguments differ, that is the cause, and the verdict on it is under way.
  if (before == Presence::joined && !failure_->mismatchPending())
    verdict(mkErrorRemote, who + " died or closed its connection", rank);
}

void HubSession::verdict(mkResult_t code, const std::string& text, int except) {
  if (hasVerdict_) return;
  hasVerdict_ = true;
  MK_INFO(bootstrap, "verdict %d: %s", static_cast<int>(code), text.c_str());
  collectives_->stop();
  failure_->stop();
  broadcast(encodeError(Message::verdict, code, text), except);
}

void HubSession::compareCalls() {
  if (!hasVerdict_) failure_->compareCalls([this](uint64_t epoch) { return collectives_->elsewhere(epoch); });
}

void HubSession::setGone(int rank) {
  ranks_[static_cast<size_t>(rank)].presence = Presence::gone;
  if (!hasVerdict_) failure_->rankGone(rank);
  broadcast(encodeRank(Message::gone, rank), rank);
  sayFarewells();
}

// A rank in the hub's own process is kept until the others are gone, because once it returns the process may end, and the hub
// with it.  Only the last one of several: its process cannot end before all have left, and one thread may destroy them in turn.
void HubSession::sayFarewells() {
  size_t hubsLeft = 0;
  bool othersGone = true;
  for (const Rank& rank : ranks_) {
    if (rank.presence == Presence::gone) continue;
    if (rank.hello.inHubProcess)
      ++hubsLeft;
    else
      othersGone = false;
  }
  for (Rank& rank : ranks_) {
    if (!rank.saidGoodbye || rank.toldFarewell) continue;
    if (rank.hello.inHubProcess && hubsLeft == 0 && !othersGone) continue;
    rank.toldFarewell = true;
    line_->send(rank.connection, encodeEmpty(Message::farewell));
    line_->close(rank.connection);
  }
  if (othersGone && hubsLeft == 0) phase_ = Phase::over;
}

// ---- Time ----------------------------------------------------------------------------------------------------------

void HubSession::tick(TimePoint now) {
  switch (phase_) {
    case Phase::joining:
      if (now >= deadline_) joinDeadline();
      return;
    case Phase::failed:
      if (now >= deadline_) phase_ = Phase::over;
      return;
    case Phase::running:
      collectives_->tick(now);
      failure_->tick(now);
      return;
    case Phase::over:
      return;
  }
}

TimePoint HubSession::nextDeadline() const {
  switch (phase_) {
    case Phase::joining:
    case Phase::failed:
      return deadline_;
    case Phase::running:
      return std::min(collectives_->nextDeadline(), failure_->nextDeadline());
    case Phase::over:
      break;
  }
  return TimePoint::max();
}

}  // namespace mk
