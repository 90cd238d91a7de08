// libibverbs and libmlx5 for a machine without a card, as far as the ibgda plugin uses them: linked into a copy of the plugin
// in their place.  Behind them stands the software network card, one for the process, joined with those of other processes.  It ends the process at the first thing
// it has to complain of, with the complaint: a test that posts nonsense must not go on.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "ibgda/gpu_memory.h"
#include "ibgda/soft_nic.h"

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

// Macros that stand for the functions defined here.
#undef ibv_query_port
#undef ibv_reg_mr

namespace {

uint32_t cardNumber() { return static_cast<uint32_t>(getpid()); }

test::SoftNic& nic() {
  // A child of a process with a card gets one of its own.
  static std::mutex mutex;
  static test::SoftNic* card = nullptr;
  static uint32_t number = 0;
  const std::lock_guard lock(mutex);
  if (card == nullptr || number != cardNumber()) {
    number = cardNumber();
    card = new test::SoftNic(test::SoftNic::Idle::sleep, number);
    card->onComplaint([](const std::string& text) {
      std::fprintf(stderr, "software network card: %s\n", text.c_str());
      std::abort();
    });
  }
  return *card;
}

constexpr char kName[] = "fake_mlx5_0";
constexpr char kOther[] = "other_0";

struct Context {
  ibv_context verbs = {};
  std::mutex mutex;
  std::deque<ibv_async_event> events;
};
std::mutex contextsMutex;
std::set<Context*> contexts;
Context* contextOf(ibv_context* context) { return reinterpret_cast<Context*>(context); }

struct Queue {
  ibv_cq verbs = {};
  uint32_t count = 0, handle = 0;
  uint64_t* cqes = nullptr;
  uint32_t* record = nullptr;
};
struct Pair {
  ibv_qp verbs = {};
  uint32_t entryCount = 0, domain = 0;
  char* memory = nullptr;
  uint32_t *records = nullptr, remote = 0, remoteCard = 0;
};
struct Domain {
  ibv_pd verbs = {};
  uint32_t number = 0;
};

template <class T>
T* zeroed(size_t bytes) {
  void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, (bytes + 4095) / 4096 * 4096);
  return static_cast<T*>(memory);
}

uint32_t powerOfTwo(uint32_t least) {
  uint32_t p = 1;
  while (p < least) p *= 2;
  return p;
}

std::atomic<uint32_t> domains{0};
// Of the connection that was made last: index of the GID, service level, traffic class, timeout, retries.
std::array<std::atomic<int>, 5> path;
std::mutex pairsMutex;
std::map<uint32_t, Pair*> pairs;

ibv_device* devices() {
  static std::array<ibv_device, 2> all = [] {
    std::array<ibv_device, 2> made = {};
    std::strcpy(made[0].name, kOther);
    std::strcpy(made[1].name, kName);
    return made;
  }();
  return all.data();
}

}  // namespace

extern "C" {

// For tests: what the card has done so far.
__attribute__((visibility("default"))) void mkTestNicCounters(uint64_t counts[4]) {
  const auto c = nic().counters();
  counts[0] = c.entries;
  counts[1] = c.payloads;
  counts[2] = c.inlines;
  counts[3] = c.errors;
}
__attribute__((visibility("default"))) void mkTestNicPath(int values[5]) {
  for (size_t i = 0; i < path.size(); ++i) values[i] = path[i];
}
// Every connection loses its peer.
__attribute__((visibility("default"))) void mkTestNicBreak() {
  const std::lock_guard lock(pairsMutex);
  for (const auto& [number, pair] : pairs) nic().breakPair(number);
}
// An event of the device, for every endpoint that is open: of its port `port`, or of one of its connections.
__attribute__((visibility("default"))) void mkTestNicEvent(int type, int port) {
  const std::lock_guard lock(contextsMutex);
  for (Context* c : contexts) {
    ibv_async_event event = {};
    event.event_type = static_cast<ibv_event_type>(type);
    if (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR) {
      const std::lock_guard pairsLock(pairsMutex);
      for (const auto& [number, pair] : pairs)
        if (pair->verbs.context == &c->verbs && pair->verbs.state == IBV_QPS_RTS) event.element.qp = &pair->verbs;
      if (event.element.qp == nullptr) continue;
    } else {
      event.element.port_num = port;
    }
    const std::lock_guard inner(c->mutex);
    c->events.push_back(event);
  }
}
__attribute__((visibility("default"))) void mkTestNicPortDown() { mkTestNicEvent(IBV_EVENT_PORT_ERR, 2); }

ibv_device** ibv_get_device_list(int* count) {
  auto** list = static_cast<ibv_device**>(std::calloc(3, sizeof(ibv_device*)));
  list[0] = &devices()[0];
  list[1] = &devices()[1];
  *count = 2;
  return list;
}
void ibv_free_device_list(ibv_device** list) { std::free(list); }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }
bool mlx5dv_is_supported(ibv_device* device) { return std::strcmp(device->name, kName) == 0; }

