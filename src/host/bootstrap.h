// Bootstrap: how the ranks of a communicator find each other, and the thin control channel they keep afterwards.
//
// A star over TCP.  mkGetUniqueId starts a hub (a listening socket and a thread) in the calling process; its address and a
// 128-bit random secret are the unique id.  Every rank keeps one connection to the hub.  The hub compares what the ranks
// say of themselves, serves allgathers, notices death (end of file without goodbye), and turns the ranks' reports of a
// failure into one verdict that it sends to all, so that every rank gives the same culprit.
// No data travels here, and nothing on the path of an operation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/error.h"
#include "mkernel.h"

namespace mk {

// What a rank says of itself when it joins.
struct Identity {
  int rank = 0;
  int nranks = 1;
  std::string hostId;                     // ranks with equal ones form a node
  std::array<uint8_t, 16> deviceId = {};  // UUID of the GPU; all zero: not compared
  // Settings that must agree, as lines "name=value"; the error names the lines that differ and the ranks.
  std::string settings;
};

struct PeerInfo {
  int rank = 0, node = 0, localRank = 0;
  std::string hostId;
  std::string host;  // host name, for messages
  int64_t pid = 0;
};

// Why an operation failed on one rank, as its agents recorded it.
struct FailureReport {
  enum Kind : uint32_t {
    timeout = 1,
    mismatch = 2,
    transport = 3,
    protocol = 4,
    // No failures by themselves.  This rank refused the arguments of its operation `epoch`, for the argumentHash-th time
    // (empty text: it has launched it after all).  This rank makes no progress in `epoch`, waits as said, and has itself
    // refused it argumentHash times before; said again every half second while it lasts.  Of a rank that waits for one that
    // has refused, or is in a collective call instead, the hub makes a failure; and it tells links of a chain from its end.
    rejected = 5,
    waiting = 6
  };
  uint32_t kind = timeout;
  uint32_t stageOrder = 0;   // position of the awaited stage in the operation; the earliest one reported decides
  int32_t missingRank = -1;  // whom the rank waited for, or who differs; -1 unknown
  uint64_t epoch = 0;
  uint32_t argumentHash = 0, missingHash = 0;  // of kind mismatch: mine and theirs
  std::string text;                            // one line: operation, epoch, stage, expected, seen
};

// Called on the bootstrap's thread, possibly before join() has returned, and until the destructor has.  They must not block
// for long, nor destroy the bootstrap.
struct BootstrapEvents {
  // The communicator has failed or was revoked: the same code and text on every rank (but for the revoking one, which gets
  // nothing).  At most once.
  std::function<void(mkResult_t code, const std::string& text)> onVerdict;
  // `rank` wants its memory back: call Bootstrap::letGo(rank) once nothing here writes to it any more.  Without this event
  // that is at once.
  std::function<void(int rank)> onLeaving;
  // Text of this rank's arguments with this hash, for a verdict on differing arguments.
  std::function<std::string(uint32_t argumentHash, uint64_t epoch)> argumentText;
  // About every 10 ms.
  std::function<void()> onTick;
};

class Bootstrap {
 public:
  // Starts a hub in this process and fills in the id.  Throws Error.
  static void createId(mkUniqueId_t* id);

  // Collective.  Returns once all ranks have joined and agree; throws the same Error on every rank otherwise, within
  // initTimeoutMs.  All collective calls up to initialised() have to end within that time too, but one that begins late has
  // half a second all the same; of the later ones each has it for itself.
  static std::unique_ptr<Bootstrap> join(const mkUniqueId_t& id, const Identity& identity, int initTimeoutMs,
                                         BootstrapEvents events);
  // Closes the connection.  Without a depart() before, the hub reports this rank as dead.
  virtual ~Bootstrap() = default;

  virtual const std::vector<PeerInfo>& peers() const = 0;  // by rank
  virtual int nodes() const = 0;
  virtual int ranksPerNode() const = 0;

  // What begins here and now may take so long.
  virtual int leftMs() const = 0;
  virtual void initialised() = 0;

  // Collective, in the same order on all ranks, one at a time; `what` (the same everywhere) is compared and named in
  // errors.  Any length up to 1 MiB.  Throws on every rank if a rank is missing by the deadline, has died, or is elsewhere.
  virtual std::vector<std::vector<uint8_t>> allgather(std::span<const uint8_t> mine, const std::string& what) = 0;
  // Collective: every rank says whether its part of `what` succeeded; if one did not, throws that code and text (naming the
  // rank) on every rank.
  virtual void agree(mkResult_t mine, const std::string& text, const std::string& what) = 0;

  // Throws what the next collective call would throw at once; for a rank that waits for another one by other means.
  virtual void check(const std::string& what) = 0;

  // The newest operation this rank has launched: goes with its collective calls, so that the hub knows a rank in one of them
  // from a rank that is late.  Any thread.
  virtual void noteLaunched(uint64_t epoch) = 0;

  // Any thread; return at once.
  virtual void report(const FailureReport& report) = 0;
  virtual void revoke() = 0;
  virtual void letGo(int rank) = 0;

  // Asks every other rank to let go of this rank's memory, says goodbye, and waits at most timeoutMs.  Returns the ranks
  // that have neither let go nor died nor left.  Where this process runs the hub, also waits for the others to leave.
  virtual std::vector<int> depart(int timeoutMs) = 0;
};

// The host's own identity: stable across processes of one boot of one machine.
std::string defaultHostId();

}  // namespace mk
