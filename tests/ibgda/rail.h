// A rail of nodes made by hand, one rank each, joined by the software network card: heaps and private memory in this process,
// no communicator and no proxy, but a thread that reads the completions as the proxy does.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "emu/platform.h"
#include "ibgda/card.h"

namespace test {

class Rail {
 public:
  struct Options {
    uint32_t nodes = 2, entries = 16;
    bool immediates = false;
    uint64_t timeoutMs = 20000;
    bool reader = true;  // a thread that reads completions
  };
  Rail(SoftNic& nic, const Options& options) : nic_(nic), options_(options), ranks_(options.nodes) {
    using mk::protocol::Mlx5Queue;
    using mk::protocol::OwnLayout;
    mk::sched::ControlLayout control;
    control.nodes = options.nodes;
    mk::sched::HeapLayout layout;
    layout.controlBytes = control.bytes();
    layout.maxWorkspace = mk::sched::kWorkspaceUnit;
    for (uint32_t n = 0; n < options.nodes; ++n) {
      Rank& r = ranks_[n];
      r.heap.resize(layout.totalBytes() / 8);
      const uint64_t words = OwnLayout::firstCounter(1, options.nodes) + 16;
      r.own.resize(words + options.nodes * Mlx5Queue::countWords(options.entries));
      r.memory.rank = static_cast<int>(n);
      r.memory.place = {options.nodes, 1, n, 0};
      r.memory.heapLayout = layout;
      r.memory.controlLayout = control;
      r.memory.heaps = {reinterpret_cast<char*>(r.heap.data())};
      r.memory.own = r.own.data();
      r.memory.timeoutNs = options.timeoutMs * 1'000'000;
      r.own[OwnLayout::allEntered] = 1;
      for (uint32_t i = 0; i < mk::sched::HeapLayout::kParts; ++i) {
        const uint64_t begin = layout.partOffset(i);
        const uint64_t end = i + 1 < mk::sched::HeapLayout::kParts ? layout.partOffset(i + 1) : layout.totalBytes();
        r.keys[i] = nic.addMemory(r.memory.heaps[0] + begin, end - begin, true);
      }
      r.memory.cardQueues.resize(options.nodes);
      r.cards.resize(options.nodes);
      for (uint32_t peer = 0; peer < options.nodes; ++peer) {
        if (peer == n) continue;
        auto& c = r.cards[peer];
        c.memory.reset(static_cast<char*>(std::aligned_alloc(64, Card::bytes(options.entries))));
        std::memset(c.memory.get(), 0, Card::bytes(options.entries));
        c.card = std::make_unique<Card>(nic, c.memory.get(), options.entries, options.immediates ? options.entries : 0);
      }
    }
    for (uint32_t n = 0; n < options.nodes; ++n) {
      for (uint32_t peer = 0; peer < options.nodes; ++peer) {
        if (peer == n) continue;
        Card& card = *ranks_[n].cards[peer].card;
        nic.connectPair(card.number(), ranks_[peer].cards[n].card->number());
        Mlx5Queue& q = ranks_[n].memory.cardQueues[peer];
        q = card.queue();
        q.immediates = options.immediates;
        q.firstWord = OwnLayout::firstCounter(1, options.nodes) + 16 + peer * Mlx5Queue::countWords(options.entries);
        q.retiredWord = q.word(Mlx5Queue::retired);
        for (uint32_t i = 0; i < mk::sched::HeapLayout::kParts; ++i) {
          q.local[i] = {reinterpret_cast<uint64_t>(ranks_[n].heap.data()), ranks_[n].keys[i]};
          q.remote[i] = {reinterpret_cast<uint64_t>(ranks_[peer].heap.data()), ranks_[peer].keys[i]};
        }
      }
    }
    if (options.reader)
      reader_ = std::thread([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
          if (!collect()) std::this_thread::yield();
        }
      });
  }
  ~Rail() {
    stop_.store(true);
    if (reader_.joinable()) reader_.join();
  }
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  mk::emu::RankMemory& memory(uint32_t node) { return ranks_[node].memory; }
  uint64_t* heapWord(uint32_t node, uint64_t offset) {
    return reinterpret_cast<uint64_t*>(ranks_[node].memory.heaps[0] + offset);
  }
  Card& card(uint32_t node, uint32_t peer) { return *ranks_[node].cards[peer].card; }
  uint32_t key(uint32_t node, uint32_t part) const { return ranks_[node].keys[part]; }
  uint64_t completions(uint32_t node) {
    return memory(node).ownWord(mk::protocol::OwnLayout::completions).load(std::memory_order_acquire);
  }
  uint64_t errors() const { return errors_.load(); }
  uint64_t arrivals() const { return arrivals_.load(); }

  // What the proxy does with what the transport tells it.
  bool collect() {
    bool any = false;
    for (Rank& r : ranks_) {
      for (uint32_t peer = 0; peer < options_.nodes; ++peer) {
        if (r.cards[peer].card == nullptr) continue;
        const Card::Retired got = r.cards[peer].card->collect();
        errors_ += got.errors;
        arrivals_ += got.arrivals;
        if (got.arrivals > 0) r.cards[peer].card->offerReceives(got.arrivals);
        if (got.commands == 0) continue;
        any = true;
        r.memory.ownWord(r.memory.cardQueues[peer].word(mk::protocol::Mlx5Queue::retired))
            .store(got.entries, std::memory_order_release);
        r.memory.ownWord(mk::protocol::OwnLayout::completions).fetch_add(got.commands, std::memory_order_release);
      }
    }
    return any;
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  struct Place {
    std::unique_ptr<char, Free> memory;
    std::unique_ptr<Card> card;
  };
  struct Rank {
    std::vector<uint64_t> heap, own;
    uint32_t keys[mk::sched::HeapLayout::kParts] = {};
    std::vector<Place> cards;  // by node
    mk::emu::RankMemory memory;
  };

  SoftNic& nic_;
  const Options options_;
  std::vector<Rank> ranks_;
  std::atomic<uint64_t> errors_{0}, arrivals_{0};
  std::atomic<bool> stop_{false};
  std::thread reader_;
};

}  // namespace test