ibv_context* ibv_open_device(ibv_device* device) {
  auto* c = new Context;
  c->verbs.device = device;
  c->verbs.async_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::lock_guard lock(contextsMutex);
  contexts.insert(c);
  return &c->verbs;
}
int ibv_close_device(ibv_context* context) {
  {
    const std::lock_guard lock(contextsMutex);
    contexts.erase(contextOf(context));
  }
  close(context->async_fd);
  delete contextOf(context);
  return 0;
}
int ibv_query_device(ibv_context*, ibv_device_attr* a) {
  *a = {};
  a->phys_port_cnt = 2;
  return 0;
}
int ibv_query_port(ibv_context*, uint8_t port, _compat_ibv_port_attr* compat) {
  auto* a = reinterpret_cast<ibv_port_attr*>(compat);
  a->state = port == 2 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a->max_mtu = a->active_mtu = IBV_MTU_4096;
  a->gid_tbl_len = 4;
  a->link_layer = IBV_LINK_LAYER_ETHERNET;
  a->active_width = 2;
  a->active_speed = 64;
  return 0;
}
const char* ibv_port_state_str(ibv_port_state state) { return state == IBV_PORT_DOWN ? "down" : "another"; }
// Link-local and IPv4, each as RoCE v1 and v2.  The number of the card is the end of its address.
ssize_t _ibv_query_gid_table(ibv_context*, ibv_gid_entry* entries, size_t room, uint32_t, size_t) {
  if (room < 4) return -EINVAL;
  for (uint32_t index = 0; index < 4; ++index) {
    ibv_gid_entry& entry = entries[index];
    entry = {};
    entry.gid_index = index;
    entry.port_num = 2;
    entry.gid_type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    uint8_t* const b = entry.gid.raw;
    if (index < 2) {
      b[0] = 0xfe, b[1] = 0x80, b[15] = 1;
    } else {
      const uint32_t card = cardNumber();
      b[10] = b[11] = 0xff, b[12] = 10;
      for (uint32_t i = 0; i < 3; ++i) b[13 + i] = static_cast<uint8_t>(card >> (16 - 8 * i));
    }
  }
  return 4;
}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Context* const c = contextOf(context);
  const std::lock_guard lock(c->mutex);
  if (c->events.empty()) {
    errno = EAGAIN;
    return -1;
  }
  *event = c->events.front();
  c->events.pop_front();
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}
const char* ibv_event_type_str(ibv_event_type type) {
  static const std::map<int, const char*> names = {
      {IBV_EVENT_DEVICE_FATAL, "device fatal"}, {IBV_EVENT_CQ_ERR, "CQ error"},
      {IBV_EVENT_PORT_ERR, "port error"},       {IBV_EVENT_QP_FATAL, "QP fatal"},
      {IBV_EVENT_QP_REQ_ERR, "QP request"},     {IBV_EVENT_QP_ACCESS_ERR, "QP access"},
  };
  const auto found = names.find(type);
  return found != names.end() ? found->second : "an event";
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* d = new Domain;
  d->verbs.context = context;
  d->number = ++domains;
  return &d->verbs;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  delete reinterpret_cast<Domain*>(pd);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) {
  test::SoftNic::FarMemory* const far = test::gpuMemoryAt(address);
  // Memory that this process does not have, as that of a GPU without a peer-memory module.
  const uintptr_t page = reinterpret_cast<uintptr_t>(address) / 4096 * 4096;
  if (far == nullptr &&
      msync(reinterpret_cast<void*>(page), reinterpret_cast<uintptr_t>(address) + bytes - page, MS_ASYNC) != 0) {
    errno = EFAULT;
    return nullptr;
  }
  auto* mr = new ibv_mr{};
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->lkey = mr->rkey = nic().addMemory(address, bytes, (access & IBV_ACCESS_REMOTE_WRITE) != 0,
                                        reinterpret_cast<Domain*>(pd)->number, far);
  return mr;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t, unsigned access) {
  return ibv_reg_mr(pd, address, bytes, static_cast<int>(access));
}
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int ibv_dereg_mr(ibv_mr* mr) {
  if (!nic().removeMemory(mr->lkey)) std::abort();
  delete mr;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void*, ibv_comp_channel*, int) {
  auto* q = new Queue;
  q->verbs.context = context;
  q->count = powerOfTwo(static_cast<uint32_t>(cqe) + 1);
  q->cqes = zeroed<uint64_t>(size_t{q->count} * 64 + 64);
  for (uint32_t i = 0; i < q->count; ++i) q->cqes[i * 8 + 7] = uint64_t{MLX5_CQE_INVALID} << 60;
  q->record = reinterpret_cast<uint32_t*>(q->cqes + q->count * 8);
  q->handle = nic().createCompletions(q->cqes, q->count, q->record);
  return &q->verbs;
}
int ibv_destroy_cq(ibv_cq* cq) {
  auto* q = reinterpret_cast<Queue*>(cq);
  nic().destroyCompletions(q->handle);
  std::free(q->cqes);
  delete q;
  return 0;
}

