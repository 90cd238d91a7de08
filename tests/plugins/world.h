// Runs one function on several ranks, which are threads of this process or processes of their own, and gives the ranks a way
// to exchange addresses and to wait for each other that has nothing to do with the plugin.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin.h"

namespace test {

enum class Mode { threads, processes };

using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;

// Which plugin, how set, and how patient.
struct Setup {
  std::string path;
  Params params;
  int waitMs = 20000;  // for anything that must come about
  // In every rank's thread before anything else, if there is one.
  void (*prepare)(int rank) = nullptr;
  int devices = 1;  // rank i opens device i modulo this
  // Whether importing a key tells that its registration has ended; else the card tells, at the first write.
  bool knowsEndedKeys = true;
  // Whether a peer's death is noticed with nothing under way to it; else it is by the next write.
  bool knowsDeaths = true;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::vector<Bytes> allgather(int rank, const Bytes& mine) = 0;
  // This rank is about to fail: whatever the others run into from now on is a consequence.
  virtual void announceFailure(int rank) = 0;
};

struct Rank {
  int index, count;
  const Setup& setup;
  const Plugin& plugin;
  Exchange& exchange;

  // Collective among the ranks that still run; those that do not give nothing.
  std::vector<Bytes> allgather(const Bytes& mine) { return exchange.allgather(index, mine); }
  void barrier() { allgather({}); }
  Clock::time_point deadline() const { return Clock::now() + std::chrono::milliseconds(setup.waitMs); }
};

// Throws CheckFailed with the first rank's failure, or if a rank does not end.  A process in `mayDie` may be killed.
void runWorld(const Setup& setup, Mode mode, int count, const std::function<void(Rank&)>& body, int mayDie = -1);

}  // namespace test
