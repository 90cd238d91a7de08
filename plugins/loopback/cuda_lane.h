// How one peer's GPU memory is written: a stream of the endpoint's own, on which the copy engine carries payloads and then
// their flags, and a list of what to tell once it has.  Steps are gathered during one pass of the model of the card and
// posted together, contiguous ones as one copy, because posting costs more than small copies do.  Posting and collecting
// make no call that allocates, synchronises or loads: a kernel that fills the GPU must not hold up the proxy that serves it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "nic.h"

namespace mk::loopback::cuda {

// What has become of writes, for the endpoint.
class Sink {
 public:
  virtual ~Sink() = default;
  // Puts the immediate into the peer's ring.
  virtual Carrier::Outcome arrive(int peer, uint32_t immediate) = 0;
  virtual void sent(int peer, uint64_t cookie, mkResult_t status) = 0;
  virtual void failed(int peer, const std::string& reason) = 0;
};

class Lane {
 public:
  // outstanding: writes to this peer at most.  In the context that is current; throws Failure.
  Lane(const Driver& driver, int peer, uint32_t outstanding);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Reads a word of the peer's memory, so that a path that does not work shows now, and what is loaded at first use is.
  void probe(DevicePtr memory);

  void copy(const Flight& flight, uint64_t from, uint64_t to);
  // The flag, or the immediate where there is none; false: no room now.
  bool notify(const Flight& flight);
  // The write is over but for what the stream has still to do.
  void finish(const Flight& flight, mkResult_t status);
  // Posts what was gathered.
  void flush();
  // Tells what has been carried out.
  void collect(Sink& sink);

  // Nothing posted is under way any more.
  bool idle() const { return driver_.streamQuery(stream_) != kNotReady; }
  // The stream does not come to an end: keeps all that its copies use.
  void abandon() { abandoned_ = true; }

 private:
  struct Copy {
    DevicePtr to, from;
    uint64_t bytes;
    const void *destination, *source;  // the registrations; copies do not cross from one into the next
  };
  struct Flags {
    DevicePtr to;
    uint64_t slot, count;  // in the ring of words
  };
  struct Item {
    bool arrival, repeated;  // else the end of a write
    mkResult_t status;
    uint32_t immediate;
    uint64_t order, cookie;
  };
  // What an event stands for: this many items more, and the words used until then.
  struct Batch {
    Event event;
    size_t items;
    uint64_t words;
  };

  void post();
  void breakWith(const char* call, Result result);
  void deliver(Sink& sink);
  void giveUp(Sink& sink);
  void release();

  const Driver& driver_;
  const int peer_;
  const uint64_t slots_;  // of the ring of words: room for each outstanding write's flag and its repetition
  Stream stream_ = nullptr;
  uint64_t* words_ = nullptr;  // pinned: the flags' values until they have been copied
  std::vector<Event> events_;  // free ones
  bool abandoned_ = false;

  std::vector<Copy> copies_;  // gathered
  std::vector<Flags> flags_;
  uint64_t gathered_ = 0;  // bytes

  std::deque<Item> items_;  // oldest first: `ready_` may be told, `covered_` have an event behind them
  size_t ready_ = 0, covered_ = 0;
  std::deque<Batch> batches_;
  uint64_t wordsUsed_ = 0, wordsCovered_ = 0, wordsFree_ = 0;  // counted for ever
  std::vector<uint64_t> lost_;                                 // writes whose immediate the peer did not stay for
  std::string broken_;                                         // why nothing is posted any more
  bool told_ = false;
};

}  // namespace mk::loopback::cuda