ibv_qp* mlx5dv_create_qp(ibv_context* context, ibv_qp_init_attr_ex* a, mlx5dv_qp_init_attr*) {
  auto* p = new Pair;
  p->verbs.context = context;
  p->verbs.state = IBV_QPS_RESET;
  p->entryCount = powerOfTwo(a->cap.max_send_wr);
  p->domain = reinterpret_cast<Domain*>(a->pd)->number;
  p->memory = zeroed<char>(size_t{p->entryCount} * 64 + 128);
  p->records = reinterpret_cast<uint32_t*>(p->memory + size_t{p->entryCount} * 64);
  test::SoftNic::Pair pair;
  pair.entries = p->memory;
  pair.entryCount = p->entryCount;
  pair.records = p->records;
  pair.doorbell = reinterpret_cast<uint64_t*>(p->records + 16);
  pair.sendCompletions = reinterpret_cast<Queue*>(a->send_cq)->handle;
  pair.domain = p->domain;
  pair.maxInline = a->cap.max_inline_data;
  p->verbs.qp_num = nic().createPair(pair);
  const std::lock_guard lock(pairsMutex);
  pairs[p->verbs.qp_num] = p;
  return &p->verbs;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* a, int mask) {
  auto* p = reinterpret_cast<Pair*>(qp);
  if (mask == IBV_QP_STATE && a->qp_state == IBV_QPS_ERR) {
    nic().stopPair(qp->qp_num);
    p->verbs.state = a->qp_state;
    return 0;
  }
  if ((mask & IBV_QP_STATE) == 0 || a->qp_state != static_cast<ibv_qp_state>(p->verbs.state + 1)) return EINVAL;
  if (a->qp_state == IBV_QPS_INIT && a->port_num != 2) return EINVAL;
  if (a->qp_state == IBV_QPS_RTR) {
    // The routable address of a device, from the routable one of this.
    const uint8_t* const to = a->ah_attr.grh.dgid.raw;
    if (!a->ah_attr.is_global || a->ah_attr.grh.sgid_index < 2 || to[12] != 10) return EINVAL;
    if (a->path_mtu != IBV_MTU_4096) return EINVAL;
    p->remoteCard = uint32_t{to[13]} << 16 | uint32_t{to[14]} << 8 | to[15];
    p->remote = a->dest_qp_num;
    path[0] = a->ah_attr.grh.sgid_index;
    path[1] = a->ah_attr.sl;
    path[2] = a->ah_attr.grh.traffic_class;
  }
  // Only now do entries go anywhere.
  if (a->qp_state == IBV_QPS_RTS) {
    path[3] = a->timeout;
    path[4] = a->retry_cnt;
    if (a->rnr_retry != 7) return EINVAL;
    nic().connectPair(qp->qp_num, p->remote, p->remoteCard);
  }
  p->verbs.state = a->qp_state;
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  auto* p = reinterpret_cast<Pair*>(qp);
  {
    const std::lock_guard lock(pairsMutex);
    pairs.erase(qp->qp_num);
  }
  nic().destroyPair(qp->qp_num);
  std::free(p->memory);
  delete p;
  return 0;
}

int mlx5dv_init_obj(mlx5dv_obj* objects, uint64_t kinds) {
  if ((kinds & MLX5DV_OBJ_QP) != 0) {
    const auto* p = reinterpret_cast<const Pair*>(objects->qp.in);
    mlx5dv_qp& out = *objects->qp.out;
    out = {};
    out.dbrec = p->records;
    out.sq.buf = p->memory;
    out.sq.wqe_cnt = p->entryCount;
    out.sq.stride = 64;
    out.bf.reg = p->records + 16;
  }
  if ((kinds & MLX5DV_OBJ_CQ) != 0) {
    const auto* q = reinterpret_cast<const Queue*>(objects->cq.in);
    mlx5dv_cq& out = *objects->cq.out;
    out = {};
    out.buf = q->cqes;
    out.dbrec = q->record;
    out.cqe_cnt = q->count;
    out.cqe_size = 64;
  }
  return 0;
}

}  // extern "C"
