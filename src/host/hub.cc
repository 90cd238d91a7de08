// The hub's thread: one poll loop over all connections, in which nothing blocks.  A connection is a stranger until it has
// shown the secret; strangers have little time and memory and are few, and whatever one does is logged, and ends with it.
#include "host/hub.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <map>
#include <set>

#include "host/framed.h"
#include "host/hub_session.h"
#include "host/log.h"
#include "host/netif.h"
#include "host/params.h"
#include "host/thread.h"

namespace mk {
namespace {

constexpr int closingMs = 2000;        // for a connection to take the last message and to close
constexpr int acceptBatch = 64;        // connections accepted before the others get their turn
constexpr int acceptPauseMs = 50;      // after accept failed for want of descriptors or memory
constexpr int maxLinesPerSecond = 10;  // of the log, about strangers

class Hub : private ConnectionLine {
 public:
  Hub(const HubOptions& options, const Secret& secret, Fd listener)
      : options_(options),
        secret_(secret),
        listener_(std::move(listener)),
        wake_(Fd::event()),
        session_(this, hostName(), getpid(), afterMs(options.initTimeoutMs)) {}

  const Secret& secret() const { return secret_; }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  void requestStop() {
    stop_.store(true, std::memory_order_release);
    signalEvent(wake_.get());
  }

  void run() {
    try {
      while (!stop_.load(std::memory_order_acquire) && !(session_.over() && members() == 0)) turn();
    } catch (const std::exception& e) {
      // Only for want of memory.  The ranks see the connections end.
      MK_WARN(bootstrap, "the hub ends: %s", e.what());
    }
    logMoreStrangers();
    connections_.clear();
    listener_.reset();
    ended_.store(true, std::memory_order_release);
  }

 private:
  enum class State { stranger, member, closing };
  struct Connection {
    FramedSocket socket;
    Address peer;
    State state = State::stranger;
    bool finished = false;  // to be erased at the end of the turn
    TimePoint deadline;     // of a stranger, or of closing
  };
  using Connections = std::map<uint64_t, Connection>;

  void send(uint64_t connection, const FrameBytes& frame) override {
    const auto found = connections_.find(connection);
    if (found != connections_.end() && !found->second.finished) found->second.socket.queue(frame);
  }
  void close(uint64_t connection) override {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    strangers_.erase(connection);
    found->second.state = State::closing;
    found->second.deadline = afterMs(closingMs);
  }
  std::string acceptTrouble() const override {
    return acceptError_ == 0 ? ""
                             : format("; the hub could not accept connections: %s", errnoText(acceptError_).c_str());
  }

  size_t members() const { return connections_.size() - strangers_.size(); }
  void turn();
  TimePoint nextDeadline() const;
  void expire(TimePoint now);
  void acceptSome();
  void receive(uint64_t id, Connection& connection);
  void receiveStranger(uint64_t id, Connection& connection);
  void receiveMember(uint64_t id, Connection& connection);
  void flush(uint64_t id, Connection& connection);
  void dropStranger(uint64_t id, const char* why);
  void logMoreStrangers();

