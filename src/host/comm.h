// The communicator: joins bootstrap, heap, proxy and platform, keeps the state of failure, and runs operations.
// Handles are looked up in a register, so a stale or foreign one is an error; whoever holds the shared_ptr keeps it alive.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/error.h"
#include "host/heap.h"
#include "host/platform.h"
#include "host/proxy.h"
#include "host/settings.h"
#include "mkernel.h"
#include "sched/shards.h"

struct mkWindow {
  uint64_t id = 0;  // by order of registration: the same on all ranks
  size_t bytes = 0;
  std::shared_ptr<void> hold;            // of the caller's memory
  std::vector<mk::WindowMapping> peers;  // by local rank; this rank's own is empty
  std::vector<char*> bases;              // of the window, by local rank
};

namespace mk {

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  // Collective; throws the same error on every rank.
  static std::shared_ptr<Comm> init(int nranks, int rank, const mkUniqueId_t& id, const Settings& settings);
  ~Comm();

  // The live communicator behind a handle.  Throws mkErrorInvalidArgument for none, mkErrorInvalidUsage in a forked child.
  static std::shared_ptr<Comm> find(mkComm_t handle);
  static mkComm_t publish(const std::shared_ptr<Comm>& comm);
  // Takes the handle out of the register; find() fails from then on.
  static std::shared_ptr<Comm> retire(mkComm_t handle);

  void query(mkCommInfo_t* info) const;
  mkResult_t asyncError() const;
  std::string lastErrorText() const;
  void throwIfFailed() const;

  // Throws mkErrorInvalidUsage while operations are unfinished, unless the communicator has failed.
  void requireDestroyable() const;
  void revoke();
  void finalize();
  void destroy();
  void abort();

  void reserve(size_t bytes);
  mkWindow* registerWindow(void* ptr, size_t bytes);
  void deregisterWindow(mkWindow* window);
  // Throws mkErrorInvalidArgument if it is not one of this communicator's.
  const mkWindow* checkWindow(mkWindow* window) const;

  // What an operation needs at launch.
  const sched::Place& place() const { return place_; }
  uint32_t rank() const { return static_cast<uint32_t>(rank_); }
  // The same on all ranks, while the communicator lives.
  const sched::RankMap& rankMap() const { return rankMap_; }
  const Settings& settings() const { return settings_; }
  uint64_t workspace() const { return workspace_; }  // what all ranks have reserved
  Platform& platform() const { return *platform_; }
  Proxy* proxy() const { return proxy_.get(); }  // null with one node

  // One launch: `run` does it, or starts it where the platform is asynchronous, and returns the record; `text` describes the
  // arguments whose hash is `hash`.
  struct Operation {
    const char* name = "";
    uint32_t hash = 0;
    std::string text;
    std::function<protocol::FailRecord(Platform&)> run;
  };
  // In stream order.  With the NULL stream it runs here, and throws if it fails.
  void launch(Operation operation, mkStream_t stream);
  // This rank refused the arguments of what would have been its next operation: if others wait for it there, all get an error.
  void noteRejected(const char* operation, const std::string& text);

 private:
  Comm(int nranks, int rank, const Settings& settings);
  void setUp(const mkUniqueId_t& id);
  void setUpNetwork(const std::vector<std::string>& gpus);  // of the node's ranks, as PCI bus ids
  void growTo(uint64_t workspace);
  template <class Step>
  void together(const std::string& what, Step&& step);

