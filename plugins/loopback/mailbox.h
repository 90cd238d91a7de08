// The arrival ring of one pair of endpoints: the peer (one producer) puts the immediates of its writes in, the endpoint
// that made the mailbox (one consumer) takes them out in poll.  It lies in shared memory; between endpoints of one process
// the same mapping serves both.  Also holds the word by which a peer tells an orderly close from a death.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "socket.h"

namespace mk::plugin::loopback {

class Mailbox {
 public:
  // slots: a power of two.
  static std::shared_ptr<Mailbox> create(uint32_t slots);
  // Maps a peer's mailbox.
  static std::shared_ptr<Mailbox> open(const UniqueFd& fd, uint32_t slots);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Producer.  False: full.  Everything written before is visible to whoever takes the immediate out.
  bool push(uint32_t immediate);
  enum class Popped { one, empty, nonsense };
  // Consumer.  nonsense: the peer has spoilt the ring.
  Popped pop(uint32_t* immediate);

  // The consumer says goodbye; the producer asks once the connection has ended.
  void markClosed() { header_->closed.store(1, std::memory_order_release); }
  bool closed() const { return header_->closed.load(std::memory_order_acquire) != 0; }

  uint32_t slots() const { return slots_; }
  int fd() const { return fd_.get(); }
  // The descriptor is needed only until the peer has it.
  void dropFd() { fd_.reset(); }

 private:
  struct Header {
    std::atomic<uint32_t> closed;
    alignas(64) std::atomic<uint64_t> tail;  // written by the producer
    alignas(64) std::atomic<uint64_t> head;  // written by the consumer
  };
  Mailbox(UniqueFd fd, uint32_t slots);

  UniqueFd fd_;
  uint32_t slots_;
  size_t bytes_;
  Header* header_ = nullptr;
  std::atomic<uint32_t>* ring_ = nullptr;
};

}  // namespace mk::plugin::loopback
