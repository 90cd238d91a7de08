// See verbs_memory.h.
#include "common/verbs_memory.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/failure.h"

namespace mk::plugin {

ibv_mr* VerbsRegistrar::ofAddress(void* address, uint64_t bytes, int access) {
  return ibv_reg_mr(domain_, address, bytes, access);
}

ibv_mr* VerbsRegistrar::ofDmaBuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address, int access) {
  return ibv_reg_dmabuf_mr(domain_, offset, bytes, address, fd, access);
}

const char* registrationAdvice(int error) {
  const bool locked = error == ENOMEM || error == EAGAIN;
  return locked ? " (is the limit on locked memory, ulimit -l, too low?)" : "";
}

void Reached::attempt(const char* way, Make make, int access) {
  if (first_ != nullptr) return;
  errno = 0;
  first_ = RegistrationPtr(make(access), {&registrar_});
  error_ = errno;
  way_ = way;
  if (first_ == nullptr)
    tried_ += format("%s%s: %s", tried_.empty() ? "" : "; ", way, std::strerror(error_));
  else
    make_ = std::move(make);
}

Reached::Reached(Registrar& registrar, const mkTransportMemory_t& memory, int access) : registrar_(registrar) {
  const bool cuda = memory.kind == MK_MEMORY_KIND_CUDA;
  const auto byDmaBuf = [&](int fd, uint64_t offset) -> Make {
    return [&registrar, &memory, fd, offset](int rights) {
      return registrar.ofDmaBuf(fd, offset, memory.bytes, reinterpret_cast<uint64_t>(memory.address), rights);
    };
  };
  if (cuda && memory.fd >= 0) attempt("DMA-BUF", byDmaBuf(memory.fd, memory.fdOffset), access);
  if (cuda && first_ == nullptr) {
    constexpr const char* kWay = "DMA-BUF of the driver";
    exported_ = registrar.exportDmaBuf(memory.address, memory.bytes);
    if (exported_.fd)
      attempt(kWay, byDmaBuf(exported_.fd.get(), exported_.offset), access);
    else
      tried_ += format("%s%s: %s", tried_.empty() ? "" : "; ", kWay, exported_.why);
  }
  const auto byAddress = [&registrar, &memory](int rights) {
    return registrar.ofAddress(memory.address, memory.bytes, rights);
  };
  attempt(cuda ? "peer memory" : "address", byAddress, access);
  if (first_ == nullptr && cuda)
    fail(mkErrorNotSupported, "%s reaches no GPU memory at %p (%s): it has to go through pinned host memory",
         registrar.device().c_str(), memory.address, tried_.c_str());
  if (first_ == nullptr)
    failErrno(error_, format("%s cannot register %llu bytes at %p%s", registrar.device().c_str(), wide(memory.bytes),
                             memory.address, registrationAdvice(error_)));
  if (cuda)
    MK_PLUGIN_INFO("%llu bytes of GPU memory at %p: reached by %s%s%s", wide(memory.bytes), memory.address, way_,
                   tried_.empty() ? "" : "; tried before: ", tried_.c_str());
}

}  // namespace mk::plugin
