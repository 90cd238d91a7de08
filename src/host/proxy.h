// The proxy: a host thread that takes commands from the ring and drives the transport.  It batches up to eight commands of one
// connection into a submission, waits only briefly for a fuller batch, bounds what is under way, keeps per-command completion,
// never blocks, and serves arrivals in every round, whatever sending does.  Plain code over a clock, the ring's words and the
// transport table.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/heap.h"
#include "host/platform.h"
#include "host/staging.h"
#include "host/transport.h"
#include "mkernel/queue.h"
#include "protocol/mlx5_queue.h"

namespace mk {

struct ProxyCounters {
  std::atomic<uint64_t> payloadBytes{0}, payloadMessages{0}, batches{0}, commands{0}, completions{0};
  std::atomic<uint64_t> arrivals{0};  // of which the transport has told: none where flags are written without the proxy
  std::atomic<uint64_t> batchSize[9] = {};  // submissions by number of commands
  std::atomic<uint64_t> longestRoundNs{0};  // between two looks at the transport: for so long the thread was held up
};

class Proxy {
 public:
  // Opens an endpoint of the transport; connect() and registerHeap() follow, then start().
  // epochStart: of the communicator, before its first operation.
  Proxy(std::shared_ptr<Transport> transport, int device, uint32_t node, uint32_t nodes, Heap& heap, Platform& platform,
        uint64_t epochStart);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  const std::vector<uint8_t>& address() const { return address_; }
  // By node; this node's own entry is ignored.
  void connect(const std::vector<uint8_t>& addresses, int timeoutMs);
  // Why the network has to go through host memory: it cannot register the heap, or that is asked for.  "": it need not.  After
  // connect().
  std::string stagingReason();
  // From now on it does, here and on all rail peers.  Before registerHeap().
  void stage();
  bool staged() const { return staging_ != nullptr; }
  // Registers the heap's parts as they are now; the keys go to the rail peers.  Again after the heap has grown, while paused.
  std::vector<uint8_t> registerHeap();
  // keys: registerHeap() of the peer on that node.
  void importHeap(uint32_t node, const std::vector<uint8_t>& keys, int timeoutMs);

  // Gives the agents the network cards' own queues, where the transport has any to give.  After importHeap of all nodes, while
  // paused; from the first time on they post there and not to the ring.
  void openCards();

  // onFailure(node or -1, text) is called once, on the proxy's thread.
  void start(std::function<void(int, const std::string&)> onFailure);
  // Between pause and resume the calling thread may use the endpoint.  Only when all commands have completed.
  void pause();
  void resume();
  // Ends the thread and closes the endpoint: nothing is read or written by it any more.  Any thread; again: nothing happens.
  void stop();

  // As if operations up to this epoch had gone by.  While nothing is under way.
  void startAt(uint64_t epoch) {
    for (std::atomic<uint64_t>& word : arrivedControl_) word.store(epoch, std::memory_order_relaxed);
  }

  const ProxyCounters& counters() const { return counters_; }
  // What it has counted, for whoever asks why an operation did not get on.  Any thread.
  std::string account() const;
  // A node to which writes are under way or wait; -1: none.  Any thread.
  int unfinishedNode() const;

 private:
  struct Pending {
    mkTransportWrite_t write;
    uint64_t since;  // when it was read from the ring
  };
  struct Peer {
    void* remote[Heap::kParts] = {};
    std::vector<Pending> queue;  // circular, fixed capacity
    size_t head = 0, count = 0;
    std::atomic<uint64_t> unfinished{0};  // commands read and not completed
  };

  void loop();
  bool takeCommands(uint64_t now);
  bool submit(uint64_t now);
  bool collectEvents();
  void arrived(int node, uint32_t immediate);
  bool takeQueues();
  int registerPart(uint32_t index, void** handle, uint8_t* key);
  void retired(const mkTransportEvent_t& event);
  bool cardBusy(uint32_t node) const;
  bool translate(const mkCommand_t& command, uint32_t node, mkTransportWrite_t* write, std::string* why) const;
  void failed(int node, const std::string& text);
  std::string lastError() const;

  std::shared_ptr<Transport> transport_;
  void* endpoint_ = nullptr;
  const uint32_t node_, nodes_;
  Heap& heap_;
  Platform& platform_;
  const ProxyShared shared_;
  std::vector<uint8_t> address_;
  void* local_[Heap::kParts] = {};
  Heap::Part parts_[Heap::kParts];
  std::unique_ptr<Staging> staging_;         // null: the network reaches the heap
  std::vector<Peer> peers_;                  // by node
  std::vector<protocol::Mlx5Queue> queues_;  // by node; empty unless agents write them

  uint64_t taken_ = 0;                                 // commands read from the ring
  size_t pendingTotal_ = 0;                            // read, not yet submitted
  std::vector<std::atomic<uint64_t>> arrivedControl_;  // newest epoch of each control slot, by slot and node
  bool dead_ = false;                                  // a failure has been reported: only polling goes on
  std::function<void(int, const std::string&)> onFailure_;
  ProxyCounters counters_;

  std::thread thread_;
  std::atomic<int> wanted_{0};  // 0 run, 1 pause, 2 stop
  std::atomic<bool> parked_{false};
  std::mutex stopMutex_;
};

}  // namespace mk
