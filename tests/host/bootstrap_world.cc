// See bootstrap_world.h.
#include "bootstrap_world.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "support/catch_compat.h"

namespace test {

using mk::afterMs;
using mk::Clock;

mk::HubOptions localOptions() {
  mk::HubOptions options;
  options.interfaces = "lo";
  options.family = "inet";
  options.initTimeoutMs = 20000;
  return options;
}

mkUniqueId_t localId() { return mk::startHub(localOptions()); }

Outcome run(const std::function<void(Outcome&)>& call) {
  Outcome outcome;
  const auto start = Clock::now();
  try {
    call(outcome);
  } catch (const mk::Error& e) {
    outcome.code = e.code();
    outcome.text = e.what();
  }
  outcome.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return outcome;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void checkSame(const std::vector<Outcome>& outcomes, mkResult_t code, const std::vector<std::string>& parts) {
  REQUIRE(!outcomes.empty());
  INFO(outcomes[0].text);
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code == code);
    CHECK(outcome.text == outcomes[0].text);
  }
  for (const std::string& part : parts) {
    INFO("lacks: " << part);
    CHECK(contains(outcomes[0].text, part));
  }
}

// ---- Recorder ------------------------------------------------------------------------------------------------------

mk::BootstrapEvents Recorder::events() {
  mk::BootstrapEvents events;
  events.onVerdict = [this](mkResult_t code, const std::string& text) {
    const std::lock_guard lock(mutex_);
    // A second one would be a fault, and shows.
    verdict_ = {code, ++verdicts_ == 1 ? text : "SECOND VERDICT: " + text};
    changed_.notify_all();
  };
  events.onLeaving = [this](int rank) {
    const std::lock_guard lock(mutex_);
    leaving_.insert(rank);
    if (bootstrap_ != nullptr && letGoAtOnce_) bootstrap_->letGo(rank);
    changed_.notify_all();
  };
  events.onTick = [this] {
    const std::lock_guard lock(mutex_);
    ++ticks_;
    changed_.notify_all();
  };
  if (argumentText) events.argumentText = argumentText;
  return events;
}

void Recorder::attach(mk::Bootstrap* bootstrap) {
  const std::lock_guard lock(mutex_);
  bootstrap_ = bootstrap;
  if (bootstrap_ == nullptr || !letGoAtOnce_) return;
  for (const int rank : leaving_) bootstrap_->letGo(rank);
}

std::optional<std::pair<mkResult_t, std::string>> Recorder::verdict(int ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, afterMs(ms), [&] { return verdict_.has_value(); });
  return verdict_;
}

bool Recorder::sawLeaving(int rank, int ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, afterMs(ms), [&] { return leaving_.count(rank) != 0; });
}

int Recorder::ticks() {
  const std::lock_guard lock(mutex_);
  return ticks_;
}

void Recorder::waitTicks(int count) {
  std::unique_lock lock(mutex_);
  const int until = ticks_ + count;
  changed_.wait_until(lock, afterMs(5000), [&] { return ticks_ >= until; });
}

// ---- World ---------------------------------------------------------------------------------------------------------

