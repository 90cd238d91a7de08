// Domains, registrations, address vectors and completion queues.  See fabric.h.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fabric.h"

namespace test::fabric {
namespace {

constexpr uint64_t kDmabufFlag = uint64_t{1} << 40;
struct Dmabuf {
  int fd;
  uint64_t offset;
  size_t length;
  void* base;
};

// ---- Registrations -------------------------------------------------------------------------------------------------

int closeRegion(fid* object) {
  auto* const region = reinterpret_cast<Region*>(object);
  if (region->domain->regions.erase(region) == 0) return breach("a registration is closed twice");
  if (asked("endpoint") && region->domain->endpoint == nullptr)
    return breach("a registration is closed after the endpoint that it is bound to");
  const int result = fi_close(&region->inner->fid);
  delete region;
  return result;
}
int bindRegion(fid* object, fid* endpoint, uint64_t) {
  auto* const region = reinterpret_cast<Region*>(object);
  region->bound = reinterpret_cast<Endpoint*>(endpoint) == region->domain->endpoint;
  return region->bound ? 0 : breach("a registration is bound to something else than the endpoint");
}
int controlRegion(fid* object, int command, void*) {
  auto* const region = reinterpret_cast<Region*>(object);
  if (command != FI_ENABLE || !region->bound) return breach("a registration is enabled before it is bound");
  region->self.key = region->key;
  return 0;
}
fi_ops regionFidOps = {sizeof(fi_ops), closeRegion, bindRegion, controlRegion, nullptr, nullptr, nullptr};

int checkRegistration(const fi_mr_attr& attributes, uint64_t flags, iovec* piece) {
  if (attributes.iov_count != 1) return breach("a registration of %zu pieces", attributes.iov_count);
  if ((attributes.access & FI_WRITE) == 0 || (attributes.access & FI_REMOTE_WRITE) == 0)
    return breach("a registration for access %#llx", static_cast<unsigned long long>(attributes.access));
  if (attributes.iface != FI_HMEM_SYSTEM && attributes.iface != FI_HMEM_CUDA)
    return breach("a registration of interface %d", static_cast<int>(attributes.iface));
  if (attributes.requested_key != 0) return breach("a key is asked for, and keys are the provider's");
  if (attributes.iface == FI_HMEM_CUDA && asked("nogpu")) return -FI_EINVAL;
  *piece = *attributes.mr_iov;
  if ((flags & kDmabufFlag) != 0) {
    if (asked("nodmabuf")) return -FI_EOPNOTSUPP;
    Dmabuf file;
    std::memcpy(&file, attributes.mr_iov, sizeof(file));
    struct stat status = {};
    if (fstat(file.fd, &status) != 0 || file.offset + file.length > static_cast<uint64_t>(status.st_size))
      return breach("a DMA-BUF of %zu bytes from %llu that descriptor %d does not have", file.length,
                    static_cast<unsigned long long>(file.offset), file.fd);
    *piece = {file.base, file.length};
  }
  // FI_MR_ALLOCATED: there must be memory.
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(piece->iov_base) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(piece->iov_base) + piece->iov_len;
  if (msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) != 0)
    return breach("a registration of %zu bytes that are not mapped", piece->iov_len);
  return 0;
}

// ---- Address vectors -----------------------------------------------------------------------------------------------

int closeAddresses(fid* object) {
  auto* const addresses = reinterpret_cast<Addresses*>(object);
  const int result = fi_close(&addresses->inner->fid);
  delete addresses;
  return result;
}
fi_ops addressesFidOps = {sizeof(fi_ops), closeAddresses, nullptr, nullptr, nullptr, nullptr, nullptr};

int insert(fid_av* self, const void* name, size_t count, fi_addr_t* address, uint64_t flags, void* context) {
  auto& addresses = *reinterpret_cast<Addresses*>(self);
  if (count != 1) return breach("%zu addresses inserted at once", count);
  const int result = addresses.inner->ops->insert(addresses.inner, name, count, address, flags, context);
  // All of one provider are equally long.
  std::vector<uint8_t> own(256);
  size_t length = own.size();
  if (fi_getname(&addresses.domain->endpoint->inner->fid, own.data(), &length) != 0) return -FI_EINVAL;
  addresses.domain->sources[hashOf(name, length)] = *address;
  return result;
}

int openAddresses(fid_domain* self, fi_av_attr* attributes, fid_av** result, void* context) {
  auto& domain = *reinterpret_cast<Domain*>(self);
  static fi_ops_av ops = [] {
    fi_ops_av made = {};
    made.size = sizeof(made);
    made.insert = insert;
    return made;
  }();
  auto made = std::make_unique<Addresses>();
  if (const int error = fi_av_open(domain.inner, attributes, &made->inner, nullptr); error != 0) return error;
  made->domain = &domain;
  made->self.fid = {FI_CLASS_AV, context, &addressesFidOps};
  made->self.ops = &ops;
  *result = &made.release()->self;
  return 0;
}

// ---- Completion queues ---------------------------------------------------------------------------------------------

int closeQueue(fid* object) {
  auto* const queue = reinterpret_cast<Queue*>(object);
  const int result = fi_close(&queue->inner->fid);
  delete queue;
  return result;
}
fi_ops queueFidOps = {sizeof(fi_ops), closeQueue, nullptr, nullptr, nullptr, nullptr, nullptr};

void fail(Queue& queue, void* context, int error, int code) {
  fi_cq_err_entry entry = {};
  entry.op_context = context;
  entry.flags = FI_RMA | FI_WRITE;
  entry.err = error;
  entry.prov_errno = code;
  queue.errors.push_back(entry);
}

// What the provider scribbled into a write's context must still be there.
void checkContext(Queue& queue, const Op& op) {
  if (!efa()) return;
  const auto* const bytes = static_cast<const uint8_t*>(op.context);
  const bool kept = std::all_of(bytes, bytes + sizeof(fi_context2), [](uint8_t byte) { return byte == 0xcc; });
  if (!kept) breach("the context of a write was touched before its completion");
  queue.domain->endpoint->contexts.erase(op.context);
}

void add(Queue& queue, const fi_cq_data_entry& entry, fi_addr_t source) {
  queue.entries.push_back({entry, source});
  ++queue.passed;
  if (efa() && (queue.entries.size() > queue.capacity || queue.passed > number("overrun", UINT64_MAX)))
    queue.overrun = true;
}

void take(Queue& queue, const fi_cq_data_entry& from) {
  if ((from.flags & FI_REMOTE_CQ_DATA) == 0) {
    auto* const op = static_cast<Op*>(from.op_context);
    if (!op->told) tell(queue, *op);
    queue.domain->endpoint->posted.erase(op);
    return;
  }
  fi_cq_data_entry entry = from;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  entry.op_context = nullptr;
  if (efa()) {
    const auto known = queue.domain->sources.find(static_cast<uint32_t>(entry.data >> 32));
    if (known != queue.domain->sources.end()) source = known->second;
    entry.data &= 0xffffffffu;
  }
  add(queue, entry, source);
}

ssize_t readFrom(fid_cq* self, void* buffer, size_t count, fi_addr_t* sources) {
  auto& queue = *reinterpret_cast<Queue*>(self);
  Domain& domain = *queue.domain;
  if (domain.endpoint != nullptr) release(*domain.endpoint, domain.endpoint->held.size() / 2);
  // Like a device, which fills the queue whether anybody looks or not.
  for (;;) {
    fi_cq_data_entry entries[32];
    const ssize_t got = fi_cq_read(queue.inner, entries, 32);
    if (got == -FI_EAVAIL) {
      fi_cq_err_entry entry = {};
      if (fi_cq_readerr(queue.inner, &entry, 0) < 0) return -FI_EIO;
      if (auto* const op = static_cast<Op*>(entry.op_context); op != nullptr) {
        if (!op->told) checkContext(queue, *op);
        entry.op_context = op->context;
        domain.endpoint->posted.erase(op);
      }
      queue.errors.push_back(entry);
      continue;
    }
    if (got <= 0) break;
    for (ssize_t i = 0; i < got; ++i) take(queue, entries[i]);
  }
  if (queue.overrun || !queue.errors.empty()) return -FI_EAVAIL;
  size_t given = 0;
  for (; given < count && !queue.entries.empty(); ++given) {
    size_t at = 0;
    if (asked("shuffle")) {
      at = domain.random() % queue.entries.size();
      if (domain.chance(20)) break;
    }
    static_cast<fi_cq_data_entry*>(buffer)[given] = queue.entries[at].entry;
    if (sources != nullptr) sources[given] = queue.entries[at].source;
    queue.entries.erase(queue.entries.begin() + static_cast<ptrdiff_t>(at));
  }
  return given != 0 ? static_cast<ssize_t>(given) : -FI_EAGAIN;
}

ssize_t readPlain(fid_cq* self, void* buffer, size_t count) {
  return efa() ? breach("the sender's address is not asked for") : readFrom(self, buffer, count, nullptr);
}

ssize_t readError(fid_cq* self, fi_cq_err_entry* entry, uint64_t) {
  auto& queue = *reinterpret_cast<Queue*>(self);
  if (queue.overrun) {
    entry->err = FI_EOVERRUN;
    return 1;
  }
  if (queue.errors.empty()) return -FI_EAGAIN;
  *entry = queue.errors.front();
  queue.errors.pop_front();
  return 1;
}

const char* wordsOf(fid_cq* self, int code, const void* data, char* buffer, size_t length) {
  if (!efa()) return fi_cq_strerror(reinterpret_cast<Queue*>(self)->inner, code, data, buffer, length);
  std::snprintf(buffer, length, "code %d of the test's device", code);
  return buffer;
}

// ---- Domains -------------------------------------------------------------------------------------------------------

int closeDomain(fid* object) {
  auto* const domain = reinterpret_cast<Domain*>(object);
  if (!domain->regions.empty()) return breach("a domain is closed with %zu registrations", domain->regions.size());
  const int result = fi_close(&domain->inner->fid);
  delete domain;
  return result;
}
fi_ops domainFidOps = {sizeof(fi_ops), closeDomain, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

void tell(Queue& queue, Op& op) {
  checkContext(queue, op);
  op.told = true;
  if (efa() && ++queue.domain->endpoint->completed == number("fail", UINT64_MAX) + 1)
    return fail(queue, op.context, FI_EIO, 13);
  fi_cq_data_entry entry = {};
  entry.op_context = op.context;
  entry.flags = FI_RMA | FI_WRITE;
  add(queue, entry, FI_ADDR_NOTAVAIL);
}

int registerMemory(fid* object, const fi_mr_attr* attributes, uint64_t flags, fid_mr** result) {
  auto& domain = *reinterpret_cast<Domain*>(object);
  fi_mr_attr inner = *attributes;
  iovec piece = *attributes->mr_iov;
  if (efa()) {
    if (const int error = checkRegistration(*attributes, flags, &piece); error != 0) return error;
    inner.iface = FI_HMEM_SYSTEM;
    inner.mr_iov = &piece;
    inner.requested_key = ++domain.keys;
  }
  auto made = std::make_unique<Region>();
  if (const int error = fi_mr_regattr(domain.inner, &inner, 0, &made->inner); error != 0) return error;
  made->domain = &domain;
  made->base = reinterpret_cast<uintptr_t>(piece.iov_base);
  made->bytes = piece.iov_len;
  made->self.fid = {FI_CLASS_MR, attributes->context, &regionFidOps};
  made->self.mem_desc = made.get();
  made->self.key = fi_mr_key(made->inner);
  if (efa()) {
    if (made->self.key >= 65536) return breach("the inner provider's keys are too long");
    // The initiator has to find the inner key and, where that counts offsets, the first byte's address.
    made->key = made->self.key << 48 | ((realMrMode & FI_MR_VIRT_ADDR) != 0 ? 0 : made->base);
    made->self.key = asked("endpoint") ? FI_KEY_NOTAVAIL : made->key;
  }
  domain.regions.insert(made.get());
  *result = &made.release()->self;
  return 0;
}

int openQueue(fid_domain* self, fi_cq_attr* attributes, fid_cq** result, void* context) {
  auto& domain = *reinterpret_cast<Domain*>(self);
  static fi_ops_cq ops = {sizeof(fi_ops_cq), readPlain, readFrom, readError, nullptr, nullptr, nullptr, wordsOf};
  auto made = std::make_unique<Queue>();
  made->capacity = attributes->size;
  if (attributes->format != FI_CQ_FORMAT_DATA) return breach("a completion queue of format %d", attributes->format);
  if (efa() && attributes->size > number("queue", 4096)) return -FI_EINVAL;
  fi_cq_attr inner = *attributes;
  inner.size = 16384;
  if (const int error = fi_cq_open(domain.inner, &inner, &made->inner, nullptr); error != 0) return error;
  made->domain = &domain;
  made->self.fid = {FI_CLASS_CQ, context, &queueFidOps};
  made->self.ops = &ops;
  *result = &made.release()->self;
  return 0;
}

int openDomain(fid_domain* inner, fid_domain** result) {
  static fi_ops_domain ops = [] {
    fi_ops_domain made = {};
    made.size = sizeof(made);
    made.av_open = openAddresses;
    made.cq_open = openQueue;
    made.endpoint = openEndpoint;
    return made;
  }();
  static fi_ops_mr memoryOps = {sizeof(fi_ops_mr), nullptr, nullptr, registerMemory};
  auto made = std::make_unique<Domain>();
  made->inner = inner;
  made->random.seed(static_cast<uint32_t>(getpid()));
  made->self.fid = {FI_CLASS_DOMAIN, nullptr, &domainFidOps};
  made->self.ops = &ops;
  made->self.mr = &memoryOps;
  *result = &made.release()->self;
  return 0;
}

}  // namespace test::fabric
