// See memory.h.
#include "memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "common/failure.h"

namespace mk::plugin::ibverbs {
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
  const bool cuda = memory.kind == MK_MEMORY_KIND_CUDA;
  using Make = std::function<ibv_mr*(int access)>;
  const Make byAddress = [&](int access) { return registrar.ofAddress(memory.address, memory.bytes, access); };
  const auto byDmaBuf = [&](int fd, uint64_t offset) -> Make {
    return [&registrar, &memory, fd, offset](int access) {
      return registrar.ofDmaBuf(fd, offset, memory.bytes, reinterpret_cast<uint64_t>(memory.address), access);
    };
  };
  Make chosen;
  std::string tried;
  const auto attempt = [&](const char* way, const Make& make) {
    if (made->strict != nullptr) return;
    errno = 0;
    made->strict = RegistrationPtr(make(kAccess), {&registrar});
    made->way = way;
    if (made->strict == nullptr)
      tried += format("%s%s: %s", tried.empty() ? "" : "; ", way, std::strerror(errno));
    else
      chosen = make;
  };
  DmaBuf exported;  // the device keeps the memory without it
  if (cuda && memory.fd >= 0) attempt("DMA-BUF", byDmaBuf(memory.fd, memory.fdOffset));
  if (cuda && made->strict == nullptr) {
    exported = registrar.exportDmaBuf(memory.address, memory.bytes);
    if (exported.fd.get() >= 0)
      attempt("DMA-BUF of the driver", byDmaBuf(exported.fd.get(), exported.offset));
    else
      tried += format("%sDMA-BUF of the driver: %s", tried.empty() ? "" : "; ", exported.why);
  }
  attempt(cuda ? "peer memory" : "address", byAddress);
  if (made->strict == nullptr && cuda)
    fail(mkErrorNotSupported, "the device reaches no GPU memory at %p (%s): it has to go through pinned host memory",
         memory.address, tried.c_str());
  if (made->strict == nullptr)
    failErrno(errno, format("cannot register %llu bytes at %p%s", static_cast<unsigned long long>(memory.bytes),
                            memory.address, advice(errno).c_str()));
  const ibv_mr* payload = made->strict.get();
  made->flagKey = payload->rkey;
  if (relaxed) {
    constexpr int kRelaxed = kAccess | IBV_ACCESS_RELAXED_ORDERING;
    errno = 0;
    made->relaxed = RegistrationPtr(chosen(kRelaxed), {&registrar});
    const int error = errno;
    if (const ibv_mr* second = made->relaxed.get(); second != nullptr)
      payload = second;
    else
      MK_PLUGIN_INFO("no registration with relaxed ordering: %s; payload goes without", std::strerror(error));
  }
  made->readKey = payload->lkey;
  made->payloadKey = payload->rkey;
  if (cuda)
    MK_PLUGIN_INFO("%llu bytes of GPU memory at %p: reached by %s%s%s", static_cast<unsigned long long>(memory.bytes),
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

}  // namespace mk::plugin::ibverbs
