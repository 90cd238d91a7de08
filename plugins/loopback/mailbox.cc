// See mailbox.h.
#include "mailbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "common/failure.h"

namespace mk::plugin::loopback {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics shared between processes must not hide a lock");

Mailbox::Mailbox(UniqueFd fd, uint32_t slots)
    : fd_(std::move(fd)), slots_(slots), bytes_(sizeof(Header) + slots * sizeof(std::atomic<uint32_t>)) {
  // A new file is all zero, which is the state of an empty ring.
  void* address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) failErrno(errno, "arrival ring: mmap");
  header_ = static_cast<Header*>(address);
  ring_ = reinterpret_cast<std::atomic<uint32_t>*>(static_cast<char*>(address) + sizeof(Header));
}

Mailbox::~Mailbox() { munmap(header_, bytes_); }

std::shared_ptr<Mailbox> Mailbox::create(uint32_t slots) {
  UniqueFd fd(memfd_create("mkernel-loopback-arrivals", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) failErrno(errno, "arrival ring: memfd_create");
  const size_t bytes = sizeof(Header) + slots * sizeof(std::atomic<uint32_t>);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) failErrno(errno, "arrival ring: ftruncate");
  // Nobody can take the pages away from under the other side.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    failErrno(errno, "arrival ring: seals");
  return std::shared_ptr<Mailbox>(new Mailbox(std::move(fd), slots));
}

std::shared_ptr<Mailbox> Mailbox::open(const UniqueFd& fd, uint32_t slots) {
  if (!std::has_single_bit(slots) || slots > (1u << 24))
    fail(mkErrorTransport, "a peer's arrival ring has %u slots; must be a power of two up to 2^24", slots);
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) failErrno(errno, "arrival ring: fstat");
  const size_t bytes = sizeof(Header) + slots * sizeof(std::atomic<uint32_t>);
  if (status.st_size < static_cast<off_t>(bytes))
    fail(mkErrorTransport, "a peer's arrival ring has %lld bytes; %zu are needed for %u slots",
         static_cast<long long>(status.st_size), bytes, slots);
  UniqueFd own(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!own) failErrno(errno, "arrival ring: dup");
  std::shared_ptr<Mailbox> mailbox(new Mailbox(std::move(own), slots));
  mailbox->dropFd();
  return mailbox;
}

bool Mailbox::push(uint32_t immediate) {
  const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
  if (tail - header_->head.load(std::memory_order_acquire) >= slots_) return false;
  ring_[tail & (slots_ - 1)].store(immediate, std::memory_order_relaxed);
  header_->tail.store(tail + 1, std::memory_order_release);
  return true;
}

Mailbox::Popped Mailbox::pop(uint32_t* immediate) {
  const uint64_t head = header_->head.load(std::memory_order_relaxed);
  const uint64_t filled = header_->tail.load(std::memory_order_acquire) - head;
  if (filled == 0) return Popped::empty;
  if (filled > slots_) return Popped::nonsense;
  *immediate = ring_[head & (slots_ - 1)].load(std::memory_order_relaxed);
  header_->head.store(head + 1, std::memory_order_release);
  return Popped::one;
}

}  // namespace mk::plugin::loopback
