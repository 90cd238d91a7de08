// See socket.h.
#include "host/socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>
#include <vector>

#include "host/error.h"

namespace mk {
namespace {

// Which descriptors are ours.  Indexed by descriptor; 0: not ours, else the token of this opening.
struct Register {
  std::mutex mutex;
  std::vector<uint64_t> tokens;
  uint64_t lastToken = 0;

  // The mutex must be held from before the descriptor is opened: a fork in between would leave an unknown copy.
  uint64_t add(int fd) {
    const auto index = static_cast<size_t>(fd);
    if (tokens.size() <= index) tokens.resize(std::max(index + 1, 2 * tokens.size()));
    tokens[index] = ++lastToken;
    return lastToken;
  }
  bool has(int fd, uint64_t token) const {
    const auto index = static_cast<size_t>(fd);
    return index < tokens.size() && tokens[index] == token;
  }
};

Register& theRegister();

void beforeFork() { theRegister().mutex.lock(); }
void afterForkInParent() { theRegister().mutex.unlock(); }
void afterForkInChild() {
  Register& all = theRegister();
  for (size_t i = 0; i < all.tokens.size(); ++i) {
    if (all.tokens[i] == 0) continue;
    close(static_cast<int>(i));
    all.tokens[i] = 0;
  }
  all.mutex.unlock();
}

// Never destroyed: threads may close sockets while static objects are being destroyed.
Register& theRegister() {
  static Register* const all = new Register;
  return *all;
}

void installForkHandlers() {
  static const int error = pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);
  if (error != 0) failErrno(error, "pthread_atfork");
}

int setOption(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof(value)); }

}  // namespace

int pollMs(TimePoint now, TimePoint then) {
  if (then <= now) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(then - now).count();
  return static_cast<int>(std::min<int64_t>(ms, INT_MAX));
}

std::string errnoText(int err) {
  char buffer[128];
  return strerror_r(err, buffer, sizeof(buffer));
}

// ---- Address -------------------------------------------------------------------------------------------------------

Address::Address(const sockaddr* address, socklen_t length) {
  std::memcpy(&storage_, address, std::min<size_t>(length, sizeof(storage_)));
}

Address::Address(int family, const uint8_t* bytes, uint16_t port, uint32_t scopeId) {
  if (family == AF_INET6) {
    sockaddr_in6 in6 = {};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    in6.sin6_scope_id = scopeId;
    std::memcpy(&in6.sin6_addr, bytes, 16);
    std::memcpy(&storage_, &in6, sizeof(in6));
  } else {
    sockaddr_in in = {};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, bytes, 4);
    std::memcpy(&storage_, &in, sizeof(in));
  }
}

uint16_t Address::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

uint32_t Address::scopeId() const {
  return family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_scope_id : 0;
}

const uint8_t* Address::bytes() const {
  if (family() == AF_INET6) return reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr.s6_addr;
  return reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr);
}

bool Address::linkLocal() const { return family() == AF_INET6 && bytes()[0] == 0xfe && (bytes()[1] & 0xc0) == 0x80; }

Address Address::withPort(uint16_t port) const { return {family(), bytes(), port, scopeId()}; }
Address Address::withScope(uint32_t scopeId) const { return {family(), bytes(), port(), scopeId}; }

std::string Address::text() const {
  if (family() != AF_INET && family() != AF_INET6) return "unknown address";
  char buffer[INET6_ADDRSTRLEN] = "?";
  inet_ntop(family(), bytes(), buffer, sizeof(buffer));
  if (family() == AF_INET) return format("%s:%u", buffer, port());
  if (scopeId() != 0) return format("[%s%%%u]:%u", buffer, scopeId(), port());
  return format("[%s]:%u", buffer, port());
}

