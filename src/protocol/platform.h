// What the role loops ask of a platform.  One object per agent.  Whole agents call uniformly: on a GPU all threads of a block or
// of a spare warp, on the CPU one fibre.
//
//   wait      the only call that may block on others.  Acquires what the publisher released.  Polls the revoke word, the launch's
//             failure and the clock every 32nd time.  False: unwind; the platform has a record.
//   goOn      false: revoked, or the launch has failed: unwind.  For long work between waits.
//   ready     wait's test, once.
//   publish   everything stored before by this agent, or acquired by it, is visible to whoever acquires the value at that scope.
//   claim     next number of a counter of this rank; relaxed.
//   arrive    counts one arrival of `total`; true for the last, who has then acquired what the others released; resets to 0.
//   look      a far word (acquire), as it is or as another agent, who is looking, has last seen it; waitFar: until it is at least so
//             much, as wait.  On a GPU reads of one word of the host's queue up, so one agent reads for all.
//   ownAdd, ownLoad (acquire), ownReset: words of this rank's private memory.
//   storeCommand  fills a slot of the ring, header last with release.
//   cardQueue     the network card's own queue to a node, for agents to write; null: commands go to the ring.  For all nodes or none.
//   storeEntry, storeRecord, storeDoorbell  an entry's words, which the next record publishes; a doorbell record, a doorbell: each
//             after everything stored before by this agent, or acquired by it, in the order the card sees.
//   asOne     calls a function once for the whole agent, with the platform of one thread.
//   fail      records why; the first record of a launch stays.
//   multiply ... storeOutToPeer: movement and arithmetic of tiles; their registers and shared memory are the platform's own.
#pragma once

#include <concepts>

#include "mkernel/queue.h"
#include "protocol/mlx5_queue.h"
#include "protocol/tile_cursor.h"
#include "protocol/types.h"
#include "sched/ag_gemm.h"
#include "sched/roles.h"

namespace mk::protocol {

template <class P>
concept Platform = requires(P p, const P q, Ref r, Why why, uint64_t v, uint64_t* seen, const mkCommand_t& command) {
  { q.place() } -> std::convertible_to<sched::Place>;
  { q.epoch() } -> std::convertible_to<uint64_t>;
  { q.heapLayout() } -> std::convertible_to<sched::HeapLayout>;
  { q.controlLayout() } -> std::convertible_to<sched::ControlLayout>;
  { p.wait(r, v, Match::equal, why, seen) } -> std::same_as<bool>;
  { p.goOn() } -> std::same_as<bool>;
  { p.ready(r, v, Match::atLeast) } -> std::same_as<bool>;
  p.publish(r, v, Scope::node);
  { p.read(r) } -> std::same_as<uint64_t>;
  p.write(r, v);
  { p.claim(v) } -> std::same_as<uint64_t>;
  { p.arrive(v, v) } -> std::same_as<bool>;
  { p.look(FarWord{}) } -> std::same_as<uint64_t>;
  { p.waitFar(FarWord{}, v, why) } -> std::same_as<bool>;
  { p.ownAdd(v, v) } -> std::same_as<uint64_t>;
  { p.ownLoad(v) } -> std::same_as<uint64_t>;
  p.ownReset(v);
  { q.ringSlots() } -> std::convertible_to<uint64_t>;
  p.storeCommand(v, command);
  { q.cardQueue(uint32_t{0}) } -> std::same_as<const Mlx5Queue*>;
  p.storeEntry(seen, seen, uint32_t{0});
  p.storeRecord(static_cast<uint32_t*>(nullptr), uint32_t{0});
  p.storeDoorbell(seen, v);
  p.asOne([](auto&) {});
  p.fail(FailRecord::timeout, why, v, v);
  p.setRole(sched::Role::control);
};

// Of operations that sum partial results over ranks.
template <class P, class Tile>
concept SumPlatform = Platform<P> && requires(P p, const Tile& t, Ref r) {
  p.multiply(t);              // this rank's A * B of the tile, in fp32
  p.storePartial(t, r);       // rounded to the wire type, packed
  p.addPartial(t, r);         // adds one
  p.loadNodeSum(t, r, true);  // true: replaces what is there; else adds
  p.finishTile(t);            // scale, beta * C, bias, activation; rounds to C's type
  p.storeOut(t);              // to my C
};

// Rows of A: in this rank's own shard, packed in a heap, or in a local rank's `gathered`.
struct RowsAt {
  enum class Where : uint32_t { shard, heap, gathered };
  Where where = Where::shard;
  Ref packed;          // in a heap: of the first row
  uint32_t local = 0;  // whose `gathered`
  uint64_t row = 0;    // the first, of the shard or of the whole A
};

template <class P>
concept AgGemmPlatform = Platform<P> && requires(P p, const sched::AgGemmPlan::TileTask& t, const RowsAt& rows) {
  p.multiply(t, rows);  // those rows of A * this rank's B, in fp32
  p.finishTile(t);      // scale, beta * C, bias, activation; rounds to C's type
  p.storeOut(t);        // to my C
  p.copyRows(rows, rows, uint64_t{1}, uint64_t{0},
             uint64_t{8});  // from, to, how many, of which columns; complete for what is published next
};

template <class P>
concept GemmArPlatform = SumPlatform<P, TileTask> && requires(P p, const TileTask& t, Ref r) {
  p.storeOutToPeer(t, uint32_t{0});  // to a local peer's C, in its window
  p.storeOutPacked(t, r);            // packed into a heap
  p.loadOutPacked(t, r);
};

}  // namespace mk::protocol
