// Ranks as threads of this process over a real hub, for the bootstrap's tests; and the ends of a raw connection.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/hub.h"
#include "host/wire.h"

namespace test {

// On loopback, so that the tests do not depend on the machine's network.
mk::HubOptions localOptions();
mkUniqueId_t localId();

// A call's end on one rank.
struct Outcome {
  mkResult_t code = mkSuccess;
  std::string text;
  double ms = 0;
  std::vector<std::vector<uint8_t>> gathered;
};
Outcome run(const std::function<void(Outcome&)>& call);
// All have this code and the same text, which holds every one of `parts`.
void checkSame(const std::vector<Outcome>& outcomes, mkResult_t code, const std::vector<std::string>& parts);
bool contains(const std::string& text, const std::string& part);

// What one rank's events have said.  By default lets go of a leaving rank's memory at once.
class Recorder {
 public:
  explicit Recorder(bool letGoAtOnce = true) : letGoAtOnce_(letGoAtOnce) {}
  mk::BootstrapEvents events();
  void attach(mk::Bootstrap* bootstrap);
  // The verdict, or nothing after ms.
  std::optional<std::pair<mkResult_t, std::string>> verdict(int ms = 5000);
  bool sawLeaving(int rank, int ms = 5000);
  int ticks();
  void waitTicks(int count);
  std::function<std::string(uint32_t, uint64_t)> argumentText;

 private:
  const bool letGoAtOnce_;
  std::mutex mutex_;
  std::condition_variable changed_;
  mk::Bootstrap* bootstrap_ = nullptr;
  std::set<int> leaving_;
  std::optional<std::pair<mkResult_t, std::string>> verdict_;
  int verdicts_ = 0, ticks_ = 0;
};

// n ranks that have joined and are done with initialisation.  Its destructor departs all that are left, at once.
class World {
 public:
  explicit World(int n, std::optional<mkUniqueId_t> id = std::nullopt,
                 const std::function<void(int, mk::Identity&)>& change = {}, int timeoutMs = 10000,
                 bool letGoAtOnce = true);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  mk::Bootstrap& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  Recorder& recorder(int rank) { return *recorders_[static_cast<size_t>(rank)]; }
  // Destroys without departing: death, for the others.
  void kill(int rank) { ranks_[static_cast<size_t>(rank)].reset(); }
  // On all ranks (or those given) at once.
  std::vector<Outcome> all(const std::function<void(int rank, Outcome&)>& call, std::vector<int> ranks = {});
  std::vector<int> depart(int rank, int ms = 5000);

 private:
  std::vector<std::unique_ptr<Recorder>> recorders_;
  std::vector<std::unique_ptr<mk::Bootstrap>> ranks_;
};

// Runs call(i) in n threads at once.
std::vector<Outcome> inThreads(int n, const std::function<void(int, Outcome&)>& call);
// Joins as rank i of n, each in a thread; for joins that fail.
std::vector<Outcome> joinAll(const mkUniqueId_t& id, const std::vector<mk::Identity>& identities, int timeoutMs);
mk::Identity identity(int rank, int nranks, const std::string& hostId = "h0");

// A connection to the hub that speaks for itself.
class RawRank {
 public:
  explicit RawRank(const mkUniqueId_t& id);
  void send(const mk::FrameBytes& frame);
  void sendBytes(const std::string& bytes);
  mk::Hello hello(int rank, int nranks) const;
  // The next frame, or nothing: the connection has ended, or ms have passed.
  std::optional<mk::Frame> receive(int ms = 5000);
  bool ended(int ms);
  std::string ownAddress() const;

 private:
  mk::Secret secret_;
  std::optional<mk::FramedSocket> socket_;
};
// The code and text of a joinError or verdict.
std::pair<mkResult_t, std::string> errorOf(const mk::Frame& frame);

// What is written to standard error meanwhile.
class CaptureStderr {
 public:
  CaptureStderr();
  ~CaptureStderr();
  std::string text();

 private:
  int saved_, file_;
};

}  // namespace test
