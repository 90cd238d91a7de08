// See socket.h.
#include "socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::loopback {
namespace {

// Abstract names begin with a zero byte and are not terminated.
socklen_t fill(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof(address->sun_path))
    fail(mkErrorInvalidArgument, "socket name of %zu characters; legal are 1 to %zu", name.size(),
         sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

Message makeMessage(MessageType type) {
  Message message = {};
  message.magic = kMagic;
  message.type = type;
  return message;
}

Connection::Sent Connection::sendNow(const Message& message, int fd) {
  iovec part = {const_cast<Message*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  ssize_t sent;
  do sent = sendmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::done;
  // ETOOMANYREFS: too many descriptors under way, until the peers take theirs out.
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS)
    return Sent::later;
  return Sent::broken;
}

void Connection::send(const Message& message, int fd) {
  flush();
  if (!open()) return;
  Sent sent = backlog_.empty() ? sendNow(message, fd) : Sent::later;
  if (sent == Sent::later) {
    UniqueFd copy(fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1);
    if (fd >= 0 && !copy) failErrno(errno, "descriptor to be sent to a peer: dup");
    backlog_.emplace_back(message, std::move(copy));
  } else if (sent == Sent::broken) {
    close();  // the peer's own connection tells why
  }
}

void Connection::flush() {
  while (!backlog_.empty() && open()) {
    const Sent sent = sendNow(backlog_.front().first, backlog_.front().second.get());
    if (sent == Sent::later) return;
    if (sent == Sent::broken) return close();
    backlog_.pop_front();
  }
}

Connection::Received Connection::receive(Message* message, UniqueFd* fd) {
  fd->reset();
  iovec part = {message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t got;
  do got = recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::nothing;
  if (got <= 0) return Received::ended;  // an end with unread data on the other side shows as ECONNRESET
  int descriptors = 0;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr; rights = CMSG_NXTHDR(&header, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i, ++descriptors) {
      int received;
      std::memcpy(&received, CMSG_DATA(rights) + i * sizeof(int), sizeof(int));
      *fd = UniqueFd(received);  // closes the one before
    }
  }
  if (got != static_cast<ssize_t>(sizeof(*message)) || (header.msg_flags & MSG_TRUNC) != 0 ||
      message->magic != kMagic || descriptors > 1) {
    fd->reset();
    return Received::malformed;
  }
  return Received::message;
}

void Connection::close() {
  fd_.reset();
  backlog_.clear();
}

UniqueFd listenOn(const std::string& name) {
  sockaddr_un address = {};
  const socklen_t length = fill(name, &address);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) failErrno(errno, "listening socket");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    failErrno(errno, "listening socket: bind");
  if (listen(fd.get(), SOMAXCONN) != 0) failErrno(errno, "listening socket: listen");
  return fd;
}

int connectTo(const std::string& name, UniqueFd* fd) {
  sockaddr_un address = {};
  const socklen_t length = fill(name, &address);
  UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) failErrno(errno, "socket to a peer");
  int result;
  do result = ::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length);
  while (result != 0 && errno == EINTR);
  if (result != 0) return errno;
  *fd = std::move(made);
  return 0;
}

bool sameUser(int fd, pid_t* pid) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) failErrno(errno, "SO_PEERCRED");
  *pid = credentials.pid;
  return credentials.uid == geteuid();
}

}  // namespace mk::plugin::loopback
