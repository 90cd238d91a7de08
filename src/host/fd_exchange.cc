#include "host/fd_exchange.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>

#include "host/socket.h"
#include "host/wire.h"

namespace mk {

namespace {

using Token = std::array<uint8_t, 16>;

// What a rank tells the others: where it listens.  The token keeps strangers out.
struct Offer {
  Token name, token;
};
// What travels beside the descriptors: the receiver's token, who sends, and how many.
struct Greeting {
  Token token;
  int32_t rank;
  uint32_t count;
};

constexpr int kFriendMs = 10'000;

struct UnixAddress {
  sockaddr_un address = {};
  socklen_t length = 0;
  explicit UnixAddress(const Token& name) {
    address.sun_family = AF_UNIX;
    std::string text = "mkernel-";
    for (const uint8_t b : name) text += format("%02x", b);
    // Abstract: a leading zero byte, no file, gone with the socket.
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// A signal handler of the application may interrupt any of these calls.
template <class Call>
auto again(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

UniqueFd unixSocket(int flags) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd) failErrno(errno, "cannot make a Unix socket to pass descriptors");
  return fd;
}

UniqueFd listenAt(const Token& name, int backlog) {
  UniqueFd fd = unixSocket(SOCK_NONBLOCK);
  const UnixAddress at(name);
  if (bind(fd.get(), at.get(), at.length) != 0 || listen(fd.get(), backlog) != 0)
    failErrno(errno, "cannot listen on a Unix socket to pass descriptors");
  return fd;
}

void give(const Offer& to, const std::vector<int>& fds, int rank) {
  const UniqueFd socket = unixSocket(0);
  const UnixAddress at(to.name);
  if (again([&] { return connect(socket.get(), at.get(), at.length); }) != 0)
    failErrno(errno, "cannot reach a peer of this node over a Unix socket (do the ranks share a network namespace?)");
  Greeting greeting{to.token, rank, static_cast<uint32_t>(fds.size())};
  iovec data{&greeting, sizeof(greeting)};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    const size_t bytes = fds.size() * sizeof(int);
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), fds.data(), bytes);
  }
  if (again([&] { return sendmsg(socket.get(), &message, MSG_NOSIGNAL); }) != static_cast<ssize_t>(sizeof(greeting)))
    failErrno(errno, "cannot pass a descriptor to a peer of this node");
}

// One connection: false for a stranger or a broken message, which is dropped.
bool take(int listener, const Token& token, int64_t leftMs, int* rank, std::vector<UniqueFd>* fds) {
  const UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED) return false;
    failErrno(errno, "cannot accept a peer's descriptor");
  }
  // A friend sends right after it has connected, but may lose the processor in between.
  Greeting greeting = {};
  iovec data{&greeting, sizeof(greeting)};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof(space);
  pollfd ready{socket.get(), POLLIN, 0};
  if (again([&] { return poll(&ready, 1, static_cast<int>(std::min<int64_t>(leftMs, kFriendMs))); }) != 1) return false;
  const ssize_t n = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  std::vector<UniqueFd> got;
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS || h->cmsg_len < CMSG_LEN(0)) continue;
    for (size_t at = 0; at + sizeof(int) <= h->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(h) + at, sizeof(int));
      got.emplace_back(raw);
    }
  }
  if (n != static_cast<ssize_t>(sizeof(greeting)) || greeting.token != token) return false;
  if (got.size() != greeting.count && (message.msg_flags & MSG_CTRUNC) != 0)
    fail(mkErrorSystem, "no free descriptor here for the %u that rank %d has passed", greeting.count, greeting.rank);
  if (got.size() != greeting.count) return false;
  *rank = greeting.rank;
  *fds = std::move(got);
  return true;
}

}  // namespace

