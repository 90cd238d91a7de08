// See provider.h.
#include "provider.h"

#include <algorithm>
#include <cstring>

#include "common/failure.h"
#include "gpu.h"

namespace mk::plugin::efa {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;  // of one write
constexpr uint64_t kMinBytes = 4096;               // below that no plan of the library makes sense

// What we can live with.  FI_MR_RAW (keys of any length) and FI_MR_MMU_NOTIFY are not among it.
constexpr int kMrModes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
constexpr uint64_t kModes = FI_CONTEXT | FI_CONTEXT2;

std::string pciBusId(const fi_info& info) {
  if (info.nic == nullptr || info.nic->bus_attr == nullptr || info.nic->bus_attr->bus_type != FI_BUS_PCI) return "";
  const fi_pci_attr& pci = info.nic->bus_attr->attr.pci;
  return format("%04x:%02x:%02x.%x", pci.domain_id, pci.bus_id, pci.device_id, pci.function_id);
}

Device describe(const Info& info) {
  Device device;
  device.info = info;
  device.name = info->domain_attr->name;
  device.pciBusId = pciBusId(*info);
  if (info->nic != nullptr && info->nic->link_attr != nullptr) device.bytesPerSecond = info->nic->link_attr->speed / 8;
  return device;
}

}  // namespace

Provider::Provider(Settings settings)
    : settings_(std::move(settings)), library_([this] {
        const SignalGuard guard;
        return Library(settings_.library);
      }()) {
  const SignalGuard guard;
  for (const bool gpu : {true, false}) {
    if (gpu && !cudaDriverLoaded()) continue;
    for (const bool inData : {true, false}) {
      if (!devices_.empty()) continue;
      devices_ = find(gpu, inData);
      gpuMemory_ = gpu;
      senderInData_ = inData;
    }
  }
  if (devices_.empty()) fail(mkErrorTransport, "%s", whyNone().c_str());
  maxBytes_ = kMaxBytes;
  for (const Device& device : devices_) maxBytes_ = std::min<uint64_t>(maxBytes_, device.info->ep_attr->max_msg_size);
  const fi_info& first = *devices_.front().info;
  const uint32_t version = library_.version();
  MK_PLUGIN_INFO(
      "provider %s (fabric %s) of libfabric %u.%u, built with %u.%u: %zu device(s), the first is %s; writes up to %llu "
      "bytes; the sender is told by %s; registration mode %#x; GPU memory %s",
      settings_.provider.c_str(), first.fabric_attr->name, FI_MAJOR(version), FI_MINOR(version), FI_MAJOR_VERSION,
      FI_MINOR_VERSION, devices_.size(), devices_.front().name.c_str(), static_cast<unsigned long long>(maxBytes_),
      senderInData_ ? "the data of a write" : "its address", static_cast<unsigned>(first.domain_attr->mr_mode),
      gpuMemory_ ? "yes" : "no");
}

Info Provider::query(fi_info* hints, int* result) const {
  fi_info* list = nullptr;
  *result = library_.getinfo(library_.requestedVersion(), nullptr, nullptr, 0, hints, &list);
  const auto freeinfo = library_.freeinfo;
  if (*result != 0 || list == nullptr) return nullptr;
  return Info(list, [freeinfo](fi_info* info) { freeinfo(info); });
}

std::vector<Device> Provider::find(bool gpuMemory, bool senderInData) const {
  // Allocated by the library, so that it has every member the library knows.
  const Info hints(library_.dupinfo(nullptr), [this](fi_info* info) { library_.freeinfo(info); });
  if (hints == nullptr) fail(mkErrorSystem, "out of memory");
  hints->caps = FI_MSG | FI_RMA | (senderInData ? 0 : FI_SOURCE) | (gpuMemory ? FI_HMEM : 0);
  hints->mode = kModes;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = kMrModes | (gpuMemory ? FI_MR_HMEM : 0);
  hints->domain_attr->cq_data_size = senderInData ? 8 : 4;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->av_type = FI_AV_TABLE;
  // A write has completed when the peer's memory has it; nothing less allows the peer's buffer, or ours, to be used again.
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints->fabric_attr->prov_name = strdup(settings_.provider.c_str());  // freed with the hints
  int result = 0;
  const Info list = query(hints.get(), &result);

  std::vector<Device> devices;
  for (fi_info* one = list.get(); one != nullptr; one = one->next) {
    const bool wanted = settings_.domains.empty() || std::find(settings_.domains.begin(), settings_.domains.end(),
                                                               one->domain_attr->name) != settings_.domains.end();
    // The same device comes once per address or fabric, the best first.
    const bool known = std::any_of(devices.begin(), devices.end(),
                                   [&](const Device& device) { return device.name == one->domain_attr->name; });
    const bool usable =
        (static_cast<uint64_t>(one->domain_attr->mr_mode) & ~static_cast<uint64_t>(kMrModes | FI_MR_HMEM)) == 0 &&
        one->domain_attr->cq_data_size >= hints->domain_attr->cq_data_size && one->ep_attr->max_msg_size >= kMinBytes;
    if (!wanted || known || !usable) continue;
    fi_info* const copy = library_.dupinfo(one);
    if (copy == nullptr) fail(mkErrorSystem, "out of memory");
    devices.push_back(describe(Info(copy, [this](fi_info* info) { library_.freeinfo(info); })));
  }
  return devices;
}

// Says whether it is the provider that is missing, or what it can do.
std::string Provider::whyNone() const {
  const Info hints(library_.dupinfo(nullptr), [this](fi_info* info) { library_.freeinfo(info); });
  if (hints == nullptr) return "out of memory";
  hints->fabric_attr->prov_name = strdup(settings_.provider.c_str());
  int result = 0;
  const Info list = query(hints.get(), &result);
  const uint32_t version = library_.version();
  const std::string who = format("libfabric %u.%u, provider %s (MKERNEL_EFA_PROVIDER)", FI_MAJOR(version),
                                 FI_MINOR(version), settings_.provider.c_str());
  if (list == nullptr) return who + ": no device: " + library_.describe(result);
  std::string names;
  for (const fi_info* one = list.get(); one != nullptr; one = one->next) {
    const std::string name = one->domain_attr->name;
    if ((", " + names + ", ").find(", " + name + ", ") == std::string::npos)
      names += (names.empty() ? "" : ", ") + name;
  }
  return who + ": none of its devices (" + names + ") will do: needed are " +
         (settings_.domains.empty() ? "" : "a name in MKERNEL_EFA_DOMAIN, ") +
         "reliable datagrams (FI_EP_RDM), writes (FI_RMA) of 4096 bytes or more that complete on delivery, and 8 bytes "
         "of "
         "data with each write, or 4 and the sender's address (FI_SOURCE)";
}

}  // namespace mk::plugin::efa
