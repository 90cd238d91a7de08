// See netif.h.
#include "host/netif.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "host/error.h"

namespace mk {
namespace {

struct NameFilter {
  bool exclude = false, exact = false;
  std::vector<std::string> names;

  explicit NameFilter(std::string list) {
    if (list.empty()) list = "^docker";
    if (list[0] == '^') {
      exclude = true;
      list.erase(0, 1);
    }
    if (!list.empty() && list[0] == '=') {
      exact = true;
      list.erase(0, 1);
    }
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      if (end > begin) names.push_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  bool takes(const std::string& name) const {
    const bool listed = std::any_of(names.begin(), names.end(), [&](const std::string& n) {
      return exact ? name == n : name.compare(0, n.size(), n) == 0;
    });
    return listed != exclude;
  }
};

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& i : interfaces) {
    const std::string address = i.address.text();
    text += (text.empty() ? "" : ", ") + i.name + " (" + address.substr(0, address.rfind(':')) + ")";
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<Interface> listInterfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) failErrno(errno, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    result.push_back({i->ifa_name,
                      Address(i->ifa_addr, family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)).withPort(0),
                      (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return result;
}

const Interface& chooseInterface(const std::vector<Interface>& interfaces, const std::string& names,
                                 const std::string& family) {
  if (!family.empty() && family != "inet" && family != "inet6" && family != "AF_INET" && family != "AF_INET6")
    fail(mkErrorInvalidUsage, "MKERNEL_SOCKET_FAMILY: \"%s\" is not a family; legal are inet, inet6, or nothing",
         family.c_str());
  const int wanted = family.empty() ? AF_UNSPEC : family == "inet6" || family == "AF_INET6" ? AF_INET6 : AF_INET;
  const NameFilter filter(names);
  const Interface* best = nullptr;
  int bestClass = 3;
  for (const Interface& i : interfaces) {
    if ((wanted != AF_UNSPEC && i.address.family() != wanted) || !filter.takes(i.name)) continue;
    const int ownClass = i.loopback ? 2 : i.address.linkLocal() ? 1 : 0;
    if (ownClass >= bestClass) continue;
    best = &i;
    bestClass = ownClass;
  }
  if (best == nullptr)
    fail(mkErrorInvalidUsage,
         "no network interface fits MKERNEL_SOCKET_IFNAME=\"%s\" and MKERNEL_SOCKET_FAMILY=\"%s\"; up with an address "
         "are: %s",
         names.c_str(), family.c_str(), describe(interfaces).c_str());
  return *best;
}

}  // namespace mk
