// How one peer's GPU memory is written: by two streams of the endpoint's own, on which the copy engine carries payloads, the
// stream itself stores their flags, and then a word of the host that tells how far it is.  Steps are gathered during one pass
// of the model of the card and posted together, contiguous payloads as one copy, because posting costs more than small copies
// do.  Measured on H200, 256 KiB and a flag: with the flag as a copy of its own the stream changes engines, 11 us; stored by the
// stream 6, as each waits for the copy before it; on two streams 4.6, four at a time 3.2.  Asking an event takes 1.5, reading a
// word nothing.  Posting and collecting make no call that allocates, synchronises or loads: a kernel that fills the GPU must
// not hold up the proxy that serves it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "nic.h"

namespace mk::plugin::loopback::cuda {

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
  // In the context that is current; throws Failure.
  Lane(const Driver& driver, int peer);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Reads a word of the peer's memory, so that a path that does not work shows now, and what is loaded at first use is.
  void probe(DevicePtr memory);

  void copy(const Flight& flight, uint64_t from, uint64_t to);
  // The flag, or the immediate where there is none.
  void notify(const Flight& flight);
  // The write is over but for what the stream has still to do.
  void finish(const Flight& flight, mkResult_t status);
  // Posts what was gathered.
  void flush();
  // Tells what has been carried out.
  void collect(Sink& sink);

  // Nothing posted is under way any more.
  bool idle() const;
  // A stream does not come to an end: keeps all that its copies use.
  void abandon() { abandoned_ = true; }

 private:
  struct Copy {
    DevicePtr to, from;
    uint64_t bytes;
    const void *destination, *source;  // the registrations; copies do not cross from one into the next
  };
  struct Item {
    bool arrival, repeated;  // else the end of a write
    mkResult_t status;
    uint32_t immediate;
    uint64_t order, cookie;
  };
  // The path has passed this point: so many items more may be told.
  struct Batch {
    uint64_t number;
    size_t items;
  };
  // A stream and what has been given to it.  All of a write takes one path.
  struct Path {
    Stream stream = nullptr;
    uint64_t* passed =
        nullptr;               // pinned, stored by the stream: the newest batch it has passed; a scratch word behind it
    uint64_t posted = 0;       // the newest batch
    std::vector<Copy> copies;  // gathered
    std::vector<MemOp> stores;  // of flags, and of `passed`
    uint64_t gathered = 0;      // bytes
    std::deque<Item> items;     // oldest first: `ready` may be told, `covered` have a batch
    size_t ready = 0, covered = 0;
    std::deque<Batch> batches;
  };

  Path& pathOf(const Flight& flight);
  void post(Path& path);
  void flush(Path& path);
  void collect(Path& path, Sink& sink);
  void askForFault();
  void breakWith(const char* call, Result result);
  void deliver(Path& path, Sink& sink);
  void giveUp(Sink& sink);
  void release();

  const Driver& driver_;
  const int peer_;
  std::array<Path, 2> paths_;
  bool abandoned_ = false;
  std::chrono::steady_clock::time_point askedAt_ = {};  // when the streams were last asked for a fault
  std::vector<uint64_t> lost_;                          // writes whose immediate the peer did not stay for
  std::string broken_;                                  // why nothing is posted any more
  bool told_ = false;
};

}  // namespace mk::plugin::loopback::cuda
