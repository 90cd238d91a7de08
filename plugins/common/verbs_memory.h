// How an RDMA device is given access to memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/dma_buf.h"
#include "common/verbs.h"
#include "mkernel/transport.h"

namespace mk::plugin {

// The verbs that register, so that tests can refuse or count.
class Registrar {
 public:
  virtual ~Registrar() = default;
  virtual std::string device() const = 0;  // its name
  // NULL: errno says why.
  virtual ibv_mr* ofAddress(void* address, uint64_t bytes, int access) = 0;
  virtual ibv_mr* ofDmaBuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address, int access) = 0;
  virtual void release(ibv_mr* registration) = 0;
  virtual DmaBuf exportDmaBuf(void* address, uint64_t bytes) { return plugin::exportDmaBuf(address, bytes); }
};

class VerbsRegistrar final : public Registrar {
 public:
  explicit VerbsRegistrar(ibv_pd* domain) : domain_(domain) {}
  std::string device() const override { return ibv_get_device_name(domain_->context->device); }
  ibv_mr* ofAddress(void* address, uint64_t bytes, int access) override;
  ibv_mr* ofDmaBuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address, int access) override;
  void release(ibv_mr* registration) override { ibv_dereg_mr(registration); }

 private:
  ibv_pd* domain_;
};

struct ReleaseMemory {
  Registrar* registrar;
  void operator()(ibv_mr* registration) const { registrar->release(registration); }
};
using RegistrationPtr = std::unique_ptr<ibv_mr, ReleaseMemory>;

// Host memory by address.  Memory of a GPU by its descriptor, if that is a DMA-BUF, else by one that the CUDA driver gives,
// else by address (peer memory, for which the kernel needs a module), else Failure with mkErrorNotSupported, upon which the caller
// can only offer host memory to copy through.  The log says how a GPU's is reached.
class Reached {
 public:
  // `memory` and the registrar must outlive it.
  Reached(Registrar& registrar, const mkTransportMemory_t& memory, int access);

  const char* way() const { return way_; }
  RegistrationPtr take() { return std::move(first_); }
  // In the same way once more, with other rights; empty: errno says why.
  RegistrationPtr again(int access) const { return {make_(access), {&registrar_}}; }

 private:
  using Make = std::function<ibv_mr*(int access)>;
  void attempt(const char* way, Make make, int access);

  Registrar& registrar_;
  const char* way_ = "";
  int error_ = 0;  // of the last attempt
  std::string tried_;
  DmaBuf exported_;  // the device keeps the memory without it
  Make make_;
  RegistrationPtr first_;
};

// What may be wrong where memory cannot be registered; "" or words in brackets.
const char* registrationAdvice(int error);

}  // namespace mk::plugin
