// The role loops of GEMM+AllReduce.  Per tile: every rank multiplies; the partial result goes to the tile's owner in the node,
// who adds the partials of its peers to its own; with several nodes, node sums of whole chunks travel along the rail (see
// sched/rails.h); who finishes a tile scales it, adds beta * C and the bias, rounds once, and stores it to every local copy of C.
//
// Deadlock freedom.  Pushing a partial waits for nothing but the owner's entering.  An own tile waits for peers' partials of the
// same tile, which they compute at an earlier or equal step of their order (sched/chunks.h), so by induction over the waves some
// rank can always go on, as long as one agent of each role runs; roles are taken by ticket, so it does.  Receiving never waits
// for this rank's sending: a finish task waits for sums of other nodes, a forward task for a finish task on another node.
#pragma once

#include "protocol/role_loops.h"
#include "protocol/tile_cursor.h"
#include "sched/gemm_ar.h"

namespace mk::protocol {

template <class P>
class GemmAr : public RoleLoops<P, GemmAr<P>> {
  using Base = RoleLoops<P, GemmAr<P>>;

 public:
  MK_HD GemmAr(P& p, const sched::GemmArPlan& plan, uint32_t hash)
      : Base(p, plan.roles, plan.place(), hash), plan_(plan) {}

  // The roles one by one, for a platform that gives them to its agents in its own way.
  MK_HD bool perform(sched::Role role) {
    switch (role) {
      case sched::Role::send:
        return send();
      case sched::Role::receive:
        return receive();
      case sched::Role::copyOut:
        return copyOut();
      default:
        return compute();
    }
  }

  MK_HD bool control() {
    if (!this->enterAndAwaitRoles()) return false;
    // Without a stage, the proof that all my output has arrived is one flag from each owner; with one, copyOut has seen it.
    if (!plan_.staged()) {
      for (uint32_t l = 0; l < at_.locals; ++l) {
        if (l == at_.local || plan_.chunks.ownedTiles(l) == 0) continue;
        // Producer: owner l, in tileOut().
        if (!waitFlag(plan_.outFlag(l), Why{Stage::output, int32_t(l), -1, 0})) return false;
      }
    }
    return close(p_);
  }

  // ---- Compute -----------------------------------------------------------------------------------------------

  MK_HD bool compute() {
    for (;;) {
      const uint64_t position = p_.claim(OwnLayout::claimCompute);
      if (position >= plan_.chunks.tiles) return true;
      if (!p_.goOn()) return false;  // the waits below may all be satisfied
      const TileTask t = taskAt(plan_, position);
      p_.multiply(t);
      if (!(t.mine ? ownTile(t) : peersTile(t))) return false;
    }
  }

  MK_HD bool peersTile(const TileTask& t) {
    if (!waitPeerOpen(t.owner)) return false;
    p_.storePartial(t, bankData(t.owner, plan_.partial(t.ownedTile, at_.local, t.owner)));
    p_.publish(bankFlag(t.owner, plan_.partialFlag(t.ownedTile, at_.local, t.owner)), p_.epoch(), Scope::node);
    return true;
  }

  MK_HD bool ownTile(const TileTask& t) {
    for (uint32_t l = 0; l < at_.locals; ++l) {
      if (l == at_.local) continue;
      // Producer: local rank l, in peersTile().
      if (!waitFlag(plan_.partialFlag(t.ownedTile, l, at_.local), Why{Stage::partial, int32_t(l), -1, t.tile}))
        return false;
      p_.addPartial(t, bankData(at_.local, plan_.partial(t.ownedTile, l, at_.local)));
    }
    if (!plan_.multiNode()) {
      p_.finishTile(t);
      return tileOut(t);
    }
    if (!waitOwn(OwnLayout::bankOpen, Stage::bank)) return false;
    p_.storePartial(t, nodeSumOf(t));
    if (p_.arrive(OwnLayout::firstCounter(at_.locals, at_.nodes) + t.ownedChunk, plan_.chunks.tilesIn(t.chunk)))
      p_.publish(bankFlag(at_.local, plan_.nodeSumFlag(t.ownedChunk)), p_.epoch(), Scope::device);
    return true;
  }

  // ---- Network -----------------------------------------------------------------------------------------------

  MK_HD bool send() {
    const uint64_t owned = plan_.owned();
    for (uint64_t i = 0; i < owned; ++i) {
      if (!waitNodeSum(i)) return false;
      const uint64_t bytes = plan_.elementsOfChunk(plan_.chunks.ownedChunk(at_.local, i)) * plan_.shape.wireBytes;
      for (uint32_t s = 0; s + 1 < at_.nodes; ++s) {
        const uint32_t n = plan_.rail.target(at_.node, s);
        // Who sums this chunk: every node, or its home; the home's own sum stays.
        if (!plan_.rail.finishes(i, at_.local, n)) continue;
        if (!sendChunk(n, i, plan_.nodeSum(i), plan_.arrivedSum(i, at_.node, n), bytes)) return false;
      }
    }
    return true;
  }

  MK_HD bool receive() {
    const uint64_t owned = plan_.owned();
    for (;;) {
      const uint64_t number = p_.claim(OwnLayout::claimReceive);
      if (number >= plan_.rail.tasks(owned)) return true;
      const sched::Rail::Task task = plan_.rail.task(number, owned, at_.local, at_.node);
      if (!task.exists) continue;
      if (!(task.finish ? finishChunk(task.index) : forwardChunk(task.index))) return false;
    }
  }