  void setError(mkResult_t code, const std::string& text);
  void launchAsync(const Operation& operation, mkStream_t stream);
  void runLaunch(const Operation& operation);
  struct OwnError {
    mkResult_t code = mkSuccess;  // success: there is none
    std::string text;
    uint64_t at = 0;
  };
  OwnError reportRecord(const char* name, uint32_t hash, const protocol::FailRecord& record);
  bool busy(bool strict) const;
  void noteEpoch(Bootstrap* bootstrap) const;
  void finishLaunch();
  // How long a rank that has failed on its own waits for the verdict that all ranks share.
  static constexpr int kVerdictMs = 6000;
  void awaitVerdict(int timeoutMs);
  using Deadline = std::chrono::steady_clock::time_point;
  static Deadline after(int ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }
  bool awaitIdle(Deadline deadline);
  bool networkSettled() const;
  bool awaitNetwork(Deadline deadline) const;
  void requireNetworkSettled() const;
  void requireQuiet(const char* what) const;
  void tick();
  void watchLaunches(Bootstrap* bootstrap, uint64_t now);
  uint64_t timeoutNs() const { return static_cast<uint64_t>(settings_.timeoutMs) * 1'000'000u; }
  FailureReport waitingReport(uint64_t now);
  FailureReport stuckReport(uint64_t now);
  std::string stageText(const char* operation, uint64_t epoch, const protocol::Why& why) const;
  int rankOf(const protocol::Why& why) const;
  void onLeaving(int rank);
  void onNetworkFailure(int node, const std::string& text);
  std::string argumentText(uint32_t hash);
  void leave(bool inOrder, Deadline deadline);
  int rankAt(int32_t node, int32_t local) const;
  std::string rankName(int rank) const;

  const Settings settings_;
  const int nranks_, rank_;
  const pid_t pid_;
  std::string transportName_;
  bool staged_ = false;  // the network goes through host memory

  // In order of construction; destroyed from the last to the first.
  std::unique_ptr<Platform> platform_;
  sched::Place place_;
  std::unique_ptr<Heap> heap_;
  std::atomic<uint64_t> workspace_{0};
  std::map<uint64_t, std::unique_ptr<mkWindow>> windows_;
  uint64_t nextWindow_ = 1;
  std::vector<uint32_t> rankOf_;  // by node * locals + local
  sched::RankMap rankMap_;
  std::unique_ptr<Proxy> proxy_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mkResult_t error_ = mkSuccess;  // the first asynchronous one
  std::string errorText_;
  uint32_t pending_ = 0;  // launches not finished; of an asynchronous platform: calls that are launching
  mkStream_t pendingStream_ = nullptr;
  std::map<uint32_t, std::string> argumentTexts_;  // of an asynchronous platform: of the newest launches, by hash
  OwnError ownError_;                              // likewise: what this rank's agents said, until the verdict comes
  mutable uint64_t launched_ =
      0;  // operations put on a stream, or replayed in graphs; the epoch of the next is one more
  mutable std::map<uint64_t, uint32_t>
      refusals_;                  // how often this rank refused an operation not yet over, by number as launched_
  uint64_t runningSince_ = 0;     // clock when the running launch began; 0: none
  uint64_t runningAfter_ = 0;     // of an asynchronous platform: the epoch before it
  const char* runningName_ = "";  // of the newest launch that has begun; hash and text of its arguments
  uint32_t runningHash_ = 0;
  std::string runningText_;
  uint64_t waitingAt_ = 0;    // when the hub was last told that this rank waits
  uint64_t completions_ = 0;  // network commands completed when last looked at, and since when
  uint64_t completionsAt_ = 0;
  std::vector<int> leaving_;  // ranks that wait for us to let go
  bool growing_ = false;      // the proxy's endpoint is in the hands of growTo()
  bool stopped_ = false;      // proxy closed, no launch in flight: nothing here writes to peers
  int departed_ = -1;         // a rank that has left: no further launch can succeed
  uint64_t departedAt_ = 0;
  std::string networkFailure_;  // seen by the proxy, waiting for the bootstrap to know better
  int networkFailureNode_ = -1;
  uint64_t networkFailureAt_ = 0;

  std::vector<uint64_t> processes_;           // processToken() of every rank
  std::unique_ptr<Bootstrap> bootstrap_;      // last: its thread calls back
  std::atomic<Bootstrap*> control_{nullptr};  // the same, for that thread, once setUp() is through
};

}  // namespace mk
