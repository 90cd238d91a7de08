// The Platform of the GPU (protocol/platform.h).  LanePlatform: an agent that is one thread, of a spare warp.  BlockPlatform: one
// that is the threads of a block's two computing warpgroups, who all call; its first thread does what LanePlatform does, and the
// others learn the outcome through shared memory.
#pragma once

#include "kernels/mbarrier.cuh"
#include "kernels/memory.cuh"
#include "kernels/rank_memory.h"
#include "protocol/platform.h"

namespace mk::kernels {

// kNetwork: there may be several nodes.
template <bool kNetwork>
class LanePlatform {
 public:
  __device__ __forceinline__ LanePlatform(const RankMemory& memory, sched::Role role)
      : memory_(memory), before_(loadRelaxed(memory.own + protocol::OwnLayout::epoch)), role_(role) {}

  __device__ __forceinline__ sched::Place place() const {
    sched::Place at = memory_.place;
    if constexpr (!kNetwork) {
      at.nodes = 1;
      at.node = 0;
    }
    return at;
  }
  __device__ __forceinline__ uint64_t epoch() const { return before_ + 1; }
  __device__ __forceinline__ const sched::HeapLayout& heapLayout() const { return memory_.heapLayout; }
  __device__ __forceinline__ const sched::ControlLayout& controlLayout() const { return memory_.controlLayout; }
  __device__ __forceinline__ uint64_t ringSlots() const { return memory_.ringSlots; }
  __device__ __forceinline__ void setRole(sched::Role role) { role_ = role; }

  __device__ __forceinline__ char* at(const protocol::Ref& r) const {
    return r.space == protocol::Space::own ? reinterpret_cast<char*>(own(r.offset / 8))
                                           : memory_.heaps[r.local] + r.offset;
  }
  __device__ __forceinline__ uint64_t* word(const protocol::Ref& r) const { return reinterpret_cast<uint64_t*>(at(r)); }
  __device__ __forceinline__ uint64_t* own(uint64_t index) const {
    if constexpr (kNetwork) {
      if (index == protocol::OwnLayout::completions) return memory_.host + HostWords::completions;
      if (index == protocol::OwnLayout::credits) return memory_.host + HostWords::credits;
      if (index == protocol::OwnLayout::enteredNewest) return memory_.host + HostWords::enteredNewest;
      if (index >= HostWords::kHere) return memory_.host + (index - HostWords::kHere);
    }
    return memory_.own + index;
  }

  static __device__ __forceinline__ bool matches(uint64_t seen, uint64_t value, protocol::Match match) {
    if (match == protocol::Match::equal) return seen == value;
    if (match == protocol::Match::atLeast) return seen >= value;
    return static_cast<uint32_t>(seen) == static_cast<uint32_t>(value);
  }
  __device__ __forceinline__ bool ready(const protocol::Ref& r, uint64_t value, protocol::Match match) {
    return matches(loadAcquire(word(r)), value, match);
  }

  // A wait in steps, for agents that have something else to do meanwhile.
  struct Polls {
    uint64_t since = 0;
    uint32_t count = 0;
  };
  enum class Polled { notYet, there, leave };
  // Polls with acquire, which empties the multiprocessor's L1: nothing here lives on it.
  __device__ __forceinline__ Polled poll(const protocol::Ref& r, uint64_t value, protocol::Match match,
                                         const protocol::Why& why, Polls* polls) {
    return judge(loadAcquire(word(r)), value, match, why, polls);
  }
  __device__ __forceinline__ bool wait(const protocol::Ref& r, uint64_t value, protocol::Match match,
                                       const protocol::Why& why, uint64_t* seenOut = nullptr) {
    uint64_t* const w = word(r);
    return pollUntil([w] { return loadAcquire(w); }, value, match, why, seenOut);
  }
  __device__ __forceinline__ bool waitFar(const protocol::FarWord& far, uint64_t value, const protocol::Why& why) {
    return pollUntil([&] { return look(far); }, value, protocol::Match::atLeast, why, nullptr);
  }
  // Nobody waits for whoever is looking: it is done when its read is, and what it saw then may be seen.
  __device__ __forceinline__ uint64_t look(const protocol::FarWord& far) {
    if (loadRelaxed(own(far.looking)) != 0 || addRelaxed(own(far.looking), 1) != 0) return loadAcquire(own(far.seen));
    const uint64_t value = loadAcquire(own(far.word));
    storeReleaseDevice(own(far.seen), value);
    storeRelaxed(own(far.looking), 0);
    return value;
  }

