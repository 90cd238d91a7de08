// Words shared by all roles of the protocol: references to memory, stages, records of failure.  Used by every platform.
#pragma once

#include <cstdint>

#include "sched/common.h"

namespace mk::protocol {

// Memory an agent can name.  `heap`: the symmetric heap of a local rank (self included).  `own`: this rank's private words
// (counters, flags between its own agents), which no other rank sees.
enum class Space : uint32_t { heap, own };

struct Ref {
  Space space = Space::heap;
  uint32_t local = 0;  // local rank, for heap
  uint64_t offset = 0;
};

// How far a publication must be visible.  `device`: this rank's agents.  `node`: local peers.  Network publications are
// commands.
enum class Scope : uint32_t { device, node };

enum class Match : uint32_t {
  equal,    // flags in banks: a larger value is a protocol error
  atLeast,  // done, consumed, credits, completions
  low32     // entered words: the epoch's low half
};

// What an agent waits for, in the order of the pipeline: of several ranks' complaints the earliest stage names the culprit.
enum class Stage : uint32_t {
  none,
  done,
  entered,
  bank,
  ownRows,
  partial,
  nodeSum,
  queue,
  nodeArrival,
  railRows,
  peerRows,
  result,
  staged,
  output,
  consumed,
  completion,
  roles
};

MK_HD constexpr const char* stageName(Stage s) {
  switch (s) {
    case Stage::none:
      return "none";
    case Stage::done:
      return "end of an earlier operation";
    case Stage::entered:
      return "entering the operation";
    case Stage::bank:
      return "opening the bank";
    case Stage::ownRows:
      return "this rank's rows in its bank";
    case Stage::partial:
      return "partial result of a tile";
    case Stage::nodeSum:
      return "node sum of a chunk";
    case Stage::queue:
      return "room in the command queue";
    case Stage::nodeArrival:
      return "node sum from another node";
    case Stage::railRows:
      return "rows from another node";
    case Stage::peerRows:
      return "rows from a local rank";
    case Stage::result:
      return "finished chunk from its home node";
    case Stage::staged:
      return "finished tile";
    case Stage::output:
      return "finished output";
    case Stage::consumed:
      return "end of peers' reading";
    case Stage::completion:
      return "completion of network writes";
    case Stage::roles:
      return "end of this rank's agents";
  }
  return "?";
}

// A network transfer as an agent asks for it.
struct Write {
  uint32_t node = 0;               // rail peer
  uint64_t sourceOffset = 0;       // in my heap
  uint64_t destinationOffset = 0;  // in the peer's heap
  uint64_t bytes = 0;
  uint64_t slot = 0;
  uint64_t epoch = 0;
};

// Whom a wait is for.
struct Why {
  Stage stage = Stage::none;
  int32_t local = -1;  // producer: a local rank of this node, or -1
  int32_t node = -1;   // producer: the rail peer on that node, or -1
  uint64_t item = 0;   // tile or chunk
};

// Why an agent left early.
struct FailRecord {
  // message: longer (seen) than a card takes (expected).
  enum Kind : uint32_t { none, timeout, mismatch, protocolError, revoked, internal, message };
  uint32_t kind = none;
  uint32_t role = 0;
  Why why;
  uint64_t epoch = 0;
  uint64_t expected = 0, seen = 0;
};

// Words of a rank's private memory.  Counters of the operation follow at kFirstCounter.
struct OwnLayout {
  enum Word : uint64_t {
    epoch,          // of the newest completed launch
    revoked,        // not 0: leave
    donePublished,  // newest epoch whose done() peers know
    bankOpen,       // flag: this launch's bank may be written
    allEntered,     // flag: every rank of the communicator has entered this launch; deadlines hold from here on
    rolesDone,      // flag: all agents but control have finished
    completions,    // monotone: network commands that have completed, of all queues; written by the proxy
    credits,        // monotone: slots of the ring the proxy has read; written by the proxy
    ringTaken,      // credits taken by agents
    ringTail,       // slots handed out; where agents write cards' queues, commands posted there
    ticket,
    claimCompute,
    claimReceive,
    claimCopy,
    finished,       // agents that have finished
    left,           // agents that are about to leave
    tilesOut,       // own tiles stored everywhere
    enteredNewest,  // newest epoch entered, for the receiving proxy
    failed,         // epoch of a launch that an agent has left early (GPU)
    lastProgress,   // clock of the newest sign of progress (GPU)
    blocksBegun,    // monotone: blocks of launches that have begun (GPU); the host sees by them whether any is running
    blocksLeft,     // monotone: those that have left
    cardBytes,      // payload that agents have posted to cards' queues
    cardMessages,
    claimMove,
    creditsSeen,     // credits as an agent last saw them
    creditsLooking,  // not 0: an agent is looking (GPU)
    moveTicket,      // which blocks move rows (GPU)
    countWords = 32
  };
  // Flags by which control lets others write to a peer: its heap and its window.
  MK_HD static constexpr uint64_t peerOpen(uint32_t local) { return countWords + local; }
  MK_HD static constexpr uint64_t railOpen(uint32_t locals, uint32_t node) { return countWords + locals + node; }
  MK_HD static constexpr uint64_t firstCounter(uint32_t locals, uint32_t nodes) { return countWords + locals + nodes; }
};

// A word of the private memory that the host counts up and that may lie with it, and what agents have of it at hand.
struct FarWord {
  uint64_t word;
  uint64_t seen;     // as an agent last saw it
  uint64_t looking;  // not 0: one is looking
};

MK_HD constexpr Ref own(uint64_t word) { return Ref{Space::own, 0, word * 8}; }
MK_HD constexpr Ref heap(uint32_t local, uint64_t offset) { return Ref{Space::heap, local, offset}; }

}  // namespace mk::protocol
