// Which provider of libfabric's stands for a network: net where it is, as in 1.17; later it has become tcp.
#pragma once

#include <dlfcn.h>
#include <rdma/fabric.h>

#include <cstring>
#include <string>

namespace test {

inline const std::string& wireProvider() {
  static const std::string found = [] {
    void* object = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (object == nullptr) return "tcp";
    const auto find = [&](auto& function, const char* name) {
      void* const address = dlsym(object, name);
      std::memcpy(&function, &address, sizeof(function));
    };
    decltype(&::fi_getinfo) getinfo = nullptr;
    decltype(&::fi_dupinfo) dupinfo = nullptr;
    decltype(&::fi_freeinfo) freeinfo = nullptr;
    find(getinfo, "fi_getinfo");
    find(dupinfo, "fi_dupinfo");
    find(freeinfo, "fi_freeinfo");
    fi_info *const hints = dupinfo(nullptr), *list = nullptr;
    hints->fabric_attr->prov_name = strdup("net");
    const int result = getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &list);
    freeinfo(hints);
    if (list != nullptr) freeinfo(list);
    return result == 0 ? "net" : "tcp";
  }();
  return found;
}

}  // namespace test
