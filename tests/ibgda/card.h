// One connection of the software network card as a driver would hand it out: the memory of its queues, what agents need to
// post there, and whoever reads its completions.
#pragma once

#include <cstdint>
#include <cstring>

#include "ibgda/soft_nic.h"
#include "protocol/mlx5_queue.h"

namespace test {

class Card {
 public:
  // `memory`: zeroed, aligned to 64, of bytes(entryCount); stays the caller's.
  static uint64_t bytes(uint32_t entryCount) { return uint64_t{entryCount} * 192 + 256; }
  Card(SoftNic& nic, void* memory, uint32_t entryCount, uint32_t receiveEntries = 0) : nic_(nic) {
    char* const at = static_cast<char*>(memory);
    cqes_ = reinterpret_cast<uint64_t*>(at + uint64_t{entryCount} * 64);
    char* const words = at + uint64_t{entryCount} * 192;
    records_ = reinterpret_cast<uint32_t*>(words);
    cqRecord_ = reinterpret_cast<uint32_t*>(words + 64);
    // What no card has written yet says so.
    cqeCount_ = 2 * entryCount;  // its own and as many arrivals
    for (uint32_t i = 0; i < cqeCount_; ++i) cqes_[i * 8 + 7] = uint64_t{0xf0} << 56;
    completions_ = nic.createCompletions(cqes_, cqeCount_, cqRecord_);
    SoftNic::Pair pair;
    pair.entries = at;
    pair.entryCount = entryCount;
    pair.records = records_;
    pair.doorbell = reinterpret_cast<uint64_t*>(words + 128);
    pair.sendCompletions = pair.receiveCompletions = completions_;
    number_ = nic.createPair(pair);
    offerReceives(receiveEntries);
    queue_.entries = reinterpret_cast<uint64_t*>(at);
    queue_.record = records_ + 1;
    queue_.doorbell = pair.doorbell;
    queue_.entryCount = entryCount;
    queue_.number = number_;
    queue_.maxBytes = uint64_t{1} << 30;
  }
  ~Card() {
    nic_.destroyPair(number_);
    nic_.destroyCompletions(completions_);
  }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  uint32_t number() const { return number_; }
  // Keys are the caller's to fill in.
  mk::protocol::Mlx5Queue& queue() { return queue_; }
  void offerReceives(uint32_t more) {
    offered_ += more;
    std::atomic_ref<uint32_t>(records_[0]).store(__builtin_bswap32(offered_ & 0xffff), std::memory_order_release);
  }

  // Reads what completions there are.
  struct Retired {
    uint32_t commands = 0;                             // of this call
    uint64_t entries = 0;                              // of all: entries the card is done with
    uint32_t errors = 0, arrivals = 0, immediate = 0;  // the newest immediate
    uint8_t syndrome = 0;
  };
  Retired collect() {
    Retired r;
    for (;;) {
      const uint64_t* const cqe = cqes_ + consumed_ % cqeCount_ * 8;
      const uint64_t last = std::atomic_ref<const uint64_t>(cqe[7]).load(std::memory_order_acquire);
      const uint32_t opcode = static_cast<uint32_t>(last >> 60);
      if (opcode == 0xf || (last >> 56 & 1) != (consumed_ / cqeCount_ & 1)) break;
      ++consumed_;
      if (opcode == 1) {
        ++r.arrivals;
        r.immediate = __builtin_bswap32(static_cast<uint32_t>(cqe[4] >> 32));
      } else {
        const auto index = __builtin_bswap16(static_cast<uint16_t>(last >> 32));
        retired_ += static_cast<uint16_t>(index + 1 - retired_);
        if (opcode == 0) {
          ++r.commands;
        } else {
          ++r.errors;
          if (r.syndrome == 0) r.syndrome = static_cast<uint8_t>(cqe[6] >> 56);
        }
      }
      std::atomic_ref<uint32_t>(*cqRecord_)
          .store(__builtin_bswap32(static_cast<uint32_t>(consumed_ & 0xffffff)), std::memory_order_release);
    }
    r.entries = retired_;
    return r;
  }

 private:
  SoftNic& nic_;
  uint64_t* cqes_ = nullptr;
  uint32_t *records_ = nullptr, *cqRecord_ = nullptr;
  uint32_t cqeCount_ = 0, completions_ = 0, number_ = 0, offered_ = 0;
  uint64_t consumed_ = 0, retired_ = 0;
  mk::protocol::Mlx5Queue queue_;
};

}  // namespace test
