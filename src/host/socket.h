// Sockets for the bootstrap: descriptors that close themselves (also in a forked child), addresses, listening, and
// connecting by a deadline.  Nothing here blocks but waitFd and connectStream, and those have a deadline.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace mk {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline TimePoint afterMs(int64_t ms) { return Clock::now() + std::chrono::milliseconds(ms); }
// From `now` to `then`, rounded up, between 0 and INT_MAX: a timeout for poll().
int pollMs(TimePoint now, TimePoint then);

// How long to pause where poll() itself fails, so that trying again does not take a whole core.
inline constexpr auto pollRefusedPause = std::chrono::milliseconds(10);

// strerror for any thread.
std::string errnoText(int err);

class Address {
 public:
  Address() = default;
  Address(const sockaddr* address, socklen_t length);
  // bytes: 4 (family AF_INET) or 16 (AF_INET6), in network order.
  Address(int family, const uint8_t* bytes, uint16_t port, uint32_t scopeId);

  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  uint32_t scopeId() const;  // 0 for IPv4
  const uint8_t* bytes() const;
  bool linkLocal() const;  // IPv6, fe80::/10
  Address withPort(uint16_t port) const;
  Address withScope(uint32_t scopeId) const;
  std::string text() const;  // 10.1.2.3:4567, [fe80::1%2]:4567

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const;
  bool operator==(const Address& other) const;

 private:
  sockaddr_storage storage_ = {};
};

// Owns a descriptor (CLOEXEC, non-blocking).  All open ones are in a register, and a forked child closes its copies: as
// long as one exists, the other side does not see the end of a connection when the parent dies.
class Fd {
 public:
  Fd() = default;
  Fd(Fd&& other) noexcept : fd_(other.fd_), token_(other.token_) { other.forget(); }
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  // The two throw Error(mkErrorSystem).
  static Fd stream(int family);
  static Fd event();
  // Empty with *err set if there is nothing to accept.
  static Fd accept(int listener, Address* peer, int* err);

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  Fd(int fd, uint64_t token) : fd_(fd), token_(token) {}
  void forget() {
    fd_ = -1;
    token_ = 0;
  }
  int fd_ = -1;
  uint64_t token_ = 0;  // this opening of the descriptor: after a fork the number may belong to another
};

// Held across every fork(), so whoever holds it sees none.  Only for a few instructions; no other lock is taken inside.
std::mutex& forkMutex();
// Descriptors open now, for tests.
int openFds();

// Wakes a poll() on `event` (Fd::event), and takes the wake-ups back.
void signalEvent(int event);
void drainEvent(int event);

// Bound to `address` with a port of the system's choice; *bound is where it listens.  Throws Error(mkErrorSystem).
Fd listenStream(const Address& address, Address* bound);
// Empty with *err set (ETIMEDOUT at the deadline) if it fails.
Fd connectStream(const Address& address, TimePoint deadline, int* err);
// No delay, and a vanished host is noticed in about 5 s.
void tuneStream(int fd);
// Until `events` (poll's) or an error; false at the deadline.
bool waitFd(int fd, short events, TimePoint deadline);

}  // namespace mk