std::vector<Outcome> inThreads(int n, const std::function<void(int, Outcome&)>& call) {
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back(
        [&, i] { outcomes[static_cast<size_t>(i)] = run([&](Outcome& outcome) { call(i, outcome); }); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

mk::Identity identity(int rank, int nranks, const std::string& hostId) {
  mk::Identity identity;
  identity.rank = rank;
  identity.nranks = nranks;
  identity.hostId = hostId;
  identity.settings = "heapMaxBytes=68719476736\nepochStart=0\n";
  return identity;
}

std::vector<Outcome> joinAll(const mkUniqueId_t& id, const std::vector<mk::Identity>& identities, int timeoutMs) {
  return inThreads(static_cast<int>(identities.size()), [&](int i, Outcome&) {
    mk::Bootstrap::join(id, identities[static_cast<size_t>(i)], timeoutMs, {});
  });
}

World::World(int n, std::optional<mkUniqueId_t> id, const std::function<void(int, mk::Identity&)>& change,
             int timeoutMs, bool letGoAtOnce)
    : ranks_(static_cast<size_t>(n)) {
  const mkUniqueId_t theId = id.has_value() ? *id : localId();
  for (int i = 0; i < n; ++i) recorders_.push_back(std::make_unique<Recorder>(letGoAtOnce));
  const auto outcomes = inThreads(n, [&](int i, Outcome&) {
    mk::Identity own = identity(i, n);
    if (change) change(i, own);
    Recorder& recorder = *recorders_[static_cast<size_t>(i)];
    recorder.argumentText = [i](uint32_t hash, uint64_t epoch) {
      return mk::format("arguments %u of epoch %llu, rank %d's", hash, static_cast<unsigned long long>(epoch), i);
    };
    auto& bootstrap = ranks_[static_cast<size_t>(i)];
    bootstrap = mk::Bootstrap::join(theId, own, timeoutMs, recorder.events());
    bootstrap->initialised();
    recorder.attach(bootstrap.get());
  });
  for (const Outcome& outcome : outcomes)
    if (outcome.code != mkSuccess) throw std::runtime_error("joining failed: " + outcome.text);
}

World::~World() {
  std::vector<int> left;
  for (int i = 0; i < size(); ++i)
    if (ranks_[static_cast<size_t>(i)] != nullptr) left.push_back(i);
  if (left.empty()) return;
  all([&](int rank, Outcome&) { (*this)[rank].depart(2000); }, left);
  for (const int rank : left) {
    recorder(rank).attach(nullptr);
    kill(rank);
  }
}

std::vector<Outcome> World::all(const std::function<void(int, Outcome&)>& call, std::vector<int> ranks) {
  if (ranks.empty())
    for (int i = 0; i < size(); ++i) ranks.push_back(i);
  return inThreads(static_cast<int>(ranks.size()),
                   [&](int i, Outcome& outcome) { call(ranks[static_cast<size_t>(i)], outcome); });
}

std::vector<int> World::depart(int rank, int ms) {
  std::vector<int> left = (*this)[rank].depart(ms);
  recorder(rank).attach(nullptr);
  kill(rank);
  return left;
}

// ---- Raw connections -----------------------------------------------------------------------------------------------

RawRank::RawRank(const mkUniqueId_t& id) {
  const mk::HubPlace place = mk::decodeUniqueId(id);
  secret_ = place.secret;
  int error = 0;
  mk::Fd fd = mk::connectStream(place.address, afterMs(5000), &error);
  if (!fd) throw std::runtime_error("connect: " + mk::errnoText(error));
  socket_.emplace(std::move(fd), mk::maxHubMessageBytes(1));
}

void RawRank::send(const mk::FrameBytes& frame) {
  socket_->queue(frame);
  socket_->flush();
}

void RawRank::sendBytes(const std::string& bytes) {
  // The hub may have dropped the connection already.
  [[maybe_unused]] const ssize_t n = ::send(socket_->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

mk::Hello RawRank::hello(int rank, int nranks) const {
  mk::Hello hello;
  hello.secret = secret_;
  hello.rank = rank;
  hello.nranks = nranks;
  hello.pid = getpid();
  hello.host = "rawhost";
  hello.timeoutMs = hello.leftMs = 10000;
  hello.hostId = "h0";
  hello.settings = identity(rank, nranks).settings;
  return hello;
}

std::optional<mk::Frame> RawRank::receive(int ms) {
  std::vector<mk::Frame> frames;
  const auto deadline = afterMs(ms);
  for (;;) {
    const auto state = socket_->receive(&frames, 1);
    if (!frames.empty()) return frames[0];
    if (state != mk::FramedSocket::State::open || !mk::waitFd(socket_->fd(), POLLIN, deadline)) return std::nullopt;
  }
}

bool RawRank::ended(int ms) {
  std::vector<mk::Frame> frames;
  const auto deadline = afterMs(ms);
  while (socket_->receive(&frames, SIZE_MAX) == mk::FramedSocket::State::open)
    if (!mk::waitFd(socket_->fd(), POLLIN, deadline)) return false;
  return true;
}

std::string RawRank::ownAddress() const {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  if (getsockname(socket_->fd(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) return "?";
  return mk::Address(reinterpret_cast<const sockaddr*>(&storage), length).text();
}

std::pair<mkResult_t, std::string> errorOf(const mk::Frame& frame) {
  mk::WireReader reader(frame.body);
  const auto code = static_cast<mkResult_t>(reader.u32());
  return {code, reader.text(mk::maxTextBytes)};
}

// ---- Standard error ------------------------------------------------------------------------------------------------

CaptureStderr::CaptureStderr() : saved_(dup(STDERR_FILENO)), file_(memfd_create("stderr", MFD_CLOEXEC)) {
  if (saved_ < 0 || file_ < 0 || dup2(file_, STDERR_FILENO) < 0) throw std::runtime_error("cannot redirect stderr");
}

CaptureStderr::~CaptureStderr() {
  dup2(saved_, STDERR_FILENO);
  close(saved_);
  close(file_);
}

std::string CaptureStderr::text() {
  std::string result(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
  const ssize_t n = pread(file_, result.data(), result.size(), 0);
  result.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return result;
}

}  // namespace test
