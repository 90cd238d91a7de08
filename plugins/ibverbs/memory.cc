// See memory.h.
#include "memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "failure.h"

namespace mk::ibverbs {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

std::string advice(int error) {
  if (error == ENOMEM || error == EAGAIN) return " (is the limit on locked memory, ulimit -l, too low?)";
  return "";
}

}  // namespace

ibv_mr* VerbsRegistrar::ofAddress(void* address, uint64_t bytes, int access) {
  return ibv_reg_mr(domain_, address, bytes, access);
}

ibv_mr* VerbsRegistrar::ofDmaBuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address, int access) {
  return ibv_reg_dmabuf_mr(domain_, offset, bytes, address, fd, access);
}

std::unique_ptr<LocalMemory> registerWith(Registrar& registrar, const mkTransportMemory_t& memory, bool relaxed) {
  auto made = std::make_unique<LocalMemory>();
  made->address = reinterpret_cast<uint64_t>(memory.address);
  made->bytes = memory.bytes;
  const auto byDmaBuf = [&](int access) {
    errno = 0;
    return RegistrationPtr(registrar.ofDmaBuf(memory.fd, memory.fdOffset, memory.bytes, made->address, access),
                           {&registrar});
  };
  const auto byAddress = [&](int access) {
    errno = 0;
    return RegistrationPtr(registrar.ofAddress(memory.address, memory.bytes, access), {&registrar});
  };
  const bool cuda = memory.kind == MK_MEMORY_KIND_CUDA;
  bool dmaBuf = cuda && memory.fd >= 0;
  std::string tried;
  made->way = "address";
  if (dmaBuf) {
    made->way = "DMA-BUF";
    made->strict = byDmaBuf(kAccess);
    dmaBuf = made->strict != nullptr;
    if (!dmaBuf) tried = format("DMA-BUF: %s; ", std::strerror(errno));
  } else if (cuda) {
    tried = "DMA-BUF: the memory comes without a descriptor; ";
  }
  if (made->strict == nullptr) {
    if (cuda) made->way = "peer memory";
    made->strict = byAddress(kAccess);
  }
  if (made->strict == nullptr) {
    const int error = errno;
    if (cuda)
      fail(mkErrorNotSupported,
           "the device reaches no GPU memory at %p (%s peer memory: %s): it has to go through pinned host memory",
           memory.address, tried.c_str(), std::strerror(error));
    failErrno(error, format("cannot register %llu bytes at %p%s", static_cast<unsigned long long>(memory.bytes),
                            memory.address, advice(error).c_str()));
  }
  const ibv_mr* payload = made->strict.get();
  made->flagKey = payload->rkey;
  if (relaxed) {
    constexpr int kRelaxed = kAccess | IBV_ACCESS_RELAXED_ORDERING;
    made->relaxed = dmaBuf ? byDmaBuf(kRelaxed) : byAddress(kRelaxed);
    const int error = errno;
    if (const ibv_mr* second = made->relaxed.get(); second != nullptr)
      payload = second;
    else
      MK_IBVERBS_INFO("no registration with relaxed ordering: %s; payload goes without", std::strerror(error));
  }
  made->readKey = payload->lkey;
  made->payloadKey = payload->rkey;
  if (cuda)
    MK_IBVERBS_INFO("%llu bytes of GPU memory at %p: reached by %s%s%s", static_cast<unsigned long long>(memory.bytes),
                    memory.address, made->way, tried.empty() ? "" : "; tried before: ", tried.c_str());
  return made;
}

Board::Board(ibv_pd* domain, size_t peers) : peers_(peers) {
  const size_t bytes = peers * sizeof(PeerWords) + kSlots * sizeof(uint64_t);
  memory_ = std::make_unique<uint64_t[]>(bytes / sizeof(uint64_t));
  registration_.reset(ibv_reg_mr(domain, memory_.get(), bytes,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (registration_ == nullptr) failErrno(errno, format("cannot register %zu bytes%s", bytes, advice(errno).c_str()));
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

}  // namespace mk::ibverbs