  __device__ __forceinline__ void publish(const protocol::Ref& r, uint64_t value, protocol::Scope scope) {
    if (scope == protocol::Scope::device) {
      storeReleaseDevice(word(r), value);
    } else {
      storeReleaseSystem(word(r), value);
    }
  }
  __device__ __forceinline__ uint64_t read(const protocol::Ref& r) { return loadRelaxed(word(r)); }
  __device__ __forceinline__ void write(const protocol::Ref& r, uint64_t value) { storeRelaxed(word(r), value); }

  __device__ __forceinline__ uint64_t claim(uint64_t index) { return addRelaxed(own(index), 1); }
  // n arrivals of `total` at once.
  __device__ __forceinline__ bool arrive(uint64_t index, uint64_t total, uint64_t n = 1) {
    if (addAcqRel(own(index), n) + n < total) return false;
    storeRelaxed(own(index), 0);
    return true;
  }
  __device__ __forceinline__ uint64_t ownAdd(uint64_t index, uint64_t n) { return addAcqRel(own(index), n); }
  __device__ __forceinline__ uint64_t ownLoad(uint64_t index) { return loadAcquire(own(index)); }
  __device__ __forceinline__ void ownReset(uint64_t index) { storeRelaxed(own(index), 0); }

  __device__ __forceinline__ void storeCommand(uint64_t slot, const mkCommand_t& c) {
    uint64_t* const w = reinterpret_cast<uint64_t*>(memory_.ring + slot);
    storeRelaxed(w + 1, c.source);
    storeRelaxed(w + 2, c.destination);
    storeRelaxed(w + 3, c.bytes);
    storeRelaxed(w + 4, c.slot);
    storeRelaxed(w + 5, c.epoch);
    storeReleaseSystem(w, c.header);
  }

  __device__ __forceinline__ const protocol::Mlx5Queue* cardQueue(uint32_t node) const {
    if constexpr (!kNetwork) return nullptr;
    return memory_.cardQueues == nullptr ? nullptr : memory_.cardQueues + node;
  }
  __device__ __forceinline__ void storeEntry(uint64_t* entry, const uint64_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) storeRelaxed(entry + i, words[i]);
  }
  __device__ __forceinline__ void storeRecord(uint32_t* record, uint32_t value) { storeReleaseSystem(record, value); }
  __device__ __forceinline__ void storeDoorbell(uint64_t* doorbell, uint64_t value) {
    fenceSystem();
    storeRegister(doorbell, value);
  }
  template <class Work>
  __device__ __forceinline__ void asOne(Work&& work) {
    work(*this);
  }

  // The first record of a launch stays; whoever finds its epoch in the word leaves.
  __device__ __forceinline__ void fail(protocol::FailRecord::Kind kind, const protocol::Why& why, uint64_t expected,
                                       uint64_t seen) {
    if (exchangeRelaxed(own(protocol::OwnLayout::failed), epoch()) == epoch()) return;
    protocol::FailRecord* const r = memory_.record;
    r->role = static_cast<uint32_t>(role_);
    r->why = why;
    r->epoch = epoch();
    r->expected = expected;
    r->seen = seen;
    fenceSystem();
    *const_cast<volatile uint32_t*>(&r->kind) = kind;
  }
  // This launch is to be left: someone has failed, or the communicator is revoked.
  __device__ __forceinline__ bool leaving() const {
    // Both are under way at once.
    const uint64_t failed = loadRelaxed(own(protocol::OwnLayout::failed));
    const uint64_t revoked = loadRelaxed(own(protocol::OwnLayout::revoked));
    return failed == epoch() || revoked != 0;
  }
  __device__ __forceinline__ void progress() { storeRelaxed(own(protocol::OwnLayout::lastProgress), clockNs()); }

 private:
  __device__ __forceinline__ Polled judge(uint64_t seen, uint64_t value, protocol::Match match,
                                          const protocol::Why& why, Polls* polls) {
    if (matches(seen, value, match)) return Polled::there;
    if (match == protocol::Match::equal && seen > value) {
      fail(protocol::FailRecord::protocolError, why, value, seen);
      return Polled::leave;
    }
    return ++polls->count % 32 != 0 || mayGoOn(why, value, seen, &polls->since) ? Polled::notYet : Polled::leave;
  }
  template <class Load>
  __device__ __forceinline__ bool pollUntil(Load&& load, uint64_t value, protocol::Match match,
                                            const protocol::Why& why, uint64_t* seenOut) {
    Polls polls;
    for (;;) {
      const uint64_t seen = load();
      if (seenOut != nullptr) *seenOut = seen;
      const Polled polled = judge(seen, value, match, why, &polls);
      if (polled != Polled::notYet) return polled == Polled::there;
    }
  }
  // Revocation, the launch's failure, and the deadline.
  __device__ __forceinline__ bool mayGoOn(const protocol::Why& why, uint64_t expected, uint64_t seen, uint64_t* since) {
    if (loadRelaxed(own(protocol::OwnLayout::failed)) == epoch()) return false;
    if (loadRelaxed(own(protocol::OwnLayout::revoked)) != 0) {
      fail(protocol::FailRecord::revoked, why, expected, seen);
      return false;
    }
    // No deadline while ranks have not entered: checkpoints and compilation take minutes.  What earlier launches owe has one.
    const bool earlier = why.stage == protocol::Stage::done || why.stage == protocol::Stage::completion ||
                         why.stage == protocol::Stage::queue;
    if (!earlier && loadRelaxed(own(protocol::OwnLayout::allEntered)) != epoch()) {
      *since = 0;
      return true;
    }
    const uint64_t now = clockNs();
    if (*since == 0) *since = now;
    const uint64_t last = loadRelaxed(own(protocol::OwnLayout::lastProgress));
    const uint64_t from = *since > last ? *since : last;
    if (now > from && now - from > memory_.timeoutNs) {
      fail(protocol::FailRecord::timeout, why, expected, seen);
      return false;
    }
    return true;
  }

