// What a communicator needs of the place where its rank computes: memory that the node's other ranks can map, private words,
// launches, and a look at how they get on.  CpuPlatform and CudaPlatform implement it; communicator, heap and proxy know this
// interface alone.
#pragma once

#include <time.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/settings.h"
#include "host/unique_fd.h"
#include "mkernel.h"
#include "mkernel/queue.h"
#include "protocol/mlx5_queue.h"
#include "protocol/types.h"
#include "sched/ag_gemm.h"
#include "sched/gemm_ar.h"
#include "sched/gemm_rs.h"

namespace mk {

class Heap;
struct GemmArCall;
struct GemmRsCall;
struct AgGemmCall;

// The clock of everything that watches launches.
inline uint64_t nowNs() {
  timespec t = {};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// The address range of one rank's heap: this rank's own, or its mapping of a peer's.  Parts of it get memory, and grow in
// place.  First every rank prepares; when all have, every rank commits.
class HeapMemory {
 public:
  virtual ~HeapMemory() = default;
  virtual char* base() const = 0;

  // Own memory: takes what is missing so that part `part` can be [offset, offset + bytes).  Throws, and changes nothing.
  // A peer's: likewise makes that range ready, with what accept() was given.
  virtual void prepare(uint32_t part, uint64_t offset, uint64_t bytes) = 0;
  // Descriptors by which the node's other ranks get at what has been prepared; lent until commit() or discard().
  virtual std::vector<int> descriptors() const = 0;
  virtual void accept(std::vector<UniqueFd> descriptors) = 0;
  virtual void commit() = 0;
  virtual void discard() = 0;

  // Own memory, before anyone else sees it.
  virtual void write(uint64_t offset, const void* from, uint64_t bytes) = 0;
  // The descriptor part `part` is mapped from, for a transport, and where in it; -1: none.
  virtual int descriptor(uint32_t part, uint64_t* offset) const = 0;
};

// Copies between the own heap and host memory, for a network that cannot reach the heap (staging.h).  Each lane keeps its order;
// nothing waits.  The proxy's thread, but for what its own documentation says.  Throws mkErrorUnhandledCuda.
class HeapCopies {
 public:
  enum Lane : uint32_t { out, in };
  virtual ~HeapCopies() = default;  // waits for copies under way; any thread
  // Makes host memory fit for it.  Before the first copy; any thread.
  virtual void pin(void* memory, uint64_t bytes) = 0;
  virtual void copyOut(void* to, uint64_t offset, uint64_t bytes) = 0;
  virtual void copyIn(uint64_t offset, const void* from, uint64_t bytes) = 0;
  // Raises a flag of the heap: whoever sees it sees all that was copied in before.
  virtual void raise(uint64_t offset, uint64_t value) = 0;
  // A number, from 1 and up in each lane, that has passed when all that the lane was given before has been done.
  virtual uint64_t mark(Lane lane) = 0;
  virtual bool passed(Lane lane, uint64_t mark) = 0;
};

// A stretch of the caller's memory that is to become a window.
struct WindowExport {
  std::vector<uint8_t> claim;  // what importWindow() needs on the other ranks of the node
  std::vector<int> fds;        // and the descriptors that go with it, lent while `hold` lives
  std::shared_ptr<void> hold;  // keeps the memory from being freed where that can be done
};
struct WindowMapping {
  char* base = nullptr;  // of the window
  std::shared_ptr<void> hold;
};

// The words and ring a proxy shares with its rank's agents: all in host memory.
struct ProxyShared {
  mkCommand_t* ring = nullptr;
  uint64_t ringSlots = 0;
  uint64_t* credits = nullptr;              // slots read, monotone
  uint64_t* completions = nullptr;          // commands completed, monotone
  const uint64_t* enteredNewest = nullptr;  // newest epoch this rank has entered
};

// How the running launch gets on, as far as can be seen from outside.  Clock: nowNs().
struct LaunchView {
  uint64_t epoch = 0;       // of the launch
  uint64_t progressAt = 0;  // newest sign of progress
  uint64_t polledAt = 0;    // when its agents were last known to look
  protocol::Why waits;      // what the others wait for too; stage none: nothing
};

class Platform {
 public:
  // On the calling thread's current device.  Throws mkErrorNotSupported where the platform cannot run, naming the cause.
  static std::unique_ptr<Platform> make(const Settings& settings);
  virtual ~Platform() = default;

  virtual int device() const = 0;        // CUDA ordinal, or -1
  virtual uint32_t smCount() const = 0;  // or agents
  virtual std::array<uint8_t, 16> deviceId() const { return {}; }
  virtual std::string pciBusId() const { return {}; }  // of the GPU

  // What must be the smallest of all ranks' for their plans to agree; 0: nothing.
  virtual uint32_t capacity() const { return 0; }
  virtual void setCapacity(uint32_t) {}

  // Makes the device the calling thread's current one.  Returns what restore() needs; the library's own threads never restore,
  // since making another device current would give the process a context on it.
  virtual int bind() const { return -1; }
  virtual void restore(int) const {}

  // ---- Memory
  virtual uint64_t heapPage() const = 0;       // the control part's unit
  virtual uint64_t workspaceUnit() const = 0;  // the heap grows by it
  // Whether ranks that are threads of one process share mappings; else each maps its peers' memory for itself.
  virtual bool sharesMappings() const = 0;
  virtual uint32_t memoryKind() const = 0;  // MK_MEMORY_KIND_...
  virtual std::shared_ptr<HeapMemory> createHeap(uint64_t addressBytes) = 0;
  // `owner`: the peer's memory if it is a thread of this process and mappings are shared.
  virtual std::shared_ptr<HeapMemory> attachHeap(uint64_t addressBytes, const std::shared_ptr<HeapMemory>& owner) = 0;
  // Throws mkErrorNotRegistered, saying why [ptr, ptr + bytes) cannot be a window.
  virtual WindowExport exportWindow(void* ptr, size_t bytes) = 0;
  // sameProcess: the claim is of a thread of this process.
  virtual WindowMapping importWindow(const std::vector<uint8_t>& claim, std::vector<UniqueFd> fds,
                                     bool sameProcess) = 0;

  // Throws mkErrorInvalidArgument unless agents can read and write at `ptr`; name: of the argument.
  virtual void requireOperand(const void* ptr, const char* name) const {
    static_cast<void>(ptr);
    static_cast<void>(name);
  }

  // ---- Private memory and words
  // `ranks` stays as it is while the platform lives.
  virtual void setUp(int rank, const sched::Place& place, const sched::RankMap& ranks, const Heap& heap,
                     const Settings& settings) = 0;
  virtual ProxyShared proxyShared() = 0;
  // A private word (protocol::OwnLayout).  On a GPU as it was at the last refresh().
  virtual uint64_t word(uint64_t index) const = 0;
  // wait: for the words as they are now; else as soon as can be had without waiting.  Throws mkErrorUnhandledCuda.
  virtual void refresh(bool wait) { static_cast<void>(wait); }
  virtual uint64_t completions() const = 0;
  // Raises the flag at this offset of the own heap, for agents to see.  The proxy's thread.
  virtual void raiseFlag(uint64_t offset, uint64_t value) = 0;
  // With at most so many marks of a lane that have not passed.  After setUp().
  virtual std::unique_ptr<HeapCopies> makeCopies(uint32_t marks) = 0;
  // Makes agents leave, also those of launches to come.  Any thread.
  virtual void revoke() = 0;

  // ---- Network cards' queues, for agents to write themselves
  // By node; without entries: none.  Addresses are the host's.  Again after the heap has grown, with the same queues and new
  // keys.  No launch is in flight.
  virtual void setCards(const std::vector<protocol::Mlx5Queue>& queues) = 0;
  // Before the memory of those queues goes.
  virtual void dropCards() {}
  // What the proxy counts up: blocks of the queue to this node that the card is done with.
  virtual uint64_t* cardRetired(uint32_t node) = 0;

  // ---- Launches
  // Whether a launch returns before it has run.
  virtual bool asynchronous() const = 0;
  // Fills in the plan, the choice of kernel and the SMs that suffice.  Throws if the platform cannot do what is asked.
  virtual void planGemmAr(const sched::GemmArShape& shape, const sched::GemmChoice& choice, GemmArCall* call) const = 0;
  virtual protocol::FailRecord runGemmAr(const GemmArCall& call, mkStream_t stream) = 0;
  virtual void planGemmRs(const sched::GemmRsShape& shape, const sched::GemmChoice& choice, GemmRsCall* call) const = 0;
  virtual protocol::FailRecord runGemmRs(const GemmRsCall& call, mkStream_t stream) = 0;
  virtual void planAgGemm(const sched::AgGemmShape& shape, const sched::GemmChoice& choice, AgGemmCall* call) const = 0;
  virtual protocol::FailRecord runAgGemm(const AgGemmCall& call, mkStream_t stream) = 0;
  virtual LaunchView view() const = 0;

  // Of an asynchronous platform:
  // Orders `stream` after the launches so far.  True: the stream is being captured.
  virtual bool follow(mkStream_t stream) {
    static_cast<void>(stream);
    return false;
  }
  // Throws mkErrorCapture if the stream of the last launch is being captured.
  virtual void requireNoCapture(const char* what) const { static_cast<void>(what); }
  // A launch has not ended, as far as can be seen.  strict: neither have replays that are only queued, so that the caller's
  // own work behind them counts too.
  virtual bool busy(bool strict) { return static_cast<void>(strict), false; }
  // Blocks of a launch are running, as of the last refresh().
  virtual bool running() const { return false; }
  // A launch has failed, and left this record.
  virtual bool hasRecord() const { return false; }
  virtual protocol::FailRecord record() const { return {}; }
};

// While it lives, the calling thread works on the platform's device.
class BoundThread {
 public:
  explicit BoundThread(const Platform& platform) : platform_(platform), before_(platform.bind()) {}
  ~BoundThread() { platform_.restore(before_); }
  BoundThread(const BoundThread&) = delete;
  BoundThread& operator=(const BoundThread&) = delete;

 private:
  const Platform& platform_;
  const int before_;
};

// Memory for windows, of the platform a communicator without configuration would have.
void* allocate(size_t bytes);
void release(void* ptr);

}  // namespace mk
