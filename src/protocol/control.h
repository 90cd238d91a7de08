// The control role: one agent per launch that opens the bank, agrees with the neighbours, and closes the launch.
//
// Neighbours are the node's other local ranks and the rail's other nodes: whoever reads or writes my bank.  Why the order of
// steps is safe:
//  - My bank of epoch e may be written once every neighbour has published done(e-2); I publish entered(e) only then, and no
//    neighbour sends me a byte before it has seen that word and compared the plan hash in it.  (With a single node,
//    partial results and rows of A may go ahead of that, as soon as the sender has seen my done(e-2): nobody else's writes to that bank can
//    be repeated, and nothing made of them reaches user memory unless the plans agree.)
//  - done(e) says: I have consumed what was sent to me in e, and my own network writes up to e have completed, so that none
//    can be repeated later.  If some have not when the launch ends, the next launch publishes it (settle).
//  - Deadlines hold only once every rank of the communicator has entered: my rail and, by their railEntered words, the rails of
//    my local peers, which together are everybody.
#pragma once

#include "protocol/command_ring.h"
#include "protocol/types.h"
#include "sched/hash.h"
#include "sched/heap_layout.h"

namespace mk::protocol {

// Publishes done(e) to all neighbours after all network writes so far have completed.
template <class P>
MK_HD bool settle(P& p, uint64_t e) {
  const sched::Place at = p.place();
  const sched::ControlLayout control = p.controlLayout();
  // Producer: the proxy, as the transport reports completions.
  if (!p.wait(own(OwnLayout::completions), p.ownLoad(OwnLayout::ringTail), Match::atLeast,
              Why{Stage::completion, -1, -1, 0}))
    return false;
  for (uint32_t l = 0; l < at.locals; ++l) {
    if (l != at.local) p.publish(heap(l, control.doneLocal(at.local)), e, Scope::node);
  }
  for (uint32_t s = 0; s + 1 < at.nodes; ++s) {
    const uint32_t n = (at.node + 1 + s) % at.nodes;
    if (!post(p, Write{n, 0, 0, 0, sched::kSlotDone, e})) return false;
  }
  p.publish(own(OwnLayout::donePublished), e, Scope::device);
  return true;
}

// False: unwind; the record says why.
template <class P>
MK_HD bool checkEntered(P& p, uint64_t word, uint32_t hash, const Why& why) {
  if (sched::enteredHash(word) == hash && sched::enteredEpoch(word) == static_cast<uint32_t>(p.epoch())) return true;
  const bool sameEpoch = sched::enteredEpoch(word) == static_cast<uint32_t>(p.epoch());
  p.fail(sameEpoch ? FailRecord::mismatch : FailRecord::protocolError, why, sched::enteredWord(p.epoch(), hash), word);
  return false;
}

// Steps before anything is sent.  `hash`: of the plan and everything else that must agree.
template <class P>
MK_HD bool enter(P& p, uint32_t hash) {
  const sched::Place at = p.place();
  const sched::ControlLayout control = p.controlLayout();
  const uint64_t e = p.epoch();
  const uint32_t parity = static_cast<uint32_t>(e & 1);

  if (p.ownLoad(OwnLayout::donePublished) < e - 1 && !settle(p, e - 1)) return false;
  if (e >= 2) {
    for (uint32_t l = 0; l < at.locals; ++l) {
      // Producer: local rank l, in settle().
      if (l != at.local && !p.wait(heap(at.local, control.doneLocal(l)), e - 2, Match::atLeast,
                                   Why{Stage::done, static_cast<int32_t>(l), -1, 0}))
        return false;
    }
    for (uint32_t n = 0; n < at.nodes; ++n) {
      // Producer: the rail peer on node n, in settle(), by a command.
      if (n != at.node && !p.wait(heap(at.local, control.arrival(sched::kSlotDone, n)), e - 2, Match::atLeast,
                                  Why{Stage::done, -1, static_cast<int32_t>(n), 0}))
        return false;
    }
  }

  // Local peers first: every launch waits for that.  The proxy must know the epoch before a rail peer can send in it.
  const uint64_t word = sched::enteredWord(e, hash);
  for (uint32_t l = 0; l < at.locals; ++l) {
    if (l != at.local) p.publish(heap(l, control.enteredLocal(parity, at.local)), word, Scope::node);
  }
  if (at.nodes > 1) {
    p.publish(own(OwnLayout::enteredNewest), e, Scope::device);
    p.publish(own(OwnLayout::bankOpen), e, Scope::device);
    p.write(heap(at.local, control.enteredSource(parity)), word);
    for (uint32_t s = 0; s + 1 < at.nodes; ++s) {
      const uint32_t n = (at.node + 1 + s) % at.nodes;
      if (!post(p, Write{n, control.enteredSource(parity), control.enteredRail(parity, at.node), 8,
                         sched::kSlotEntered0 + parity, e}))
        return false;
    }
  }

  for (uint32_t l = 0; l < at.locals; ++l) {
    if (l == at.local) continue;
    const Why why{Stage::entered, static_cast<int32_t>(l), -1, 0};
    uint64_t seen = 0;
    // Producer: local rank l, above.
    if (!p.wait(heap(at.local, control.enteredLocal(parity, l)), e, Match::low32, why, &seen)) return false;
    if (!checkEntered(p, seen, hash, why)) return false;
    p.publish(own(OwnLayout::peerOpen(l)), e, Scope::device);
  }
  for (uint32_t n = 0; n < at.nodes; ++n) {
    if (n == at.node) continue;
    const Why why{Stage::entered, -1, static_cast<int32_t>(n), 0};
    // Producer: the rail peer on node n, above, by a command whose payload is the word.
    if (!p.wait(heap(at.local, control.arrival(sched::kSlotEntered0 + parity, n)), e, Match::equal, why)) return false;
    if (!checkEntered(p, p.read(heap(at.local, control.enteredRail(parity, n))), hash, why)) return false;
    p.publish(own(OwnLayout::railOpen(at.locals, n)), e, Scope::device);
  }

  // With one node the neighbours are everybody.
  for (uint32_t l = 0; l < at.locals && at.nodes > 1; ++l) {
    if (l != at.local) p.publish(heap(l, control.railEntered(at.local)), e, Scope::node);
  }
  for (uint32_t l = 0; l < at.locals && at.nodes > 1; ++l) {
    // Producer: local rank l, above.  It may already be in a later launch.
    if (l != at.local && !p.wait(heap(at.local, control.railEntered(l)), e, Match::atLeast,
                                 Why{Stage::entered, static_cast<int32_t>(l), -1, 1}))
      return false;
  }
  p.publish(own(OwnLayout::allEntered), e, Scope::device);
  return true;
}

// Peers have read my user memory in this launch, and I theirs: nobody returns from the launch, and overwrites its inputs,
// before all have finished reading.
template <class P>
MK_HD bool exchangeConsumed(P& p) {
  const sched::Place at = p.place();
  const sched::ControlLayout control = p.controlLayout();
  const uint64_t e = p.epoch();
  for (uint32_t l = 0; l < at.locals; ++l) {
    if (l != at.local) p.publish(heap(l, control.consumedLocal(at.local)), e, Scope::node);
  }
  for (uint32_t l = 0; l < at.locals; ++l) {
    // Producer: local rank l, above.
    if (l != at.local && !p.wait(heap(at.local, control.consumedLocal(l)), e, Match::atLeast,
                                 Why{Stage::consumed, static_cast<int32_t>(l), -1, 0}))
      return false;
  }
  return true;
}

// The end of a launch, after the operation's outputs are known to have arrived.
template <class P>
MK_HD bool close(P& p) {
  if (p.ready(own(OwnLayout::completions), p.ownLoad(OwnLayout::ringTail), Match::atLeast)) return settle(p, p.epoch());
  return true;  // network writes are still completing: the next launch settles
}

}  // namespace mk::protocol
