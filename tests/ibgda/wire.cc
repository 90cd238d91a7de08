#include "ibgda/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace test {

namespace {

constexpr int kLookMs = 20;  // how often the thread looks whether it is to end

socklen_t addressOf(uint32_t card, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  // Abstract: the first byte of the name is 0, and it goes with its process.
  const int length = std::snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "mkernel-soft-nic-%u", card);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

bool sendAll(int socket, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool receiveAll(int socket, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = recv(socket, at, bytes, 0);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

Wire::Wire(uint32_t card, Deliver deliver) : deliver_(std::move(deliver)) {
  sockaddr_un address;
  const socklen_t length = addressOf(card, &address);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_, 64) != 0) {
    std::perror("software network card: its socket");
    std::abort();
  }
  thread_ = std::thread([this] { listen(); });
}

Wire::~Wire() {
  stop_.store(true);
  thread_.join();
  for (const auto& [card, socket] : connections_) close(socket);
  close(listener_);
}

bool Wire::send(uint32_t card, const Packet& packet, const char* bytes, uint8_t* syndrome) {
  auto found = connections_.find(card);
  if (found == connections_.end()) {
    sockaddr_un address;
    const socklen_t length = addressOf(card, &address);
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) return false;
    if (connect(made, reinterpret_cast<sockaddr*>(&address), length) != 0) {
      close(made);
      return false;
    }
    found = connections_.emplace(card, made).first;
  }
  if (sendAll(found->second, &packet, sizeof(packet)) && sendAll(found->second, bytes, packet.bytes) &&
      receiveAll(found->second, syndrome, 1))
    return true;
  close(found->second);
  connections_.erase(found);
  return false;
}

void Wire::listen() {
  std::vector<pollfd> sockets = {{listener_, POLLIN, 0}};
  std::vector<char> bytes;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (poll(sockets.data(), sockets.size(), kLookMs) <= 0) continue;
    for (size_t i = sockets.size(); i-- > 1;) {
      if (sockets[i].revents == 0 || serve(sockets[i].fd, bytes)) continue;
      close(sockets[i].fd);
      sockets.erase(sockets.begin() + static_cast<ptrdiff_t>(i));
    }
    if (sockets[0].revents == 0) continue;
    const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (accepted >= 0) sockets.push_back({accepted, POLLIN, 0});
  }
  for (size_t i = 1; i < sockets.size(); ++i) close(sockets[i].fd);
}

// False: the other card is gone.
bool Wire::serve(int socket, std::vector<char>& bytes) {
  Packet packet;
  if (!receiveAll(socket, &packet, sizeof(packet))) return false;
  bytes.resize(packet.bytes);
  if (!receiveAll(socket, bytes.data(), bytes.size())) return false;
  const uint8_t syndrome = deliver_(packet, bytes.data());
  return sendAll(socket, &syndrome, 1);
}

}  // namespace test
