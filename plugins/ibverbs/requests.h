// The bookkeeping of a connection's send queue, without a device: which requests a batch of writes becomes, which of them ask
// for a completion, and which writes a completion stands for.
//
// A connection carries out its requests in order, so the completion of one stands for all before it, and a failed one for the
// success of all before it.  Completions are asked for at the end of each batch and on the way every kSignalEvery writes: few
// enough to be cheap, and nothing waits for a later batch.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace mk::plugin::ibverbs {

struct LocalMemory;

constexpr uint32_t kSignalEvery = 8;

// A write with all that a network card has to know, after it has been checked.
struct WirePlan {
  uint64_t source = 0, destination = 0, bytes = 0;  // bytes 0: the flag alone
  uint32_t sourceKey = 0, destinationKey = 0;
  uint64_t flag = 0, flagValue = 0;
  uint32_t flagKey = 0;
};

// What is in a send queue.
struct Posted {
  enum class Kind : uint8_t { write, beat, farewell, lookup };
  Kind kind = Kind::write;
  uint64_t cookie = 0;
  LocalMemory* source = nullptr;
  uint64_t last = 0;  // its last request; set by the ledger
};

class SendLedger {
 public:
  explicit SendLedger(uint32_t capacity) : capacity_(capacity) {}

  uint32_t room() const { return capacity_ - static_cast<uint32_t>(next_ - firstOpen_); }
  bool empty() const { return posted_.empty(); }
  size_t size() const { return posted_.size(); }
  uint64_t next() const { return next_; }

  // Takes the places of so many requests; there must be room.
  void add(Posted posted, uint32_t requests) {
    next_ += requests;
    posted.last = next_ - 1;
    posted_.push_back(posted);
  }
  // Request `through` and all before it have been carried out; `done(posted)` for each whose requests all have.
  template <typename Done>
  void complete(uint64_t through, Done&& done) {
    while (!posted_.empty() && posted_.front().last <= through) {
      const Posted posted = posted_.front();
      posted_.pop_front();
      firstOpen_ = posted.last + 1;
      done(posted);
    }
  }
  bool holds(const LocalMemory* source) const {
    for (const Posted& posted : posted_)
      if (posted.source == source) return true;
    return false;
  }
  // Everything that is left.
  template <typename Each>
  void drop(Each&& each) {
    complete(UINT64_MAX, each);
  }

 private:
  const uint32_t capacity_;
  uint64_t next_ = 0, firstOpen_ = 0;  // requests
  std::deque<Posted> posted_;
};

// Requests for one post: a linked list and what it points to.
class Chain {
 public:
  // At most so many writes.
  explicit Chain(uint32_t writes);

  void clear() { count_ = writes_ = 0; }
  bool empty() const { return count_ == 0; }
  uint32_t count() const { return count_; }
  // Payload, if any, and flag.  `tag` goes into the numbers, above the 40 bits of `number`.  Returns the number of requests.
  uint32_t add(const WirePlan& plan, uint64_t tag, uint64_t number);
  // Links the list, asks for the last completion, and returns its head.
  ibv_send_wr* finish();

 private:
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> places_;
  std::vector<uint64_t> flags_;
  uint32_t count_ = 0, writes_ = 0;
};

constexpr uint64_t kNumberMask = (uint64_t{1} << 40) - 1;

}  // namespace mk::plugin::ibverbs
