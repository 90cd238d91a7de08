// The role loops of AllGather+GEMM.  Movers copy this rank's shard chunk by chunk into its bank, for the network, and to each
// local peer; the sender posts it along the rail, and on a ring passes on what arrives; movers store what has arrived at the
// local peers; compute agents multiply a tile when the chunks under it have come.  Rows land in the heap, or in `gathered` where
// that is a window; an ordinary `gathered` is filled from the heap.  Peers' memory is written, never read.  Where tiles span shards
// (sched/ag_gemm.h), movers put this rank's rows beside its peers', and compute agents wait for those too.
//
// Deadlock freedom.  Nobody waits for a compute agent or for copyOut.  Moving the own shard waits for nothing but the peer's
// entering (on one GPU node its done() of the operation before last), and comes before all other moves (sched/ag_gemm.h).  The sender waits for moves of its own shard, then on a ring for
// what the node before sends: that is its own shard, which waits for no other node, then what it has received one step earlier,
// so by induction over the steps all of it comes.  Moves of what arrives wait for a sender alone.  So every chunk comes, as long
// as one agent of each role runs; roles are taken by ticket, so it does.
#pragma once

#include "protocol/platform.h"
#include "protocol/role_loops.h"
#include "sched/ag_gemm.h"

namespace mk::protocol {

template <class P>
class AgGemm : public RoleLoops<P, AgGemm<P>> {
  using Base = RoleLoops<P, AgGemm<P>>;
  using Plan = sched::AgGemmPlan;

 public:
  MK_HD AgGemm(P& p, const Plan& plan, uint32_t hash) : Base(p, plan.roles, plan.place(), hash), plan_(plan) {}

  // The roles one by one, for a platform that gives them to its agents in its own way.
  MK_HD bool perform(sched::Role role) {
    switch (role) {
      case sched::Role::send:
        return send();
      case sched::Role::move:
        return move();
      case sched::Role::copyOut:
        return copyOut();
      default:
        return compute();
    }
  }

  MK_HD bool control() {
    if (!this->enterAndAwaitRoles()) return false;
    // Movers have seen all that comes from other nodes; of what local peers store there is one flag each.
    for (uint32_t l = 0; l < at_.locals; ++l) {
      if (l == at_.local || plan_.movesToPeer(l) == 0) continue;
      // Producer: local rank l, in storeAtPeer().
      if (!waitFlag(plan_.outFlag(l), Why{Stage::output, int32_t(l), -1, 0})) return false;
    }
    return close(p_);
  }

  MK_HD bool compute() {
    for (;;) {
      const uint64_t position = p_.claim(OwnLayout::claimCompute);
      if (position >= plan_.positions()) return true;
      if (!p_.goOn()) return false;  // the waits below may all be satisfied
      const Plan::TileTask t = plan_.tileAt(position);
      if (!t.exists) continue;
      for (uint64_t c = t.firstChunk; c < t.endChunk; ++c) {
        if (!waitChunk(t.from, c)) return false;
      }
      p_.multiply(t, rowsOf(t.from, t.shardRow));
      p_.finishTile(t);
      p_.storeOut(t);
    }
  }

  // One agent: it sends in order.
  MK_HD bool send() {
    for (uint64_t i = 0; i < plan_.sends(); ++i) {
      const Plan::Send t = plan_.send(i);
      if (!t.exists) continue;
      // Producer of the own shard: this rank's movers, in move().
      if (plan_.isMine(t.from) ? !waitFlag(plan_.chunkFlag(t.from, t.chunk), Why{Stage::ownRows, -1, -1, t.chunk})
                               : !waitChunk(t.from, t.chunk))
        return false;
      const uint64_t where = plan_.packed(t.from, plan_.chunkRow(t.chunk));
      if (!this->postChunk(t.to, plan_.slot(t.distance, t.chunk), where, where, plan_.chunkBytes(t.from, t.chunk)))
        return false;
    }
    return true;
  }

  MK_HD bool move() {
    const uint64_t toPeers = plan_.movesToPeer(at_.local) * (at_.locals - 1);
    for (;;) {
      const uint64_t number = p_.claim(OwnLayout::claimMove);
      if (number >= plan_.moves()) return true;
      if (!p_.goOn()) return false;
      const Plan::Move t = plan_.move(number);
      if (!t.exists) continue;
      if (t.distance > 0 && !waitChunk(t.from, t.chunk)) return false;
      switch (t.target) {
        case Plan::Target::bank:
          // On one node it is open: what others wrote there has been used by launches that have ended, and is not repeated.
          if (plan_.multiNode() && !waitOwn(OwnLayout::bankOpen, Stage::bank)) return false;
          storeHere(t, inBank(at_.local, t));
          break;
        case Plan::Target::peer:
          if (!storeAtPeer(t, toPeers)) return false;
          break;
        case Plan::Target::self:
          if (plan_.selfAnnounced()) {
            storeHere(t, inGathered(at_.local, t.from, plan_.chunkRow(t.chunk)));
          } else if (plan_.shape.gathered != sched::Gathered::none)
            copyToGathered(t.from, t.chunk);
          break;
      }
    }
  }