uint64_t processToken() {
  static pid_t owner = 0;
  static uint64_t token = 0;
  const std::lock_guard lock(forkMutex());
  if (owner != getpid()) {
    if (getrandom(&token, sizeof(token), 0) != static_cast<ssize_t>(sizeof(token))) failErrno(errno, "no random bytes");
    owner = getpid();
  }
  return token;
}

std::vector<std::vector<UniqueFd>> exchangeFds(Bootstrap& bootstrap, int rank, const std::vector<uint64_t>& processes,
                                               const std::vector<int>& fds, bool withinProcess,
                                               const std::string& what) {
  const std::vector<PeerInfo>& peers = bootstrap.peers();
  const PeerInfo& me = peers[static_cast<size_t>(rank)];
  std::vector<const PeerInfo*> others;  // who give me theirs and get mine
  for (const PeerInfo& p : peers) {
    if (p.node == me.node && p.rank != rank &&
        (withinProcess || processes[static_cast<size_t>(p.rank)] != processToken()))
      others.push_back(&p);
  }

  // Each step that can fail on one rank alone ends in an agreement, so that no rank waits for one that has given up.
  mkResult_t result = mkSuccess;
  std::string text;
  const auto attempt = [&](auto&& step) {
    if (result != mkSuccess) return;
    try {
      step();
    } catch (const Error& e) {
      result = e.code();
      text = e.what();
    }
  };

  Offer mine = {};
  UniqueFd listener;
  attempt([&] {
    if (fds.size() > kMaxFds)
      fail(mkErrorNotSupported, "%s: %zu descriptors; legal: up to %zu", what.c_str(), fds.size(), kMaxFds);
    if (getrandom(&mine, sizeof(mine), 0) != static_cast<ssize_t>(sizeof(mine))) failErrno(errno, "no random bytes");
    if (!others.empty()) listener = listenAt(mine.name, static_cast<int>(others.size()) + 16);
  });
  bootstrap.agree(result, text, what + ": listening");
  const std::vector<std::vector<uint8_t>> offers =
      bootstrap.allgather(std::span(reinterpret_cast<const uint8_t*>(&mine), sizeof(mine)), what + ": addresses");

  std::vector<std::vector<UniqueFd>> all(static_cast<size_t>(bootstrap.ranksPerNode()));
  attempt([&] {
    for (const PeerInfo* p : others) {
      Offer to = {};
      const std::vector<uint8_t>& bytes = offers[static_cast<size_t>(p->rank)];
      if (bytes.size() != sizeof(to))
        fail(mkErrorInternal, "rank %d sent an address of %zu bytes", p->rank, bytes.size());
      std::memcpy(&to, bytes.data(), sizeof(to));
      give(to, fds, rank);
    }
    const auto deadline = Clock::now() + std::chrono::milliseconds(bootstrap.leftMs());
    std::vector<const PeerInfo*> missing = others;
    while (!missing.empty()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd ready{listener.get(), POLLIN, 0};
      if (left <= 0 || poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 100))) < 0) {
        if (left > 0 && errno == EINTR) continue;
        fail(mkErrorTimeout, "%zu of %zu ranks of this node have not passed their descriptors: %s%s", missing.size(),
             others.size(), rankName(missing[0]->rank, missing[0]->host, missing[0]->pid).c_str(),
             missing.size() > 1 ? " and others" : "");
      }
      if ((ready.revents & POLLIN) == 0) {
        bootstrap.check(what);  // or it would wait for one that has given up
        continue;
      }
      int from = -1;
      std::vector<UniqueFd> got;
      if (!take(listener.get(), mine.token, left, &from, &got)) continue;
      const auto sender =
          std::find_if(missing.begin(), missing.end(), [&](const PeerInfo* p) { return p->rank == from; });
      if (sender == missing.end()) continue;
      all[static_cast<size_t>((*sender)->localRank)] = std::move(got);
      missing.erase(sender);
    }
  });
  bootstrap.agree(result, text, what + ": passing descriptors");
  return all;
}

}  // namespace mk
