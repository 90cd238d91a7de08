// What tests of whole operations ask again and again; of Catch, unlike world.h.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/world.h"
#include "support/catch_compat.h"

namespace test {

inline std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const auto& l : lines) all += l + "\n";
  return all;
}

// All ranks of a new world get through.
inline void requireAll(const World& world, const std::function<void(mkComm_t, int)>& body,
                       const std::function<void(mkConfig_t&, int)>& configure = {}) {
  const auto errors = runWorld(world, body, configure);
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  REQUIRE(errors.empty());
}

inline mkCommInfo_t info(mkComm_t comm) {
  mkCommInfo_t i;
  MK_INIT(&i, MK_ID_COMM_INFO);
  expect(mkCommQuery(comm, &i), "query");
  return i;
}

inline mkResult_t asyncError(mkComm_t comm) {
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  return async;
}

// So much has been sent since `before`; throws std::string.
inline void requireSent(mkComm_t comm, const mkCommInfo_t& before, uint64_t bytes, uint64_t messages) {
  // The proxy may not have read the last command yet when the operation ends, and count it between the two words' being read.
  mkCommInfo_t after = info(comm);
  const auto fewer = [&] {
    return after.netMessagesSent - before.netMessagesSent < messages ||
           after.netBytesSent - before.netBytesSent < bytes;
  };
  for (int i = 0; i < 20000 && fewer(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    after = info(comm);
  }
  if (after.netBytesSent - before.netBytesSent != bytes || after.netMessagesSent - before.netMessagesSent != messages)
    throw "sent " + std::to_string(after.netBytesSent - before.netBytesSent) + " bytes in " +
        std::to_string(after.netMessagesSent - before.netMessagesSent) + " messages; the formula says " +
        std::to_string(bytes) + " in " + std::to_string(messages);
}

}  // namespace test
