// Values and failures of plugins/common, for unit tests of it and of what is built on it.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "common/failure.h"
#include "common/rdma_port.h"
#include "support/catch_compat.h"

namespace test {

using mk::plugin::Gid;

// The text of the failure, which must have this code; "" if there is none.
inline std::string failureOf(mkResult_t code, const std::function<void()>& body) {
  try {
    body();
  } catch (const mk::plugin::Failure& failure) {
    CHECK(failure.code() == code);
    return failure.what();
  }
  return "";
}

inline Gid gidOf(std::initializer_list<int> head, std::initializer_list<int> tail) {
  Gid gid = {};
  size_t at = 0;
  for (const int byte : head) gid[at++] = static_cast<uint8_t>(byte);
  at = gid.size() - tail.size();
  for (const int byte : tail) gid[at++] = static_cast<uint8_t>(byte);
  return gid;
}
inline Gid ipv4(int a, int b, int c, int d) { return gidOf({}, {0xff, 0xff, a, b, c, d}); }
inline const Gid kLinkLocal = gidOf({0xfe, 0x80}, {1}), kGlobal = gidOf({0x20, 0x01, 0x0d, 0xb8}, {1});

}  // namespace test
