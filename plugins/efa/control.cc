// See control.h.
#include "control.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "common/failure.h"

namespace mk::plugin::efa {
namespace {

constexpr HostAddress kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};

bool isMapped(const HostAddress& address) { return std::memcmp(address.data(), kMappedPrefix.data(), 12) == 0; }

// A host that vanishes says nothing; this finds it within half a minute.
void prepare(int fd) {
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);  // milliseconds; the same where something waits to be sent
}

UniqueFd streamSocket(int family) { return UniqueFd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

}  // namespace

std::string text(const HostAddress& address) {
  char words[INET6_ADDRSTRLEN] = "?";
  const bool mapped = isMapped(address);
  inet_ntop(mapped ? AF_INET : AF_INET6, address.data() + (mapped ? 12 : 0), words, sizeof(words));
  return words;
}

Message makeMessage(MessageType type, uint64_t a, uint64_t b, uint64_t c) {
  Message message = {};
  message.magic = kMagic;
  message.type = type;
  message.a = a;
  message.b = b;
  message.c = c;
  return message;
}

// ---- Connections ---------------------------------------------------------------------------------------------------

void Connection::send(const Message& message) {
  if (!open()) return;
  out_.append(reinterpret_cast<const char*>(&message), sizeof(message));
  flush();
}

void Connection::flush() {
  while (open() && !out_.empty()) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    // Broken: receive, which still has what the peer has said before, tells.
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) out_.clear();
    if (sent < 0) return;
    out_.erase(0, static_cast<size_t>(sent));
  }
}

Connection::Received Connection::receive(Message* message) {
  if (!open()) return Received::ended;
  while (have_ < in_.size()) {
    const ssize_t got = recv(fd_.get(), in_.data() + have_, in_.size() - have_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::nothing;
    if (got <= 0) return Received::ended;
    have_ += static_cast<size_t>(got);
  }
  have_ = 0;
  std::memcpy(message, in_.data(), in_.size());
  return message->magic == kMagic ? Received::message : Received::malformed;
}

void Connection::close() {
  fd_.reset();
  out_.clear();
}

// ---- Sockets -------------------------------------------------------------------------------------------------------

UniqueFd listenAnywhere(uint32_t* port) {
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_ANY);
  UniqueFd fd = streamSocket(AF_INET6);
  const int no = 0;
  // Without IPv6 on this machine, IPv4 alone.
  if (!fd || setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&six), sizeof(six)) != 0) {
    fd = streamSocket(AF_INET);
    if (!fd) failErrno(errno, "listening socket");
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&four), sizeof(four)) != 0)
      failErrno(errno, "listening socket: bind");
  }
  if (listen(fd.get(), SOMAXCONN) != 0) failErrno(errno, "listening socket: listen");
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    failErrno(errno, "listening socket: getsockname");
  // The port lies at the same place in both.
  *port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return fd;
}

std::vector<HostAddress> ownAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) failErrno(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<std::pair<int, HostAddress>> found;  // with its rank
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const bool own = (one->ifa_flags & IFF_LOOPBACK) != 0;
    if (one->ifa_addr->sa_family == AF_INET) {
      HostAddress address = kMappedPrefix;
      std::memcpy(address.data() + 12, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, 4);
      found.emplace_back(own ? 2 : 0, address);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&six)) continue;  // of use only together with an interface
      HostAddress address = {};
      std::memcpy(address.data(), &six, 16);
      found.emplace_back(own ? 3 : 1, address);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<HostAddress> addresses;
  addresses.reserve(found.size());
  for (const auto& [rank, address] : found) addresses.push_back(address);
  if (addresses.empty()) fail(mkErrorSystem, "no network interface has an address");
  return addresses;
}

UniqueFd beginConnect(const HostAddress& host, uint32_t port) {
  sockaddr_in four = {};
  sockaddr_in6 six = {};
  const bool mapped = isMapped(host);
  four.sin_family = AF_INET;
  six.sin6_family = AF_INET6;
  four.sin_port = six.sin6_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&four.sin_addr, host.data() + 12, 4);
  std::memcpy(&six.sin6_addr, host.data(), 16);
  UniqueFd fd = streamSocket(mapped ? AF_INET : AF_INET6);
  if (!fd) return fd;
  prepare(fd.get());
  int result;
  do
    result = mapped ? connect(fd.get(), reinterpret_cast<const sockaddr*>(&four), sizeof(four))
                    : connect(fd.get(), reinterpret_cast<const sockaddr*>(&six), sizeof(six));
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EINPROGRESS) fd.reset();
  return fd;
}

int connectState(int fd) {
  pollfd wait = {fd, POLLOUT, 0};
  if (::poll(&wait, 1, 0) <= 0) return EINPROGRESS;
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

UniqueFd acceptOne(int listener) {
  for (;;) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) prepare(fd.get());
    if (fd || errno == EAGAIN || errno == EWOULDBLOCK) return fd;
    if (errno != EINTR && errno != ECONNABORTED) failErrno(errno, "accepting a peer's connection");
  }
}

}  // namespace mk::plugin::efa