  const HubOptions options_;
  const Secret secret_;
  Fd listener_;
  Fd wake_;
  HubSession session_;
  Connections connections_;
  std::set<uint64_t> strangers_;  // ascending, so oldest first
  uint64_t lastId_ = 0;
  TimePoint acceptFrom_;
  int acceptError_ = 0;
  TimePoint logSecond_;
  int logLines_ = 0;
  bool pollRefused_ = false;
  std::atomic<bool> stop_ = false, ended_ = false;
};

void Hub::turn() {
  std::vector<pollfd> polled;
  std::vector<uint64_t> ids;
  const TimePoint before = Clock::now();
  polled.push_back({wake_.get(), POLLIN, 0});
  polled.push_back({before >= acceptFrom_ ? listener_.get() : -1, POLLIN, 0});
  for (const auto& [id, connection] : connections_) {
    polled.push_back(
        {connection.socket.fd(), static_cast<short>(connection.socket.wantsWrite() ? POLLIN | POLLOUT : POLLIN), 0});
    ids.push_back(id);
  }
  const TimePoint next = nextDeadline();
  const int timeout = next == TimePoint::max() ? -1 : pollMs(before, next);
  if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) {
    if (!pollRefused_) MK_WARN(bootstrap, "the hub cannot poll: %s; trying again", errnoText(errno).c_str());
    pollRefused_ = true;
    std::this_thread::sleep_for(pollRefusedPause);
    return;
  }
  if (polled[0].revents != 0) drainEvent(wake_.get());
  for (size_t i = 0; i < ids.size(); ++i)
    if (polled[i + 2].revents != 0) receive(ids[i], connections_.at(ids[i]));
  if (polled[1].revents != 0) acceptSome();
  const TimePoint now = Clock::now();
  session_.tick(now);
  expire(now);
  for (auto& [id, connection] : connections_) flush(id, connection);
  std::erase_if(connections_, [](const auto& entry) { return entry.second.finished; });
}

TimePoint Hub::nextDeadline() const {
  TimePoint next = session_.nextDeadline();
  if (Clock::now() < acceptFrom_) next = std::min(next, acceptFrom_);
  for (const auto& [id, connection] : connections_)
    if (connection.state != State::member) next = std::min(next, connection.deadline);
  return next;
}

void Hub::expire(TimePoint now) {
  for (auto& [id, connection] : connections_) {
    if (connection.finished || connection.state == State::member || now < connection.deadline) continue;
    if (connection.state == State::stranger)
      dropStranger(id, "did not identify itself in time");
    else
      connection.finished = true;
  }
}

void Hub::acceptSome() {
  for (int i = 0; i < acceptBatch; ++i) {
    Address peer;
    int error = 0;
    Fd fd = Fd::accept(listener_.get(), &peer, &error);
    if (!fd) {
      if (error == EAGAIN || error == EWOULDBLOCK) return;
      if (error == ECONNABORTED || error == EINTR || error == EPROTO) continue;
      // Out of descriptors or memory: strangers must not be what holds them.
      if (acceptError_ != error)
        MK_WARN(bootstrap, "cannot accept a connection: %s; trying again", errnoText(error).c_str());
      acceptError_ = error;
      if (!strangers_.empty()) dropStranger(*strangers_.begin(), "gave way: no more descriptors");
      acceptFrom_ = afterMs(acceptPauseMs);
      return;
    }
    // The oldest has had the most time; refusing the newest would let strangers keep the ranks out.
    if (strangers_.size() >= options_.maxStrangers)
      dropStranger(*strangers_.begin(), "gave way: too many connections have not identified themselves");
    tuneStream(fd.get());
    const uint64_t id = ++lastId_;
    const auto [entry, isNew] = connections_.try_emplace(
        id, Connection{FramedSocket(std::move(fd), maxHelloBytes), peer, State::stranger, false, {}});
    entry->second.deadline = afterMs(options_.strangerMs);
    strangers_.insert(id);
    receive(id, entry->second);  // what a rank has to say is mostly there already
  }
}

void Hub::receive(uint64_t id, Connection& connection) {
  if (connection.finished) return;
  switch (connection.state) {
    case State::stranger:
      receiveStranger(id, connection);
      break;
    case State::member:
      receiveMember(id, connection);
      break;
    case State::closing: {
      std::vector<Frame> ignored;
      if (connection.socket.receive(&ignored, SIZE_MAX) != FramedSocket::State::open) connection.finished = true;
      break;
    }
  }
}

void Hub::receiveStranger(uint64_t id, Connection& connection) {
  std::vector<Frame> frames;
  FramedSocket& socket = connection.socket;
  const auto state = socket.receive(&frames, 1);
  const uint32_t type = frames.empty() ? socket.partialType() : frames[0].type;
  const std::span<const uint8_t> body =
      frames.empty() ? socket.partialBody() : std::span<const uint8_t>(frames[0].body);
  if (state == FramedSocket::State::malformed) {
    dropStranger(id, socket.problem().c_str());
    return;
  }
  if (type != 0 && type != static_cast<uint32_t>(Message::hello)) {
    dropStranger(id, "began with another message than hello");
    return;
  }
  if (body.size() >= secret_.size() && !sameSecret(body.first(secret_.size()), secret_)) {
    dropStranger(id, "does not know the secret: its unique id is another communicator's");
    return;
  }
  if (frames.empty()) {
    if (state != FramedSocket::State::open) dropStranger(id, "closed without identifying itself");
    return;
  }
  Hello hello;
  if (body.size() < secret_.size() || !decode(body, &hello)) {
    dropStranger(id, "sent a hello that cannot be read");
    return;
  }
  strangers_.erase(id);
  connection.state = State::member;
  socket.setMaxBody(maxRankMessageBytes);
  MK_INFO(bootstrap, "%s joins from %s", rankName(hello).c_str(), connection.peer.text().c_str());
  session_.join(id, std::move(hello));
}

void Hub::receiveMember(uint64_t id, Connection& connection) {
  std::vector<Frame> frames;
  const auto state = connection.socket.receive(&frames, SIZE_MAX);
  for (const Frame& frame : frames) {
    if (session_.message(id, frame)) continue;
    MK_WARN(bootstrap, "%s sent a message (type %u) that is not legal here; dropping it",
            connection.peer.text().c_str(), frame.type);
    connection.finished = true;
    session_.lost(id, "sent a message that is not legal");
    return;
  }
  if (state == FramedSocket::State::open) return;
  if (connection.state == State::member) session_.lost(id, connection.socket.problem());
  connection.finished = true;
}

void Hub::flush(uint64_t id, Connection& connection) {
  if (connection.finished) return;
  FramedSocket& socket = connection.socket;
  if (socket.wantsWrite()) socket.flush();
  if (connection.state != State::closing || socket.wantsWrite()) return;
  // The end of the stream asks the other side to close; closing first could destroy what it has not read yet.
  socket.shutdownWrite();
  receive(id, connection);
}

void Hub::dropStranger(uint64_t id, const char* why) {
  Connection& connection = connections_.at(id);
  connection.finished = true;
  strangers_.erase(id);
  const TimePoint now = Clock::now();
  if (now - logSecond_ >= std::chrono::seconds(1)) {
    logMoreStrangers();
    logSecond_ = now;
    logLines_ = 0;
  }
  if (++logLines_ <= maxLinesPerSecond)
    MK_WARN(bootstrap, "dropped a stray connection from %s: it %s", connection.peer.text().c_str(), why);
}

void Hub::logMoreStrangers() {
  if (logLines_ > maxLinesPerSecond)
    MK_WARN(bootstrap, "dropped %d more stray connections", logLines_ - maxLinesPerSecond);
}

// ---- The process's hubs --------------------------------------------------------------------------------------------

struct RunningHub {
  std::unique_ptr<Hub> hub;
  std::thread thread;
  pid_t pid = getpid();  // a forked child inherits the list, but not the threads
};

// Guarded by forkMutex, so that a forked child finds it whole.  Never destroyed.
std::list<RunningHub>& runningHubs() {
  static auto* const hubs = new std::list<RunningHub>;
  return *hubs;
}

// Takes those out of the list that `wanted` says and that are this process's own, and joins their threads.
template <typename Predicate>
void joinHubs(Predicate wanted) {
  std::list<RunningHub> taken;
  {
    const std::lock_guard lock(forkMutex());
    auto& hubs = runningHubs();
    for (auto i = hubs.begin(); i != hubs.end();) {
      const auto current = i++;
      if (current->pid == getpid() && wanted(*current->hub)) taken.splice(taken.end(), hubs, current);
    }
  }
  for (RunningHub& running : taken) running.thread.join();
}

struct StopHubsAtExit {
  ~StopHubsAtExit() { stopHubs(); }
};

}  // namespace