socklen_t Address::length() const { return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

bool Address::operator==(const Address& other) const {
  return family() == other.family() && port() == other.port() && scopeId() == other.scopeId() &&
         std::memcmp(bytes(), other.bytes(), family() == AF_INET6 ? 16 : 4) == 0;
}

// ---- Fd ------------------------------------------------------------------------------------------------------------

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.fd_;
    token_ = other.token_;
    other.forget();
  }
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) {
    Register& all = theRegister();
    const std::lock_guard lock(all.mutex);
    if (all.has(fd_, token_)) {
      close(fd_);
      all.tokens[static_cast<size_t>(fd_)] = 0;
    }
  }
  forget();
}

Fd Fd::stream(int family) {
  installForkHandlers();
  Register& all = theRegister();
  const std::lock_guard lock(all.mutex);
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) failErrno(errno, "cannot make a TCP socket");
  return {fd, all.add(fd)};
}

Fd Fd::event() {
  installForkHandlers();
  Register& all = theRegister();
  const std::lock_guard lock(all.mutex);
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) failErrno(errno, "cannot make an event descriptor");
  return {fd, all.add(fd)};
}

Fd Fd::accept(int listener, Address* peer, int* err) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  Register& all = theRegister();
  const std::lock_guard lock(all.mutex);
  const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&storage), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  *err = fd < 0 ? errno : 0;
  if (fd < 0) return {};
  *peer = Address(reinterpret_cast<const sockaddr*>(&storage), length);
  return {fd, all.add(fd)};
}

std::mutex& forkMutex() { return theRegister().mutex; }

int openFds() {
  Register& all = theRegister();
  const std::lock_guard lock(all.mutex);
  return static_cast<int>(std::count_if(all.tokens.begin(), all.tokens.end(), [](uint64_t t) { return t != 0; }));
}

void signalEvent(int event) {
  const uint64_t one = 1;
  // Fails only where the counter is full, and then the other side is awake already.
  [[maybe_unused]] const ssize_t n = write(event, &one, sizeof(one));
}

void drainEvent(int event) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(event, &count, sizeof(count));
}

// ---- Streams -------------------------------------------------------------------------------------------------------

void tuneStream(int fd) {
  // Best effort: a system that lacks one of these still works, it only notices a vanished host later.
  setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  setOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  setOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  setOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
}

Fd listenStream(const Address& address, Address* bound) {
  Fd fd = Fd::stream(address.family());
  if (address.family() == AF_INET6) setOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd.get(), address.get(), address.length()) != 0) failErrno(errno, "cannot bind to " + address.text());
  if (listen(fd.get(), SOMAXCONN) != 0) failErrno(errno, "cannot listen on " + address.text());
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) failErrno(errno, "getsockname");
  *bound = Address(reinterpret_cast<const sockaddr*>(&storage), length);
  return fd;
}

bool waitFd(int fd, short events, TimePoint deadline) {
  pollfd entry = {fd, events, 0};
  for (;;) {
    const int n = poll(&entry, 1, pollMs(Clock::now(), deadline));
    if (n > 0) return true;
    const bool refused = n < 0 && errno != EINTR;  // for want of memory, or with a descriptor limit of nearly nothing
    if (refused) std::this_thread::sleep_for(pollRefusedPause);
    if (Clock::now() >= deadline) return false;
    if (refused) return true;  // the read or write that follows finds out
  }
}

Fd connectStream(const Address& address, TimePoint deadline, int* err) {
  Fd fd = Fd::stream(address.family());
  *err = 0;
  if (connect(fd.get(), address.get(), address.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    *err = errno;
    return {};
  }
  if (!waitFd(fd.get(), POLLOUT, deadline)) {
    *err = ETIMEDOUT;
    return {};
  }
  socklen_t length = sizeof(*err);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, err, &length) != 0) *err = errno;
  if (*err != 0) return {};
  // Connecting to a port of this host that nobody listens on any more can, rarely, connect a socket to itself.
  sockaddr_storage storage = {};
  length = sizeof(storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) == 0 &&
      Address(reinterpret_cast<const sockaddr*>(&storage), length) == address) {
    *err = ECONNREFUSED;
    return {};
  }
  tuneStream(fd.get());
  return fd;
}

}  // namespace mk