  MK_HD bool finishChunk(uint64_t i) {
    if (!waitNodeSum(i)) return false;
    for (uint32_t n = 0; n < at_.nodes; ++n) {
      // Producer: the rail peer on node n, in send().
      if (n != at_.node && !waitChunk(i, n, Stage::nodeArrival)) return false;
    }
    const bool home = plan_.rail.exchange == sched::Exchange::home;
    const uint64_t first = plan_.chunks.firstTile(plan_.chunks.ownedChunk(at_.local, i));
    const uint32_t count = plan_.chunks.tilesIn(plan_.chunks.ownedChunk(at_.local, i));
    for (uint32_t j = 0; j < count; ++j) {
      const TileTask t = taskOfTile(plan_, first + j);
      const uint64_t before = plan_.elementsBefore(t.tile) * plan_.shape.wireBytes;
      // Node sums in the order of the nodes, all of them rounded alike, so that whoever sums gets the same bits.
      for (uint32_t n = 0; n < at_.nodes; ++n) {
        const uint64_t where = n == at_.node ? plan_.nodeSum(i) : plan_.arrivedSum(i, n, at_.node);
        p_.loadNodeSum(t, bankData(at_.local, where + before), n == 0);
      }
      p_.finishTile(t);
      if (home)
        p_.storeOutPacked(t,
                          bankData(at_.local, plan_.result(i) + plan_.elementsBefore(t.tile) * plan_.shape.outBytes));
      if (!tileOut(t)) return false;
    }
    if (!home) return true;
    const uint64_t bytes = plan_.elementsOfChunk(plan_.chunks.ownedChunk(at_.local, i)) * plan_.shape.outBytes;
    for (uint32_t s = 0; s + 1 < at_.nodes; ++s) {
      if (!sendChunk(plan_.rail.target(at_.node, s), i, plan_.result(i), plan_.result(i), bytes)) return false;
    }
    return true;
  }

  MK_HD bool forwardChunk(uint64_t i) {
    // Producer: the chunk's home, in finishChunk().
    if (!waitChunk(i, plan_.rail.home(i, at_.local), Stage::result)) return false;
    const uint64_t first = plan_.chunks.firstTile(plan_.chunks.ownedChunk(at_.local, i));
    const uint32_t count = plan_.chunks.tilesIn(plan_.chunks.ownedChunk(at_.local, i));
    for (uint32_t j = 0; j < count; ++j) {
      const TileTask t = taskOfTile(plan_, first + j);
      p_.loadOutPacked(t, bankData(at_.local, plan_.result(i) + plan_.elementsBefore(t.tile) * plan_.shape.outBytes));
      if (!tileOut(t)) return false;
    }
    return true;
  }

  // ---- Output ------------------------------------------------------------------------------------------------

  // A finished tile to every local copy of C, or to the peers' stages.
  MK_HD bool tileOut(const TileTask& t) {
    p_.storeOut(t);
    for (uint32_t s = 1; s < at_.locals; ++s) {
      const uint32_t l = (at_.local + s) % at_.locals;
      if (!waitPeerOpen(l)) return false;
      if (plan_.staged()) {
        p_.storeOutPacked(t, bankData(l, plan_.stagedTile(t.tile)));
        p_.publish(bankFlag(l, plan_.stagedFlag(t.tile)), p_.epoch(), Scope::node);
      } else {
        p_.storeOutToPeer(t, l);
      }
    }
    if (plan_.staged() || at_.locals == 1) return true;
    if (p_.arrive(OwnLayout::tilesOut, plan_.ownedTiles())) {
      for (uint32_t l = 0; l < at_.locals; ++l) {
        if (l != at_.local) p_.publish(bankFlag(l, plan_.outFlag(at_.local)), p_.epoch(), Scope::node);
      }
    }
    return true;
  }

  MK_HD bool copyOut() {
    for (;;) {
      const uint64_t position = p_.claim(OwnLayout::claimCopy);
      if (position >= plan_.chunks.tiles) return true;
      const TileTask t = taskAt(plan_, position);
      if (t.mine) continue;
      // Producer: the tile's owner, in tileOut().
      if (!waitFlag(plan_.stagedFlag(t.tile), Why{Stage::staged, int32_t(t.owner), -1, t.tile})) return false;
      p_.loadOutPacked(t, bankData(at_.local, plan_.stagedTile(t.tile)));
      p_.storeOut(t);
    }
  }

 private:
  // ---- Helpers -----------------------------------------------------------------------------------------------

  MK_HD Ref nodeSumOf(const TileTask& t) const {
    return bankData(at_.local, plan_.nodeSum(t.ownedChunk) + plan_.elementsBefore(t.tile) * plan_.shape.wireBytes);
  }
  // Producer: this rank's compute agents, in ownTile().
  MK_HD bool waitNodeSum(uint64_t i) { return waitFlag(plan_.nodeSumFlag(i), Why{Stage::nodeSum, -1, -1, i}); }
  MK_HD bool waitChunk(uint64_t i, uint32_t n, Stage stage) { return waitArrival(plan_.slot(i), n, stage, i); }
  MK_HD bool sendChunk(uint32_t n, uint64_t i, uint64_t from, uint64_t to, uint64_t bytes) {
    return postChunk(n, plan_.slot(i), from, to, bytes);
  }

  using Base::at_;
  using Base::bankData;
  using Base::bankFlag;
  using Base::p_;
  using Base::postChunk;
  using Base::waitArrival;
  using Base::waitFlag;
  using Base::waitOwn;
  using Base::waitPeerOpen;

  const sched::GemmArPlan& plan_;
};

}  // namespace mk::protocol
