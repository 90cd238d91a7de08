// The Platform of the CPU: shared memory, atomics, a monotonic clock.  One object per agent; Launch is shared by the agents of
// one launch.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "emu/fibre.h"
#include "emu/hooks.h"
#include "emu/rank_memory.h"
#include "emu/wait_board.h"
#include "protocol/platform.h"

namespace mk::emu {

inline uint64_t nowNs() {
  timespec t = {};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Shared by the agents of one launch.
struct Launch {
  const RankMemory* memory = nullptr;
  WaitBoard* waits = nullptr;  // with a place for every agent; may be null
  uint64_t epoch = 0;
  std::atomic<uint64_t> lastProgress{0};
  std::atomic<bool> failed{false};    // someone left early: all leave
  std::atomic<bool> recorded{false};  // whoever sets it writes the record
  protocol::FailRecord record;        // read after all agents have left
};

class BasePlatform {
 public:
  explicit BasePlatform(Launch& launch, uint32_t agent = 0) : launch_(launch), memory_(*launch.memory), agent_(agent) {}

  sched::Place place() const { return memory_.place; }
  uint64_t epoch() const { return launch_.epoch; }
  const sched::HeapLayout& heapLayout() const { return memory_.heapLayout; }
  const sched::ControlLayout& controlLayout() const { return memory_.controlLayout; }
  uint64_t ringSlots() const { return memory_.ringSlots; }
  void setRole(sched::Role role) { role_ = role; }

  static bool matches(uint64_t seen, uint64_t value, protocol::Match match) {
    switch (match) {
      case protocol::Match::equal:
        return seen == value;
      case protocol::Match::atLeast:
        return seen >= value;
      case protocol::Match::low32:
        return static_cast<uint32_t>(seen) == static_cast<uint32_t>(value);
    }
    return false;
  }
  bool ready(const protocol::Ref& r, uint64_t value, protocol::Match match) {
    return matches(memory_.flag(r).load(std::memory_order_acquire), value, match);
  }

  bool wait(const protocol::Ref& r, uint64_t value, protocol::Match match, const protocol::Why& why,
            uint64_t* seenOut = nullptr) {
    const std::atomic_ref<uint64_t> word = memory_.flag(r);
    Clock clock;
    bool result = false;
    for (uint32_t polls = 0;; ++polls) {
      const uint64_t seen = word.load(std::memory_order_acquire);
      if (matches(seen, value, match)) {
        if (seenOut != nullptr) *seenOut = seen;
        if (polls == 0) return true;
        progress();
        result = true;
        break;
      }
      if (match == protocol::Match::equal && seen > value) {
        fail(protocol::FailRecord::protocolError, why, value, seen);
        break;
      }
      if (polls == 0 && launch_.waits != nullptr) launch_.waits->begin(agent_, why);
      if (polls % 32 == 0 && !mayGoOn(why, value, seen, &clock)) break;
      AgentPool::idle();
    }
    if (launch_.waits != nullptr) launch_.waits->end(agent_);
    return result;
  }

  bool goOn() {
    if (launch_.failed.load(std::memory_order_acquire)) return false;
    if (memory_.ownWord(protocol::OwnLayout::revoked).load(std::memory_order_acquire) == 0) return true;
    fail(protocol::FailRecord::revoked, {}, 0, 0);
    return false;
  }

  void publish(const protocol::Ref& r, uint64_t value, protocol::Scope) {
    memory_.flag(r).store(value, std::memory_order_release);
    if (r.space == protocol::Space::own && r.offset == protocol::OwnLayout::allEntered * 8)
      callHook(memory_.rank, launch_.epoch, Point::entered, 0);
    progress();
  }
  // Payload words: ordered by the flag or command that follows or precedes.
  uint64_t read(const protocol::Ref& r) { return memory_.flag(r).load(std::memory_order_relaxed); }
  void write(const protocol::Ref& r, uint64_t value) { memory_.flag(r).store(value, std::memory_order_relaxed); }

  uint64_t claim(uint64_t word) {
    progress();
    return memory_.ownWord(word).fetch_add(1, std::memory_order_relaxed);
  }
  bool arrive(uint64_t word, uint64_t total) {
    if (memory_.ownWord(word).fetch_add(1, std::memory_order_acq_rel) + 1 < total) return false;
    memory_.ownWord(word).store(0, std::memory_order_relaxed);
    return true;
  }
  uint64_t ownAdd(uint64_t word, uint64_t n) { return memory_.ownWord(word).fetch_add(n, std::memory_order_acq_rel); }
  uint64_t look(const protocol::FarWord& far) {
    const uint64_t value = ownLoad(far.word);
    memory_.ownWord(far.seen).store(value, std::memory_order_release);
    return value;
  }
  bool waitFar(const protocol::FarWord& far, uint64_t value, const protocol::Why& why) {
    return wait(protocol::own(far.word), value, protocol::Match::atLeast, why);
  }
  uint64_t ownLoad(uint64_t word) { return memory_.ownWord(word).load(std::memory_order_acquire); }
  void ownReset(uint64_t word) { memory_.ownWord(word).store(0, std::memory_order_relaxed); }

  void storeCommand(uint64_t slot, const mkCommand_t& command) {
    callHook(memory_.rank, launch_.epoch, Point::post, command.slot);
    mkCommand_t& c = memory_.ring[slot];
    c.source = command.source;
    c.destination = command.destination;
    c.bytes = command.bytes;
    c.slot = command.slot;
    c.epoch = command.epoch;
    std::atomic_ref<uint64_t>(c.header).store(command.header, std::memory_order_release);
  }

  const protocol::Mlx5Queue* cardQueue(uint32_t node) const {
    return memory_.cardQueues.empty() ? nullptr : &memory_.cardQueues[node];
  }
  void storeEntry(uint64_t* entry, const uint64_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) std::atomic_ref<uint64_t>(entry[i]).store(words[i], std::memory_order_relaxed);
  }
  // NOLINTNEXTLINE(readability-non-const-parameter): stored to, through an atomic_ref
  void storeRecord(uint32_t* record, uint32_t value) {
    cardFence();
    std::atomic_ref<uint32_t>(*record).store(value, std::memory_order_release);
  }
  // NOLINTNEXTLINE(readability-non-const-parameter)
  void storeDoorbell(uint64_t* doorbell, uint64_t value) {
    cardFence();
    std::atomic_ref<uint64_t>(*doorbell).store(value, std::memory_order_release);
    cardFence();  // nor may it linger
  }
  // What was stored before is seen by the card before what is stored next, also where that goes to a register that is mapped
  // write-combining, which an ordinary store may pass.
  static void cardFence() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#elif defined(__aarch64__)
    asm volatile("dmb oshst" ::: "memory");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  template <class Work>
  void asOne(Work&& work) {
    work(*this);
  }

  void fail(protocol::FailRecord::Kind kind, const protocol::Why& why, uint64_t expected, uint64_t seen) {
    if (!launch_.recorded.exchange(true, std::memory_order_acq_rel)) {
      launch_.record = protocol::FailRecord{kind, static_cast<uint32_t>(role_), why, launch_.epoch, expected, seen};
    }
    launch_.failed.store(true, std::memory_order_release);
  }

 protected:
  void progress() {
    const uint64_t now = nowNs();
    launch_.lastProgress.store(now, std::memory_order_relaxed);
    if (launch_.waits != nullptr) launch_.waits->progress(now);
    heartbeat(memory_.place.local).store(now, std::memory_order_relaxed);
    AgentPool::busy();
  }
  std::atomic_ref<uint64_t> heartbeat(uint32_t local) const {
    return memory_.flag(protocol::heap(local, memory_.controlLayout.heartbeat()));
  }

  Launch& launch_;
  const RankMemory& memory_;

 private:
  // Of one wait.
  struct Clock {
    uint64_t since = 0;   // the deadline runs from here, or from the launch's last progress
    uint64_t looked = 0;  // when it was last looked at
  };
  // A longer time between two looks means that this rank did not run: it was suspended, starved, or another agent held the
  // thread.  Nobody else is to blame for that.
  static constexpr uint64_t kPauseNs = 250'000'000;

  // Revocation, the launch's failure, and the deadline.
  bool mayGoOn(const protocol::Why& why, uint64_t expected, uint64_t seen, Clock* clock) {
    if (!goOn()) return false;
    const uint64_t now = nowNs();
    if (launch_.waits != nullptr) launch_.waits->polled(now);
    // No deadline while ranks have not entered: checkpoints and compilation take minutes.  What earlier launches owe has one.
    const bool earlier = why.stage == protocol::Stage::done || why.stage == protocol::Stage::completion ||
                         why.stage == protocol::Stage::queue;
    const bool bounded =
        earlier || memory_.ownWord(protocol::OwnLayout::allEntered).load(std::memory_order_acquire) == launch_.epoch;
    const uint64_t pause = now - clock->looked;
    clock->looked = now;
    if (!bounded || clock->since == 0 || (pause > kPauseNs && pause > memory_.timeoutNs / 4)) {
      clock->since = now;
      return true;
    }
    const uint64_t last = launch_.lastProgress.load(std::memory_order_relaxed);
    const uint64_t from = clock->since > last ? clock->since : last;
    if (now > from && now - from > memory_.timeoutNs) {
      // Of what this rank's agents wait for, the first cause; not what happens to expire first.
      const protocol::Why cause = launch_.waits != nullptr ? launch_.waits->root() : why;
      if (cause.local >= 0) {
        // A slow peer is not a stalled one: some flags, such as the one for all its output, come only at the end of its work.
        const uint64_t beat = heartbeat(static_cast<uint32_t>(cause.local)).load(std::memory_order_relaxed);
        if (beat > from) {
          clock->since = beat;
          return true;
        }
      }
      fail(protocol::FailRecord::timeout, cause, expected, seen);
      return false;
    }
    return true;
  }

  const uint32_t agent_;
  sched::Role role_ = sched::Role::control;
};

static_assert(protocol::Platform<BasePlatform>);

}  // namespace mk::emu
