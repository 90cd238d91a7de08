// What the GPU tests' roles and cases share.
#pragma once

#include <string>
#include <vector>

#include "gpu/device.h"
#include "process/crew.h"
#include "support/catch_compat.h"

namespace test {

inline cudaStream_t newStream() {
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}

inline void requireGood(mkComm_t comm) {
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  expect(async, "asynchronous", comm);
}

inline void allGood(const Crew& crew, const World& world) {
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "cases", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}

// Runs the role in this world until all is good.
inline void requireCrew(const std::string& role, const World& world, const Options& options = {},
                        const std::vector<std::string>& environment = {}, int seconds = 90) {
  Crew crew(role, world, options, environment);
  const bool finished = crew.finish(seconds);
  std::string how;
  for (const auto& [name, value] : options) how += ", " + name + " " + value;
  for (const std::string& definition : environment) how += ", " + definition;
  INFO(world.nodes << " nodes x " << world.locals << how << "\n" << crew.story());
  REQUIRE(finished);
  allGood(crew, world);
}

}  // namespace test