  MK_HD bool copyOut() {
    for (;;) {
      const uint64_t number = p_.claim(OwnLayout::claimCopy);
      if (number >= plan_.copies()) return true;
      if (!p_.goOn()) return false;
      const Plan::Copy t = plan_.copy(number);
      if (!t.exists) continue;
      if (!waitChunk(t.from, t.chunk)) return false;
      copyToGathered(t.from, t.chunk);
    }
  }

 private:
  using Base::at_;
  using Base::bankData;
  using Base::bankFlag;
  using Base::p_;
  using Base::waitFlag;
  using Base::waitOwn;

  // Own rows, for this rank's sender, or for tiles that span shards.
  MK_HD void storeHere(const Plan::Move& t, const RowsAt& to) {
    copySlice(t, to);
    p_.publish(bankFlag(at_.local, plan_.chunkFlag(t.from, t.chunk, t.slice)), p_.epoch(), Scope::device);
  }
  MK_HD void copySlice(const Plan::Move& t, const RowsAt& to) {
    p_.copyRows(rowsOf(t.from, plan_.chunkRow(t.chunk)), to, plan_.rowsIn(t.from, t.chunk), plan_.sliceCol(t.slice),
                plan_.colsIn(t.slice));
  }
  MK_HD bool storeAtPeer(const Plan::Move& t, uint64_t toPeers) {
    if (!this->waitPeerOpen(t.peer)) return false;
    copySlice(t, plan_.windowed() ? inGathered(t.peer, t.from, plan_.chunkRow(t.chunk)) : inBank(t.peer, t));
    p_.publish(bankFlag(t.peer, plan_.chunkFlag(t.from, t.chunk, t.slice)), p_.epoch(), Scope::node);
    if (!p_.arrive(OwnLayout::tilesOut, toPeers)) return true;
    for (uint32_t l = 0; l < at_.locals; ++l) {
      if (l != at_.local) p_.publish(bankFlag(l, plan_.outFlag(at_.local)), p_.epoch(), Scope::node);
    }
    return true;
  }
  MK_HD void copyToGathered(const sched::Shard& s, uint64_t chunk) {
    const uint64_t row = plan_.chunkRow(chunk);
    p_.copyRows(rowsOf(s, row), inGathered(at_.local, s, row), plan_.rowsIn(s, chunk), 0, plan_.shape.k);
  }

  // Until a chunk of another rank's shard is there, or of the whole A.
  MK_HD bool waitChunk(const sched::Shard& s, uint64_t chunk) {
    if (plan_.isMine(s)) return true;
    if (!plan_.onMyRail(s)) {
      const Why why = whyOf(s, chunk);
      for (uint64_t slice = 0; slice < plan_.slices(); ++slice) {
        // Producer: local rank s.local, in storeAtPeer(); of the whole A the chunk's, of own rows in storeHere().
        if (!waitFlag(plan_.chunkFlag(s, chunk, slice), why)) return false;
      }
      return true;
    }
    // Producer: the rail peer there, in send().
    const uint32_t distance = plan_.distanceTo(s.node);
    return this->waitArrival(plan_.slot(distance, chunk), plan_.sender(distance), Stage::railRows, chunk);
  }
  MK_HD Why whyOf(const sched::Shard& s, uint64_t chunk) const {
    if (!plan_.isWholeA(s)) return Why{Stage::peerRows, int32_t(s.local), -1, chunk};
    // On one node local ranks are numbered as ranks are.
    const uint32_t rank = plan_.rankOfChunk(chunk);
    const uint64_t inShard = chunk - rank * plan_.mostChunks();
    if (rank == at_.local) return Why{Stage::ownRows, -1, -1, inShard};
    return Why{Stage::peerRows, int32_t(rank), -1, inShard};
  }
  // Where this rank reads rows of a shard from, or of the whole A.
  MK_HD RowsAt rowsOf(const sched::Shard& s, uint64_t shardRow) const {
    if (plan_.isMine(s)) return RowsAt{RowsAt::Where::shard, {}, at_.local, shardRow};
    if (plan_.windowed() && !plan_.onMyRail(s)) return inGathered(at_.local, s, shardRow);
    return RowsAt{RowsAt::Where::heap, bankData(at_.local, plan_.packed(s, shardRow)), at_.local, 0};
  }
  MK_HD RowsAt inGathered(uint32_t local, const sched::Shard& s, uint64_t shardRow) const {
    return RowsAt{RowsAt::Where::gathered, {}, local, plan_.shards.first(s.rank) + shardRow};
  }
  MK_HD RowsAt inBank(uint32_t local, const Plan::Move& t) const {
    return RowsAt{RowsAt::Where::heap, bankData(local, plan_.packed(t.from, plan_.chunkRow(t.chunk))), local, 0};
  }

  const Plan& plan_;
};

}  // namespace mk::protocol