  const RankMemory& memory_;
  // The newest completed launch; used as late as can be, since the load takes as long as that of the first operands.
  const uint64_t before_;
  sched::Role role_;
};

// `mailbox`: 16 bytes of shared memory.  Barrier kAgentBarrier belongs to it.
class BlockPlatform {
 public:
  static constexpr uint32_t kThreads = 256, kAgentBarrier = 1;

  __device__ __forceinline__ BlockPlatform(const RankMemory& memory, sched::Role role, uint32_t thread,
                                           volatile uint64_t* mailbox)
      : lane_(memory, role), thread_(thread), mailbox_(mailbox) {}

  __device__ __forceinline__ sched::Place place() const { return lane_.place(); }
  __device__ __forceinline__ uint64_t epoch() const { return lane_.epoch(); }
  __device__ __forceinline__ const sched::HeapLayout& heapLayout() const { return lane_.heapLayout(); }
  __device__ __forceinline__ const sched::ControlLayout& controlLayout() const { return lane_.controlLayout(); }
  __device__ __forceinline__ uint64_t ringSlots() const { return lane_.ringSlots(); }
  __device__ __forceinline__ char* at(const protocol::Ref& r) const { return lane_.at(r); }
  __device__ __forceinline__ uint32_t thread() const { return thread_; }
  __device__ __forceinline__ void sync() const { namedSync(kAgentBarrier, kThreads); }

  // What the first thread does, for all.  Orders everything before by anyone against it, and it against everything after.
  template <class Work>
  __device__ __forceinline__ uint64_t together(Work&& work) {
    sync();
    if (thread_ == 0) *mailbox_ = static_cast<uint64_t>(work());
    sync();
    return *mailbox_;
  }
  __device__ __forceinline__ bool wait(const protocol::Ref& r, uint64_t value, protocol::Match match,
                                       const protocol::Why& why, uint64_t* = nullptr) {
    return together([&] { return lane_.wait(r, value, match, why); }) != 0;
  }
  __device__ __forceinline__ void publish(const protocol::Ref& r, uint64_t value, protocol::Scope scope) {
    together([&] {
      lane_.publish(r, value, scope);
      return 0;
    });
  }
  __device__ __forceinline__ uint64_t claim(uint64_t index) {
    return together([&] {
      lane_.progress();
      return lane_.claim(index);
    });
  }
  __device__ __forceinline__ bool arrive(uint64_t index, uint64_t total) {
    return together([&] { return lane_.arrive(index, total); }) != 0;
  }
  __device__ __forceinline__ uint64_t ownAdd(uint64_t index, uint64_t n) {
    return together([&] { return lane_.ownAdd(index, n); });
  }
  __device__ __forceinline__ uint64_t ownLoad(uint64_t index) {
    return together([&] { return lane_.ownLoad(index); });
  }
  __device__ __forceinline__ uint64_t look(const protocol::FarWord& far) {
    return together([&] { return lane_.look(far); });
  }
  __device__ __forceinline__ bool waitFar(const protocol::FarWord& far, uint64_t value, const protocol::Why& why) {
    return together([&] { return lane_.waitFar(far, value, why); }) != 0;
  }
  __device__ __forceinline__ const protocol::Mlx5Queue* cardQueue(uint32_t node) const { return lane_.cardQueue(node); }
  template <class Work>
  __device__ __forceinline__ void asOne(Work&& work) {
    together([&] {
      work(lane_);
      return 0;
    });
  }
  __device__ __forceinline__ void storeCommand(uint64_t slot, const mkCommand_t& c) {
    together([&] {
      lane_.storeCommand(slot, c);
      return 0;
    });
  }

 private:
  LanePlatform<true> lane_;
  const uint32_t thread_;
  volatile uint64_t* const mailbox_;
};

}  // namespace mk::kernels
