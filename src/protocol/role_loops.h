// What the role loops of every operation have in common: who takes which role, how a launch begins and ends, and the ways to
// name, wait for and send what lies in a bank.
#pragma once

#include "protocol/control.h"
#include "sched/roles.h"

namespace mk::protocol {

// `Op` derives from it, and has control() and perform(role), for the other roles; false: it left early, and the platform has a
// record.
template <class P, class Op>
class RoleLoops {
 public:
  MK_HD RoleLoops(P& p, const sched::RoleCounts& roles, const sched::Place& at, uint32_t hash)
      : p_(p), roles_(roles), at_(at), hash_(hash) {}

  // One agent's whole part in a launch.
  MK_HD bool run() {
    const sched::Role role = roles_.role(p_.claim(OwnLayout::ticket));
    p_.setRole(role);
    Op& op = static_cast<Op&>(*this);
    const bool ok = role == sched::Role::control ? op.control() : finished(op.perform(role));
    // The last agent out makes the private words ready for the next launch; after a failure there is none.
    if (ok && p_.arrive(OwnLayout::left, roles_.total())) {
      p_.ownReset(OwnLayout::ticket);
      p_.ownReset(OwnLayout::claimCompute);
      p_.ownReset(OwnLayout::claimReceive);
      p_.ownReset(OwnLayout::claimMove);
      p_.ownReset(OwnLayout::claimCopy);
      p_.publish(own(OwnLayout::epoch), p_.epoch(), Scope::device);
    }
    return ok;
  }

  MK_HD bool finished(bool ok) {
    if (ok && p_.arrive(OwnLayout::finished, roles_.total() - 1))
      p_.publish(own(OwnLayout::rolesDone), p_.epoch(), Scope::device);
    return ok;
  }

 protected:
  // Control's part until all the other agents have finished.
  MK_HD bool enterAndAwaitRoles() {
    if (!enter(p_, hash_)) return false;
    // Producer: the last agent of this launch, in finished().
    return p_.wait(own(OwnLayout::rolesDone), p_.epoch(), Match::equal, Why{Stage::roles, -1, -1, 0});
  }

  MK_HD uint32_t bank() const { return static_cast<uint32_t>(p_.epoch() & 1); }
  MK_HD Ref bankData(uint32_t local, uint64_t offset) const {
    return heap(local, p_.heapLayout().data(bank()) + offset);
  }
  MK_HD Ref bankFlag(uint32_t local, uint64_t word) const {
    return heap(local, p_.heapLayout().flags(bank()) + word * 8);
  }
  MK_HD bool waitOwn(uint64_t word, Stage stage) {
    return p_.wait(own(word), p_.epoch(), Match::equal, Why{stage, -1, -1, 0});
  }
  // Producer: this launch's control agent, once local rank l has entered.
  MK_HD bool waitPeerOpen(uint32_t l) {
    return p_.wait(own(OwnLayout::peerOpen(l)), p_.epoch(), Match::equal, Why{Stage::entered, int32_t(l), -1, 0});
  }
  // A word of my bank's flags.
  MK_HD bool waitFlag(uint64_t word, const Why& why) {
    return p_.wait(bankFlag(at_.local, word), p_.epoch(), Match::equal, why);
  }
  // What the rail peer on node n sends in this slot.
  MK_HD bool waitArrival(uint64_t slot, uint32_t n, Stage stage, uint64_t item) {
    const uint64_t offset = sched::arrivalFlag(p_.heapLayout(), p_.controlLayout(), slot, n, p_.epoch());
    return p_.wait(heap(at_.local, offset), p_.epoch(), Match::equal, Why{stage, -1, int32_t(n), item});
  }
  // From my bank into the bank of the rail peer on node n.
  MK_HD bool postChunk(uint32_t n, uint64_t slot, uint64_t from, uint64_t to, uint64_t bytes) {
    // Producer: this launch's control agent, once the rail peer has entered.
    if (!p_.wait(own(OwnLayout::railOpen(at_.locals, n)), p_.epoch(), Match::equal,
                 Why{Stage::entered, -1, int32_t(n), 0}))
      return false;
    const uint64_t base = p_.heapLayout().data(bank());
    return post(p_, Write{n, base + from, base + to, bytes, slot, p_.epoch()});
  }

  P& p_;
  const sched::RoleCounts roles_;
  const sched::Place at_;
  const uint32_t hash_;
};

}  // namespace mk::protocol
