// Endpoints: writes are checked, held back and handed on.  See fabric.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric.h"

namespace test::fabric {
namespace {

constexpr size_t kHeldMost = 12;
constexpr int kEmulatedWrite = -(0xefa << 16) + 2;

Endpoint& endpointOf(void* object) { return *static_cast<Endpoint*>(object); }

int closeEndpoint(fid* object) {
  auto* const endpoint = &endpointOf(object);
  const int result = fi_close(&endpoint->inner->fid);
  endpoint->domain->endpoint = nullptr;
  delete endpoint;
  return result;
}

int bind(fid* object, fid* other, uint64_t flags) {
  Endpoint& endpoint = endpointOf(object);
  fid* inner = nullptr;
  if (other->fclass == FI_CLASS_CQ) {
    endpoint.queue = reinterpret_cast<Queue*>(other);
    inner = &endpoint.queue->inner->fid;
  } else if (other->fclass == FI_CLASS_AV) {
    inner = &reinterpret_cast<Addresses*>(other)->inner->fid;
  } else {
    return breach("an endpoint is bound to an object of class %zu", other->fclass);
  }
  return fi_ep_bind(endpoint.inner, inner, flags);
}

int control(fid* object, int command, void*) {
  Endpoint& endpoint = endpointOf(object);
  if (command != FI_ENABLE) return breach("control %d", command);
  return fi_enable(endpoint.inner);
}

int getname(fid_t object, void* name, size_t* length) {
  Endpoint& endpoint = endpointOf(object);
  const int result = fi_getname(&endpoint.inner->fid, name, length);
  endpoint.hash = hashOf(name, *length);
  return result;
}

int getopt(fid_t, int level, int name, void* value, size_t* length) {
  if (!efa() || level != FI_OPT_ENDPOINT || name != kEmulatedWrite || *length != sizeof(bool)) return -FI_ENOPROTOOPT;
  *static_cast<bool*>(value) = asked("emulated");
  return 0;
}

// What EFA's modes demand.
int check(Endpoint& endpoint, const fi_msg_rma& message, uint64_t flags) {
  const iovec& from = *message.msg_iov;
  const fi_rma_iov& to = *message.rma_iov;
  if (message.iov_count != 1 || message.rma_iov_count != 1 || from.iov_len != to.len || to.len == 0)
    return breach("a write of %zu pieces to %zu, %zu bytes to %zu", message.iov_count, message.rma_iov_count,
                  from.iov_len, to.len);
  if (to.len > number("most", size_t{1} << 30)) return breach("a write of %zu bytes", to.len);
  if ((flags & FI_DELIVERY_COMPLETE) == 0 || (flags & FI_COMPLETION) == 0 || (flags & FI_REMOTE_CQ_DATA) == 0)
    return breach("a write with flags %#llx", static_cast<unsigned long long>(flags));
  if ((flags & FI_MORE) != 0) return breach("a write with FI_MORE, which may be held back for ever");
  if (message.data > 0xffffffffu) return breach("data of more than 4 bytes");
  auto* const region = message.desc != nullptr ? static_cast<Region*>(message.desc[0]) : nullptr;
  if (endpoint.domain->regions.count(region) == 0)
    return breach("a write whose source is not registered (FI_MR_LOCAL)");
  const uintptr_t start = reinterpret_cast<uintptr_t>(from.iov_base);
  if (start < region->base || start + from.iov_len > region->base + region->bytes)
    return breach("a write from outside its registration");
  if (message.context == nullptr) return breach("a write without context (FI_CONTEXT2)");
  if (endpoint.contexts.count(message.context) != 0) return breach("a write with the context of another");
  return 0;
}

std::unique_ptr<Op> opOf(Endpoint& endpoint, const fi_msg_rma& message, uint64_t flags) {
  auto op = std::make_unique<Op>();
  op->context = message.context;
  op->from = *message.msg_iov;
  op->to = *message.rma_iov;
  op->peer = message.addr;
  op->data = message.data;
  op->flags = flags;
  auto* const region = message.desc != nullptr ? static_cast<Region*>(message.desc[0]) : nullptr;
  op->descriptor = region != nullptr ? fi_mr_desc(region->inner) : nullptr;
  if (efa()) {
    op->data |= static_cast<uint64_t>(endpoint.hash) << 32;
    op->to.addr -= op->to.key & 0xffffffffffffu;
    op->to.key >>= 48;
  }
  return op;
}

// Takes the write only if the provider does.
ssize_t forward(Endpoint& endpoint, std::unique_ptr<Op>& op) {
  fi_msg_rma message = {};
  message.msg_iov = &op->from;
  message.desc = &op->descriptor;
  message.iov_count = 1;
  message.addr = op->peer;
  message.rma_iov = &op->to;
  message.rma_iov_count = 1;
  message.context = op.get();
  message.data = op->data;
  const ssize_t result = fi_writemsg(endpoint.inner, &message, op->flags);
  if (result != 0) return result;
  Op* const key = op.get();
  endpoint.posted[key] = std::move(op);
  return 0;
}

// Where the device acknowledges what lies in its peer's memory: all that the plugin waits for.
void offload(Endpoint& endpoint) {
  if (!asked("offload")) return;
  for (auto& [op, owner] : endpoint.posted)
    if (!op->told) tell(*endpoint.queue, *op);
}

ssize_t write(fid_ep* self, const fi_msg_rma* message, uint64_t flags) {
  Endpoint& endpoint = endpointOf(self);
  if (efa())
    if (const int error = check(endpoint, *message, flags); error != 0) return error;
  if (asked("again") && endpoint.domain->chance(40)) return -FI_EAGAIN;
  std::unique_ptr<Op> op = opOf(endpoint, *message, flags);
  if (asked("shuffle")) {
    endpoint.held.push_back(std::move(op));
  } else if (const ssize_t result = forward(endpoint, op); result != 0) {
    return result;
  }
  if (efa()) {
    endpoint.contexts.insert(message->context);
    std::memset(message->context, 0xcc, sizeof(fi_context2));
  }
  if (endpoint.held.size() > kHeldMost) release(endpoint, kHeldMost / 2);
  offload(endpoint);
  return 0;
}

fi_ops endpointFidOps = {sizeof(fi_ops), closeEndpoint, bind, control, nullptr, nullptr, nullptr};

}  // namespace

void release(Endpoint& endpoint, size_t keep) {
  while (endpoint.held.size() > keep) {
    const size_t at = endpoint.domain->random() % endpoint.held.size();
    const ssize_t result = forward(endpoint, endpoint.held[at]);
    if (result == -FI_EAGAIN) return;
    if (result != 0) {
      fi_cq_err_entry entry = {};
      entry.op_context = endpoint.held[at]->context;
      entry.err = static_cast<int>(-result);
      endpoint.queue->errors.push_back(entry);
      endpoint.contexts.erase(entry.op_context);
    }
    endpoint.held.erase(endpoint.held.begin() + static_cast<ptrdiff_t>(at));
  }
}

int openEndpoint(fid_domain* self, fi_info* info, fid_ep** result, void* context) {
  auto& domain = *reinterpret_cast<Domain*>(self);
  static fi_ops_ep ops = [] {
    fi_ops_ep made = {};
    made.size = sizeof(made);
    made.getopt = getopt;
    return made;
  }();
  static fi_ops_cm cmOps = [] {
    fi_ops_cm made = {};
    made.size = sizeof(made);
    made.getname = getname;
    return made;
  }();
  static fi_ops_rma rmaOps = [] {
    fi_ops_rma made = {};
    made.size = sizeof(made);
    made.writemsg = write;
    return made;
  }();
  fi_info* const copy = real().dupinfo(info);
  if (efa()) {
    copy->domain_attr->mr_mode = realMrMode;
    copy->domain_attr->cq_data_size = 8;
    copy->caps &= ~static_cast<uint64_t>(FI_HMEM | FI_SOURCE);
    copy->mode = copy->tx_attr->mode = 0;
  }
  auto made = std::make_unique<Endpoint>();
  const int error = fi_endpoint(domain.inner, copy, &made->inner, nullptr);
  real().freeinfo(copy);
  if (error != 0) return error;
  made->domain = &domain;
  made->self.fid = {FI_CLASS_EP, context, &endpointFidOps};
  made->self.ops = &ops;
  made->self.cm = &cmOps;
  made->self.rma = &rmaOps;
  domain.endpoint = made.get();
  *result = &made.release()->self;
  return 0;
}

}  // namespace test::fabric
