// The role loops of GEMM+ReduceScatter.  Per tile: every rank multiplies; the partial result goes to the local rank that
// collects the rows of its rail, who adds the partials of its peers to its own.  The sums of other nodes' rows travel to their
// rail peers in chunks; whose rows they are adds the sums of all nodes in the order of the nodes, scales them, adds beta * C and
// the bias, and rounds once.
//
// Deadlock freedom.  Pushing a partial waits for nothing but the collecting rank's entering.  A tile this rank collects waits for
// its peers' partials of the same tile.  Before an own tile a rank computes its peers' with the same number among their owner's
// and those before (sched/gemm_rs.h).  So of the ranks whose compute agents wait, take the one that waits for the lowest number:
// its peers can go on until they have computed theirs of that number, since what they may have to wait for before is lower, and it
// goes on too.  Tiles that span shards are claimed in one order by all ranks, and all that goes to peers of a tile goes before its
// own rows wait: the lowest tile that is missing anywhere waits for nothing.  Computing waits for no network, sending for computing
// alone (in the order of computing), and receiving for computing and for other nodes' sending; so some rank can always go on, as
// long as one agent of each role runs; roles are taken by ticket, so it does.
#pragma once

#include "protocol/role_loops.h"
#include "sched/gemm_rs.h"

namespace mk::protocol {

template <class P>
class GemmRs : public RoleLoops<P, GemmRs<P>> {
  using Base = RoleLoops<P, GemmRs<P>>;
  using Tile = sched::GemmRsTile;

 public:
  MK_HD GemmRs(P& p, const sched::GemmRsPlan& plan, uint32_t hash)
      : Base(p, plan.roles, plan.place(), hash), plan_(plan) {}

  MK_HD bool perform(sched::Role role) {
    switch (role) {
      case sched::Role::send:
        return send();
      case sched::Role::receive:
        return receive();
      default:
        return compute();
    }
  }

  // Nobody else writes this rank's output: when its agents have finished, all is done.
  MK_HD bool control() { return this->enterAndAwaitRoles() && close(p_); }

  MK_HD bool compute() {
    for (;;) {
      const uint64_t position = p_.claim(OwnLayout::claimCompute);
      if (position >= plan_.positions()) return true;
      if (!p_.goOn()) return false;  // the waits below may all be satisfied
      if (plan_.spanning) {
        if (!spanningTile(position)) return false;
        continue;
      }
      const Tile t = plan_.at(position);
      if (!t.exists) continue;
      if (!tile(t)) return false;
    }
  }

  // The peers' rows first, then the own.
  MK_HD bool spanningTile(uint64_t position) {
    for (uint32_t turn = 0; turn < at_.locals; ++turn) {
      const Tile t = plan_.spanningPart(position, plan_.turnOf(turn));
      if (t.exists && !tile(t)) return false;
    }
    return true;
  }

  MK_HD bool tile(const Tile& t) {
    p_.multiply(t);
    return t.mine ? ownTile(t) : peersTile(t);
  }

  MK_HD bool peersTile(const Tile& t) {
    if (!waitPeerOpen(t.local)) return false;
    p_.storePartial(t, bankData(t.local, plan_.partial(t, at_.local)));
    p_.publish(bankFlag(t.local, plan_.partialFlag(t, at_.local)), p_.epoch(), Scope::node);
    return true;
  }

  MK_HD bool ownTile(const Tile& t) {
    for (uint32_t l = 0; l < at_.locals; ++l) {
      if (l == at_.local) continue;
      // Producer: local rank l, in peersTile().
      if (!waitFlag(plan_.partialFlag(t, l), Why{Stage::partial, int32_t(l), -1, t.tile})) return false;
      p_.addPartial(t, bankData(at_.local, plan_.partial(t, l)));
    }
    if (!plan_.multiNode()) {
      p_.finishTile(t);
      p_.storeOut(t);
      return true;
    }
    if (!waitOwn(OwnLayout::bankOpen, Stage::bank)) return false;
    p_.storePartial(t, bankData(at_.local, plan_.nodeSum(t.node, t.chunk) + bytesBefore(t)));
    const uint64_t counter = OwnLayout::firstCounter(at_.locals, at_.nodes) + plan_.railChunk(t.node, t.chunk);
    if (p_.arrive(counter, plan_.tilesIn(t.node, t.local, t.chunk)))
      p_.publish(bankFlag(at_.local, plan_.nodeSumFlag(t.node, t.chunk)), p_.epoch(), Scope::device);
    return true;
  }

  MK_HD bool send() {
    for (uint32_t s = 0; s + 1 < at_.nodes; ++s) {
      const uint32_t n = plan_.target(s);
      for (uint64_t i = 0; i < plan_.chunksOf(n, at_.local); ++i) {
        if (!waitNodeSum(n, i)) return false;
        const uint64_t bytes = plan_.elementsOfChunk(n, at_.local, i) * plan_.shape.wireBytes;
        if (!postChunk(n, plan_.slot(i), plan_.nodeSum(n, i), plan_.arrivedSum(i, at_.node, n), bytes)) return false;
      }
    }
    return true;
  }

  MK_HD bool receive() {
    for (;;) {
      const uint64_t chunk = p_.claim(OwnLayout::claimReceive);
      if (chunk >= plan_.chunksOf(at_.node, at_.local)) return true;
      if (!finishChunk(chunk)) return false;
    }
  }

  MK_HD bool finishChunk(uint64_t i) {
    if (!waitNodeSum(at_.node, i)) return false;
    for (uint32_t n = 0; n < at_.nodes; ++n) {
      // Producer: the rail peer on node n, in send().
      if (n != at_.node && !waitArrival(plan_.slot(i), n, Stage::nodeArrival, i)) return false;
    }
    const uint32_t count = plan_.tilesIn(at_.node, at_.local, i);
    for (uint32_t j = 0; j < count; ++j) {
      const Tile t = plan_.tileOf(at_.node, at_.local, i * plan_.chunkTiles + j);
      for (uint32_t n = 0; n < at_.nodes; ++n) {
        const uint64_t where = n == at_.node ? plan_.nodeSum(n, i) : plan_.arrivedSum(i, n, at_.node);
        p_.loadNodeSum(t, bankData(at_.local, where + bytesBefore(t)), n == 0);
      }
      p_.finishTile(t);
      p_.storeOut(t);
    }
    return true;
  }

 private:
  MK_HD uint64_t bytesBefore(const Tile& t) const { return plan_.elementsBefore(t) * plan_.shape.wireBytes; }
  // Producer: this rank's compute agents, in ownTile().
  MK_HD bool waitNodeSum(uint32_t n, uint64_t i) {
    return waitFlag(plan_.nodeSumFlag(n, i), Why{Stage::nodeSum, -1, -1, plan_.railChunk(n, i)});
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

  const sched::GemmRsPlan& plan_;
};

}  // namespace mk::protocol
