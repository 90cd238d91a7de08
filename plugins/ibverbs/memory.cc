// See memory.h.
#include "memory.h"

#include <cerrno>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::ibverbs {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

}  // namespace

std::unique_ptr<LocalMemory> registerWith(Registrar& registrar, const mkTransportMemory_t& memory, bool relaxed) {
  auto made = std::make_unique<LocalMemory>();
  made->address = reinterpret_cast<uint64_t>(memory.address);
  made->bytes = memory.bytes;
  Reached reached(registrar, memory, kAccess);
  made->strict = reached.take();
  made->way = reached.way();
  const ibv_mr* payload = made->strict.get();
  made->flagKey = payload->rkey;
  if (relaxed) {
    errno = 0;
    made->relaxed = reached.again(kAccess | IBV_ACCESS_RELAXED_ORDERING);
    const int error = errno;
    if (const ibv_mr* second = made->relaxed.get(); second != nullptr)
      payload = second;
    else
      MK_PLUGIN_INFO("no registration with relaxed ordering: %s; payload goes without", std::strerror(error));
  }
  made->readKey = payload->lkey;
  made->payloadKey = payload->rkey;
  return made;
}

Board::Board(ibv_pd* domain, size_t peers) : peers_(peers) {
  const size_t bytes = peers * sizeof(PeerWords) + kSlots * sizeof(uint64_t);
  memory_ = std::make_unique<uint64_t[]>(bytes / sizeof(uint64_t));
  registration_.reset(ibv_reg_mr(domain, memory_.get(), bytes,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (registration_ == nullptr)
    failErrno(errno, format("cannot register %zu bytes%s", bytes, registrationAdvice(errno)));
  for (uint32_t slot = kSlots; slot > 0; --slot) freeSlots_.push_back(slot - 1);
}

bool Board::announce(LocalMemory& memory) {
  if (freeSlots_.empty()) return false;
  memory.slot = freeSlots_.back();
  freeSlots_.pop_back();
  memory.sequence = ++sequence_;
  std::atomic_ref<uint64_t>(list()[memory.slot]).store(memory.sequence, std::memory_order_release);
  return true;
}

void Board::withdraw(const LocalMemory& memory) {
  std::atomic_ref<uint64_t>(list()[memory.slot]).store(0, std::memory_order_release);
  freeSlots_.push_back(memory.slot);
}

}  // namespace mk::plugin::ibverbs
