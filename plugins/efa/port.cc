// See port.h.
#include "port.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/failure.h"
#include "gpu.h"

namespace mk::plugin::efa {
namespace {

constexpr size_t kQueueEntriesMost = 16384, kQueueEntriesLeast = 64;
constexpr uint64_t kWriteFlags = FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_DELIVERY_COMPLETE;

// Opens an object into its holder.
template <typename T, typename Open>
void open(const Provider& provider, Fid<T>& holder, const char* what, Open&& call) {
  T* object = nullptr;
  if (const int result = call(&object); result != 0)
    fail(mkErrorTransport, "%s: %s", what, provider.library().describe(result).c_str());
  holder.reset(object);
}

}  // namespace

Port::Port(const Provider& provider, const Device& device)
    : provider_(provider), device_(device), mrMode_(static_cast<uint64_t>(device.info->domain_attr->mr_mode)) {
  const SignalGuard guard;
  fi_info& info = *device.info;
  open(provider_, fabric_, "fi_fabric",
       [&](fid_fabric** fabric) { return provider_.library().fabric(info.fabric_attr, fabric, nullptr); });
  open(provider_, domain_, "fi_domain",
       [&](fid_domain** domain) { return fi_domain(fabric_.get(), &info, domain, nullptr); });
  Padded<fi_av_attr> av;
  av->type = FI_AV_TABLE;
  open(provider_, addresses_, "fi_av_open",
       [&](fid_av** addresses) { return fi_av_open(domain_.get(), &av.value, addresses, nullptr); });
  openQueue(info);
  open(provider_, endpoint_, "fi_endpoint",
       [&](fid_ep** endpoint) { return fi_endpoint(domain_.get(), &info, endpoint, nullptr); });
  const auto check = [&](int result, const char* what) {
    if (result != 0) fail(mkErrorTransport, "%s: %s", what, provider_.library().describe(result).c_str());
  };
  check(fi_ep_bind(endpoint_.get(), &addresses_->fid, 0), "fi_ep_bind (address vector)");
  check(fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind (completion queue)");
  check(fi_enable(endpoint_.get()), "fi_enable");
  readName();
  // Whether writes are the device's own, or messages that the peer's library copies, decides what they cost and whether a
  // peer that does not poll receives any; it changes nothing in what we do.
  bool emulated = false;
  size_t length = sizeof(emulated);
  if (provider_.library().atLeast(1, 18) &&
      fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptEfaEmulatedWrite, &emulated, &length) == 0)
    writes_ = emulated ? "emulated" : "native";
  MK_PLUGIN_INFO("device %s: completion queue of %zu entries, writes %s", device_.name.c_str(), queueEntries_,
                 *writes_ != '\0' ? writes_ : "native or emulated, libfabric does not say");
}

// The deepest that the device takes, since arrivals that find it full are lost, and all others with them.
void Port::openQueue(const fi_info& info) {
  Padded<fi_cq_attr> attributes;
  attributes->format = FI_CQ_FORMAT_DATA;
  attributes->wait_obj = FI_WAIT_NONE;
  const size_t least = std::min(kQueueEntriesMost, std::max(kQueueEntriesLeast, info.tx_attr->size));
  for (size_t entries = kQueueEntriesMost;; entries /= 2) {
    attributes->size = entries;
    fid_cq* queue = nullptr;
    const int result = fi_cq_open(domain_.get(), &attributes.value, &queue, nullptr);
    if (result == 0) {
      queue_.reset(queue);
      queueEntries_ = entries;
      return;
    }
    if (entries / 2 < std::min(least, kQueueEntriesLeast))
      fail(mkErrorTransport, "fi_cq_open with %zu entries: %s", entries, provider_.library().describe(result).c_str());
  }
}

void Port::readName() {
  size_t length = 0;
  name_.resize(MK_TRANSPORT_ADDRESS_BYTES);
  length = name_.size();
  if (const int result = fi_getname(&endpoint_->fid, name_.data(), &length); result != 0)
    fail(mkErrorTransport, "fi_getname: %s", provider_.library().describe(result).c_str());
  name_.resize(std::min(length, name_.size()));
}

fi_addr_t Port::insert(const uint8_t* name) {
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  const int result = fi_av_insert(addresses_.get(), name, 1, &address, 0, nullptr);
  if (result != 1 || address == FI_ADDR_NOTAVAIL)
    fail(mkErrorTransport, "fi_av_insert: %s",
         result < 0 ? provider_.library().describe(result).c_str() : "the address is not taken");
  return address;
}

// ---- Memory --------------------------------------------------------------------------------------------------------

Registration Port::registerMemory(const mkTransportMemory_t& memory) {
  if (memory.kind == MK_MEMORY_KIND_HOST) return registerAs(memory, false);
  if (!provider_.gpuMemory())
    fail(mkErrorNotSupported,
         "memory kind %u (of a GPU): provider %s does not take it here (FI_HMEM); host memory is kind %u", memory.kind,
         provider_.settings().provider.c_str(), MK_MEMORY_KIND_HOST);
  // A DMA-BUF needs neither a kernel module nor the driver's help in libfabric; 1.20 is the first to take one.
  std::string why = memory.fd < 0 ? "there is no descriptor" : "libfabric is older than 1.20";
  if (memory.fd >= 0 && provider_.library().atLeast(1, 20)) {
    try {
      return registerAs(memory, true);
    } catch (const Failure& failure) {
      why = failure.what();
    }
  }
  try {
    Registration made = registerAs(memory, false);
    MK_PLUGIN_INFO("memory of a GPU registered through its driver, not as a DMA-BUF: %s", why.c_str());
    return made;
  } catch (const Failure& failure) {
    if (failure.code() == mkErrorInvalidArgument) throw;
    fail(
        mkErrorNotSupported,
        "device %s reaches no GPU memory at %p (as a DMA-BUF: %s; through the driver: %s): it has to go through pinned "
        "host memory",
        device_.name.c_str(), memory.address, why.c_str(), failure.what());
  }
}

Registration Port::registerAs(const mkTransportMemory_t& memory, bool dmabuf) {
  iovec piece = {memory.address, memory.bytes};
  MrDmabuf file = {memory.fd, memory.fdOffset, memory.bytes, memory.address};
  Padded<fi_mr_attr> attributes;
  attributes->mr_iov = &piece;
  if (dmabuf) {
    // The newer headers have a union here.
    const void* pointer = &file;
    std::memcpy(&attributes->mr_iov, &pointer, sizeof(pointer));
  }
  attributes->iov_count = 1;
  attributes->access = FI_WRITE | FI_REMOTE_WRITE;
  if ((mrMode_ & FI_MR_PROV_KEY) == 0) attributes->requested_key = ++nextKey_;
  attributes->iface = FI_HMEM_SYSTEM;
  if (memory.kind == MK_MEMORY_KIND_CUDA) {
    attributes->iface = FI_HMEM_CUDA;
    attributes->device.cuda = cudaDeviceOf(memory.address);
  }
  Registration made;
  const char* const call = dmabuf ? "fi_mr_regattr (DMA-BUF)" : "fi_mr_regattr";
  open(provider_, made.region, call, [&](fid_mr** region) {
    return fi_mr_regattr(domain_.get(), &attributes.value, dmabuf ? kMrDmabuf : 0, region);
  });
  if ((mrMode_ & FI_MR_ENDPOINT) != 0) {
    int result = fi_mr_bind(made.region.get(), &endpoint_->fid, 0);
    if (result == 0) result = fi_mr_enable(made.region.get());
    if (result != 0) fail(mkErrorTransport, "fi_mr_bind: %s", provider_.library().describe(result).c_str());
  }
  made.key = fi_mr_key(made.region.get());
  if (made.key == FI_KEY_NOTAVAIL) fail(mkErrorTransport, "fi_mr_key: the provider gives no key");
  made.remoteBase = (mrMode_ & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<uintptr_t>(memory.address) : 0;
  made.means = memory.kind == MK_MEMORY_KIND_HOST ? "host memory" : dmabuf ? "DMA-BUF" : "the GPU's driver";
  return made;
}

// ---- Writes and completions ----------------------------------------------------------------------------------------

int64_t Port::write(const Posting& posting) {
  iovec from = {const_cast<void*>(posting.source), posting.bytes};
  fi_rma_iov to = {posting.remoteAddress, posting.bytes, posting.remoteKey};
  void* descriptor = posting.descriptor;
  fi_msg_rma message = {};
  message.msg_iov = &from;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = posting.peer;
  message.rma_iov = &to;
  message.rma_iov_count = 1;
  message.context = posting.context;
  message.data = posting.data;
  // Without FI_MORE: what is held back for the next stays where the next gets EAGAIN, and libfabric's efa held back for ever what
  // it had queued by itself (its pull request 12623).
  return fi_writemsg(endpoint_.get(), &message, kWriteFlags);
}

void Port::stop() {
  // A registration that is bound to an endpoint has to go first.
  if ((mrMode_ & FI_MR_ENDPOINT) == 0) endpoint_.reset();
}

void Port::read(std::vector<Completion>& completions) {
  constexpr int kRounds = 8;  // so that one call stays short
  for (int round = 0; round < kRounds; ++round) {
    std::array<fi_cq_data_entry, 16> entries = {};
    std::array<fi_addr_t, 16> sources = {};
    sources.fill(FI_ADDR_NOTAVAIL);
    const ssize_t got = provider_.senderInData()
                            ? fi_cq_read(queue_.get(), entries.data(), entries.size())
                            : fi_cq_readfrom(queue_.get(), entries.data(), entries.size(), sources.data());
    if (got == -FI_EAGAIN || got == -FI_EINTR || got == 0) return;
    if (got == -FI_EAVAIL) {
      readError(completions);
      continue;
    }
    if (got < 0)
      fail(mkErrorTransport, "device %s: fi_cq_read: %s", device_.name.c_str(),
           provider_.library().describe(got).c_str());
    for (size_t i = 0; i < static_cast<size_t>(got); ++i) {
      const fi_cq_data_entry& entry = entries[i];
      const bool arrival = (entry.flags & FI_REMOTE_CQ_DATA) != 0;
      completions.push_back(
          {arrival ? Completion::Kind::arrived : Completion::Kind::sent, entry.op_context, entry.data, sources[i], ""});
    }
    if (static_cast<size_t>(got) < entries.size()) return;
  }
}

void Port::readError(std::vector<Completion>& completions) {
  Padded<fi_cq_err_entry> entry;
  const ssize_t got = fi_cq_readerr(queue_.get(), &entry.value, 0);
  if (got == -FI_EAGAIN) return;
  if (got < 0)
    fail(mkErrorTransport, "device %s: fi_cq_readerr: %s", device_.name.c_str(),
         provider_.library().describe(got).c_str());
  if (entry->err == FI_EOVERRUN)
    fail(mkErrorTransport, "device %s: its completion queue of %zu entries has overflowed", device_.name.c_str(),
         queueEntries_);
  char words[256] = "";
  const char* provider = fi_cq_strerror(queue_.get(), entry->prov_errno, entry->err_data, words, sizeof(words));
  completions.push_back({Completion::Kind::failed, entry->op_context, 0, FI_ADDR_NOTAVAIL,
                         format("%s; provider's code %d: %s", provider_.library().describe(entry->err).c_str(),
                                entry->prov_errno, provider != nullptr ? provider : "no words")});
}

}  // namespace mk::plugin::efa
