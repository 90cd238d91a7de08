// A libfabric for tests: it stands between the efa plugin and the real one, whose objects it wraps, and does what no provider
// does that needs no NIC.  MK_TEST_FABRIC says what, as a comma list; empty: everything passes through.
//   shuffle      writes are posted, and completions come, in any order, as over SRD
//   efa          provider efa, carried by MK_TEST_FABRIC_INNER (net, shm): the modes it asks for, every call checked against
//                them; 4 bytes of data; the sender by its address; a completion queue that overflows
//   again        posts are often refused with -FI_EAGAIN
//   endpoint     efa: registrations are bound to the endpoint (FI_MR_ENDPOINT), which EFA does not ask
//   queue=N      efa: entries of the completion queue at most
//   most=N       efa: bytes of a message at most
//   offload      efa: writes complete at once, as where a device needs no help of the receiver's processor; sources must
//                stay as they are
//   fail=N       efa: the write after N fails, with an entry in the error queue
//   overrun=N    efa: the completion queue has overflowed after N completions
//   nodmabuf     efa: DMA-BUFs are refused
//   nogpu        efa: memory of a GPU is refused, however it is described
//   emulated     efa: writes are emulated, says fi_getopt
//   handlers     signal handlers are installed by loading it, by fi_getinfo and by fi_domain
//   version=N    1.N is the library's version, whatever the real one's
//   fixeddata    providers carry 4 bytes of data and do not tell the sender
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace test::fabric {

// The real one's functions.
struct Real {
  decltype(&::fi_getinfo) getinfo;
  decltype(&::fi_freeinfo) freeinfo;
  decltype(&::fi_dupinfo) dupinfo;
  decltype(&::fi_fabric) fabric;
  decltype(&::fi_version) version;
  decltype(&::fi_strerror) strerror;
};
const Real& real();

bool asked(const char* name);
uint64_t number(const char* name, uint64_t otherwise);
inline bool efa() { return asked("efa"); }
// Says what the plugin has done wrong, and returns the error it gets.
[[gnu::format(printf, 1, 2)]] int breach(const char* fmt, ...);

// What the real provider wants of registrations.
extern int realMrMode;

struct Domain;

struct Region {
  fid_mr self = {};
  Domain* domain = nullptr;
  fid_mr* inner = nullptr;
  uintptr_t base = 0;
  uint64_t bytes = 0;
  uint64_t key = 0;  // ours, once it is enabled
  bool bound = false;
};

// A write between the plugin and the real provider.
struct Op {
  fi_context2 inner = {};
  void* context = nullptr;  // the plugin's
  iovec from = {};
  void* descriptor = nullptr;
  fi_rma_iov to = {};
  fi_addr_t peer = 0;
  uint64_t data = 0, flags = 0;
  bool told = false;  // the plugin has had its completion
};

struct Queue {
  fid_cq self = {};
  Domain* domain = nullptr;
  fid_cq* inner = nullptr;
  size_t capacity = 0;
  struct Entry {
    fi_cq_data_entry entry;
    fi_addr_t source;
  };
  std::deque<Entry> entries;
  std::deque<fi_cq_err_entry> errors;
  uint64_t passed = 0;
  bool overrun = false;
};

struct Endpoint {
  fid_ep self = {};
  Domain* domain = nullptr;
  fid_ep* inner = nullptr;
  Queue* queue = nullptr;
  uint32_t hash = 0;  // of the own name
  std::deque<std::unique_ptr<Op>> held;
  std::map<Op*, std::unique_ptr<Op>> posted;
  std::set<void*> contexts;  // in use by a write
  uint64_t completed = 0;
};

struct Addresses {
  fid_av self = {};
  Domain* domain = nullptr;
  fid_av* inner = nullptr;
};

struct Domain {
  fid_domain self = {};
  fid_domain* inner = nullptr;
  std::set<Region*> regions;
  std::map<uint32_t, fi_addr_t> sources;  // by the hash of a name
  Endpoint* endpoint = nullptr;
  uint64_t keys = 0;
  std::mt19937 random;
  bool chance(int percent) { return static_cast<int>(random() % 100) < percent; }
};

uint32_t hashOf(const void* name, size_t bytes);

// The end of a write, for the plugin.
void tell(Queue& queue, Op& op);

// The wrappers' own calls.
int openDomain(fid_domain* inner, fid_domain** domain);
int registerMemory(fid* domain, const fi_mr_attr* attributes, uint64_t flags, fid_mr** region);
int openQueue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue, void* context);
int openEndpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context);
// Hands held writes on to the provider: some of them, at random, or all but `keep`.
void release(Endpoint& endpoint, size_t keep);

}  // namespace test::fabric