std::string hostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

mkUniqueId_t startHub(const HubOptions& options) {
  params();  // and the log: constructed before, destroyed after what stops the hubs
  MK_INFO(bootstrap, "starting a hub");
  static const StopHubsAtExit stopAtExit;
  reapHubs();
  const auto interfaces = listInterfaces();
  const Interface& interface = chooseInterface(interfaces, options.interfaces, options.family);
  HubPlace place;
  place.secret = randomSecret();
  Fd listener = listenStream(interface.address, &place.address);
  MK_INFO(bootstrap, "hub on %s, %s", interface.name.c_str(), place.address.text().c_str());
  std::list<RunningHub> one(1);
  one.front().hub = std::make_unique<Hub>(options, place.secret, std::move(listener));
  Hub* const hub = one.front().hub.get();
  one.front().thread = startThread("mk-hub", [hub] { hub->run(); });
  const std::lock_guard lock(forkMutex());
  runningHubs().splice(runningHubs().end(), one);
  return encodeUniqueId(place);
}

bool hubRunsHere(const Secret& secret) {
  const std::lock_guard lock(forkMutex());
  const auto& hubs = runningHubs();
  return std::any_of(hubs.begin(), hubs.end(), [&](const RunningHub& running) {
    return running.pid == getpid() && sameSecret(running.hub->secret(), secret);
  });
}

int reapHubs() {
  joinHubs([](const Hub& hub) { return hub.ended(); });
  const std::lock_guard lock(forkMutex());
  const auto& hubs = runningHubs();
  return static_cast<int>(
      std::count_if(hubs.begin(), hubs.end(), [](const RunningHub& running) { return running.pid == getpid(); }));
}

void stopHubs() {
  joinHubs([](Hub& hub) {
    hub.requestStop();
    return true;
  });
}

}  // namespace mk
