// One opened device: fabric, domain, address vector, completion queue and endpoint, and the memory registered there.  Knows
// libfabric and nothing of peers' states, credits or events.  Used by endpoint.cc, one thread at a time.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mkernel/transport.h"
#include "provider.h"

namespace mk::plugin::efa {

struct CloseFid {
  template <typename T>
  void operator()(T* object) const {
    fi_close(&object->fid);
  }
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid>;

// Registered memory, and how a peer names it.
struct Registration {
  Fid<fid_mr> region;
  uint64_t remoteBase = 0;  // what a peer calls the first byte
  uint64_t key = 0;
  const char* means = "";  // how the device reaches it
};

// One write as it is handed to the provider.
struct Posting {
  const void* source;
  void* descriptor;  // of the source's registration
  uint64_t bytes;
  fi_addr_t peer;
  uint64_t remoteAddress, remoteKey;
  uint64_t data;  // travels with it
  void* context;  // a fi_context2 that stays until the completion
};

struct Completion {
  enum class Kind { sent, arrived, failed };
  Kind kind;
  void* context;     // of a write of ours; may be null for `failed`
  uint64_t data;     // arrived
  fi_addr_t source;  // arrived; FI_ADDR_NOTAVAIL where the provider does not say
  std::string text;  // failed
};

class Port {
 public:
  Port(const Provider& provider, const Device& device);

  // Where peers reach it, in the provider's format.
  const std::vector<uint8_t>& name() const { return name_; }
  // Entries of the completion queue.
  size_t queueEntries() const { return queueEntries_; }
  // "native", "emulated" or "" where the library or the provider does not say.
  const char* writes() const { return writes_; }

  fi_addr_t insert(const uint8_t* name);
  Registration registerMemory(const mkTransportMemory_t& memory);
  // 0, or a negative libfabric error; -FI_EAGAIN: not now.
  int64_t write(const Posting& posting);
  // Appends what has completed since.  Throws Failure if the queue itself has failed.
  void read(std::vector<Completion>& completions);
  // Ends whatever the provider still has; only registrations may be touched afterwards.
  void stop();

 private:
  void openQueue(const fi_info& info);
  void readName();
  void readError(std::vector<Completion>& completions);
  Registration registerAs(const mkTransportMemory_t& memory, bool dmabuf);

  const Provider& provider_;
  const Device& device_;
  const uint64_t mrMode_;
  // In the order of opening; they close in reverse.
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_av> addresses_;
  Fid<fid_cq> queue_;
  Fid<fid_ep> endpoint_;
  size_t queueEntries_ = 0;
  std::vector<uint8_t> name_;
  const char* writes_ = "";
  uint64_t nextKey_ = 0;
};

}  // namespace mk::plugin::efa
