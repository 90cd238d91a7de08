// Whether this is the virtual machine of vm.sh, and its network interfaces.
#pragma once

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace test {

inline bool inVirtualMachine() { return std::getenv("RXE_VM") != nullptr; }

// As `ip link set NAME up` or `down`; false if that is not possible.
inline bool setInterface(const char* name, bool up) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  std::snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
  bool done = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  done = done && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  if (fd >= 0) close(fd);
  return done;
}

// Likewise its MTU.
inline bool setMtu(const char* name, int mtu) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  std::snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
  request.ifr_mtu = mtu;
  const bool done = fd >= 0 && ioctl(fd, SIOCSIFMTU, &request) == 0;
  if (fd >= 0) close(fd);
  return done;
}

// One more IPv4 address of 24 bits, under a name of its own: "eth0:1".
inline bool addAddress(const char* name, const char* address) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto set = [&](unsigned long what, const char* value) {
    ifreq request = {};
    std::snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    sockaddr_in words = {};
    words.sin_family = AF_INET;
    inet_pton(AF_INET, value, &words.sin_addr);
    std::memcpy(&request.ifr_addr, &words, sizeof(words));
    return ioctl(fd, what, &request) == 0;
  };
  const bool done = fd >= 0 && set(SIOCSIFADDR, address) && set(SIOCSIFNETMASK, "255.255.255.0");
  if (fd >= 0) close(fd);
  return done;
}

}  // namespace test
