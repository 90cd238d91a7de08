// The model of a network card: when each step of each write happens.  A write has its payload stored, then the rest of it and
// its notification, then perhaps all of it once more, and completes.  With no model parameter set every step is due at once.
// Copying itself is the endpoint's (Carrier).  Time is in nanoseconds of one monotonic clock.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "mkernel.h"
#include "mkernel/transport.h"
#include "settings.h"

namespace mk::plugin::loopback {

// A write under way.
struct Flight {
  mkTransportWrite_t write = {};
  int peer = 0;
  std::shared_ptr<LocalRegion> source;                   // null: no payload
  std::shared_ptr<RemoteRegion> destination, flagPlace;  // null: no payload; completion contract
  bool onGpu() const {
    const RemoteRegion* place = destination != nullptr ? destination.get() : flagPlace.get();
    return place != nullptr && place->onGpu();
  }

  // The rest is the model's.
  enum class Stage { payload, notify, repeat };
  Stage stage = Stage::payload;
  uint64_t order = 0;
  bool fails = false, repeats = false;
  int64_t payloadAt = 0, notifyAt = 0, repeatAt = 0;
  // Overtaken: the step `heldStage` waits until this many later writes have been delivered, or until holdUntil.
  int overtakers = 0;
  Stage heldStage = Stage::payload;
  int64_t holdUntil = 0;
  uint64_t split = 0;  // payload from here on goes first, the beginning goes with the notification
};

class Carrier {
 public:
  virtual ~Carrier() = default;

  enum class Outcome { done, full, gone };  // full: no room in the arrival ring; gone: the peer ended the registration
  // Stores bytes [from, to) of the payload.  again: as in RemoteRegion::copy.
  virtual Outcome copy(const Flight& flight, uint64_t from, uint64_t to, bool again) = 0;
  // Raises the flag, or puts the immediate into the peer's ring.
  virtual Outcome notify(const Flight& flight) = 0;
  // The write is over; reason only if status is not success.
  virtual void finished(const Flight& flight, mkResult_t status, const std::string& reason) = 0;
};

class Nic {
 public:
  Nic(const Settings& settings, uint64_t seed, size_t peers);

  void submit(Flight&& flight, int64_t now);
  void progress(int64_t now, Carrier& carrier);

  // No write to this peer will be delivered any more; those under way and later ones end with this status at the next progress.
  void breakPeer(int peer, mkResult_t status, const std::string& reason);
  // Takes out the writes from this registration.  Those in stage `repeat` have been delivered.
  std::list<Flight> takeFrom(const LocalRegion* source);

 private:
  struct Broken {
    mkResult_t status = mkSuccess;
    std::string reason;
  };
  enum class Step { wait, retry, finished };  // retry: at every progress
  void plan(Flight& flight, int64_t now);
  void pass(int64_t now, Carrier& carrier);
  Step advance(Flight& flight, int64_t now, bool streamBusy, bool peerBusy, Carrier& carrier, int64_t* wakeAt);
  void delivered(Flight& flight, int64_t now);
  bool chance(double share) { return share > 0 && unit_(random_) < share; }

  const Settings settings_;
  const bool ordered_;
  const bool inTurn_;  // writes are due in the order of submission
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> unit_{0, 1};
  std::list<Flight> flights_;   // in the order of submission
  std::vector<Broken> broken_;  // by peer
  bool anyBroken_ = false;
  uint64_t submitted_ = 0;
  int64_t linkFreeAt_ = 0;
  int64_t nextDue_ = 0;  // nothing happens before
  int held_ = 0;         // flights that wait to be overtaken
  bool moved_ = false;   // something was delivered in this pass
  bool freed_ = false;   // an earlier flight no longer waits to be overtaken

  std::vector<std::pair<int, uint32_t>> busyStreams_;  // of one pass: (peer, queue) with an earlier write undelivered
  std::vector<bool> busyPeers_;
};

}  // namespace mk::plugin::loopback
