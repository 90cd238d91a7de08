// The Platform of the CPU: shared memory, atomics, a monotonic clock.  One object per agent; Launch is shared by the agents of
// one launch.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "emu/fibre.h"
#include "emu/hooks.h"
#include "emu/rank_memory.h"
#include "protocol/platform.h"

namespace mk::emu {

inline uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Shared by the agents of one launch.
struct Launch {
  const RankMemory* memory = nullptr;
  uint64_t epoch = 0;
  std::atomic<uint64_t> lastProgress{0};
  std::atomic<bool> failed{false};    // someone left early: all leave
  std::atomic<bool> recorded{false};  // whoever sets it writes the record
  protocol::FailRecord record;        // read after all agents have left
};

class BasePlatform {
 public:
  explicit BasePlatform(Launch& launch) : launch_(launch), memory_(*launch.memory) {}

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
    uint64_t since = 0;
    for (uint32_t polls = 0;; ++polls) {
      const uint64_t seen = word.load(std::memory_order_acquire);
      if (matches(seen, value, match)) {
        if (seenOut != nullptr) *seenOut = seen;
        if (polls > 0) progress();
        return true;
      }
      if (match == protocol::Match::equal && seen > value) {
        fail(protocol::FailRecord::protocolError, why, value, seen);
        return false;
      }
      if (polls % 32 == 0 && !mayGoOn(why, value, seen, &since)) return false;
      AgentPool::idle();
    }
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

  void fail(protocol::FailRecord::Kind kind, const protocol::Why& why, uint64_t expected, uint64_t seen) {
    if (!launch_.recorded.exchange(true, std::memory_order_acq_rel)) {
      launch_.record = protocol::FailRecord{kind, static_cast<uint32_t>(role_), why, launch_.epoch, expected, seen};
    }
    launch_.failed.store(true, std::memory_order_release);
  }

 protected:
  void progress() {
    launch_.lastProgress.store(nowNs(), std::memory_order_relaxed);
    AgentPool::busy();
  }

  Launch& launch_;
  const RankMemory& memory_;

 private:
  // Revocation, the launch's failure, and the deadline.
  bool mayGoOn(const protocol::Why& why, uint64_t expected, uint64_t seen, uint64_t* since) {
    if (!goOn()) return false;
    // No deadline while ranks have not entered: checkpoints and compilation take minutes.  What earlier launches owe has one.
    const bool earlier = why.stage == protocol::Stage::done || why.stage == protocol::Stage::completion ||
                         why.stage == protocol::Stage::queue;
    const bool bounded =
        earlier || memory_.ownWord(protocol::OwnLayout::allEntered).load(std::memory_order_acquire) == launch_.epoch;
    if (!bounded) {
      *since = 0;
      return true;
    }
    const uint64_t now = nowNs();
    if (*since == 0) *since = now;
    const uint64_t last = launch_.lastProgress.load(std::memory_order_relaxed);
    const uint64_t from = *since > last ? *since : last;
    if (now > from && now - from > memory_.timeoutNs) {
      fail(protocol::FailRecord::timeout, why, expected, seen);
      return false;
    }
    return true;
  }

  sched::Role role_ = sched::Role::control;
};

static_assert(protocol::Platform<BasePlatform>);

}  // namespace mk::emu
