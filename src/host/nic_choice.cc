// Choosing a network device: see nic_choice.h.  Nearness is the number of objects that two places in the machine's tree
// (machine, packages, host bridges, PCI switches) have in common from the root on.
#include "host/nic_choice.h"

#include <dlfcn.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "host/error.h"
#include "host/log.h"

namespace mk {
namespace {

// ---- hwloc, loaded when first needed and never unloaded ------------------------------------------------------------

static_assert(HWLOC_API_VERSION >> 16 == 2, "written for hwloc 2");
constexpr const char* kLibrary = "libhwloc.so.15";  // of all of hwloc 2

struct Hwloc {
  std::string missing;  // why it cannot be used; "": it can
  decltype(&hwloc_topology_init) init = nullptr;
  decltype(&hwloc_topology_set_flags) setFlags = nullptr;
  decltype(&hwloc_topology_set_type_filter) setTypeFilter = nullptr;
  decltype(&hwloc_topology_load) load = nullptr;
  decltype(&hwloc_topology_destroy) destroy = nullptr;
  decltype(&hwloc_get_obj_by_depth) objectByDepth = nullptr;
  decltype(&hwloc_bitmap_isset) isSet = nullptr;

  Hwloc() {
    void* const object = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) {
      const char* words = dlerror();
      missing = words != nullptr ? words : kLibrary;
      return;
    }
    find(object, "hwloc_topology_init", init);
    find(object, "hwloc_topology_set_flags", setFlags);
    find(object, "hwloc_topology_set_type_filter", setTypeFilter);
    find(object, "hwloc_topology_load", load);
    find(object, "hwloc_topology_destroy", destroy);
    find(object, "hwloc_get_obj_by_depth", objectByDepth);
    find(object, "hwloc_bitmap_isset", isSet);
  }

 private:
  template <class Function>
  void find(void* object, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(object, name));
    if (function == nullptr) missing = format("%s has no %s", kLibrary, name);
  }
};

const Hwloc& hwloc() {
  static const Hwloc library;
  return library;
}

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;

// This machine's; null and the reason if it cannot be had.
Topology loadTopology(std::string* why) {
  Topology none(nullptr, [](hwloc_topology_t) {});
  const Hwloc& h = hwloc();
  *why = h.missing;
  if (!why->empty()) return none;
  hwloc_topology_t made = nullptr;
  *why = "hwloc cannot describe this machine";
  if (h.init(&made) != 0) return none;
  Topology topology(made, h.destroy);
  // All of the machine, so that ranks confined to different processors see the same.
  if (h.setFlags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0 ||
      h.setTypeFilter(made, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0 ||
      h.setTypeFilter(made, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0 || h.load(made) != 0)
    return none;
  why->clear();
  return topology;
}

// ---- Places in the tree --------------------------------------------------------------------------------------------

// Domain, bus, device, function.
using PciId = std::tuple<unsigned, unsigned, unsigned, unsigned>;

std::optional<PciId> parsePciId(const std::string& text) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &end) != 4 ||
      static_cast<size_t>(end) != text.size())
    return std::nullopt;
  return PciId(domain, bus, device, function);
}

std::string pciIdOf(const mkTransportDevice_t& device) {
  return {device.pciBusId, strnlen(device.pciBusId, sizeof(device.pciBusId))};
}

// From the root to the object; empty if the place is not known.
using Path = std::vector<hwloc_obj_t>;

Path pathOf(hwloc_topology* topology, const PciId& id) {
  if (topology == nullptr) return {};
  for (unsigned i = 0;; ++i) {
    const hwloc_obj_t object = hwloc().objectByDepth(topology, HWLOC_TYPE_DEPTH_PCI_DEVICE, i);
    if (object == nullptr) return {};
    const auto& pci = object->attr->pcidev;
    if (PciId(pci.domain, pci.bus, pci.dev, pci.func) != id) continue;
    Path path;
    for (hwloc_obj_t o = object; o != nullptr; o = o->parent) path.push_back(o);
    std::reverse(path.begin(), path.end());
    return path;
  }
}

// To the smallest object that holds all the processors.
Path pathOf(hwloc_topology* topology, const std::vector<uint32_t>& cpus) {
  if (topology == nullptr || cpus.empty()) return {};
  const auto holds = [&](hwloc_obj_t object) {
    return object->cpuset != nullptr &&
           std::all_of(cpus.begin(), cpus.end(), [&](uint32_t cpu) { return hwloc().isSet(object->cpuset, cpu) != 0; });
  };
  Path path;
  for (hwloc_obj_t at = hwloc().objectByDepth(topology, 0, 0); at != nullptr;) {
    path.push_back(at);
    hwloc_obj_t child = at->first_child;
    while (child != nullptr && !holds(child)) child = child->next_sibling;
    at = child;
  }
  return path;
}

size_t nearness(const Path& a, const Path& b) {
  size_t common = 0;
  while (common < a.size() && common < b.size() && a[common] == b[common]) ++common;
  return common;
}

// What the last of `common` objects from the root on is.
std::string describe(const Path& path, size_t common) {
  if (common == 0) return "its place is not known";
  const hwloc_obj_t object = path[common - 1];
  switch (object->type) {
    case HWLOC_OBJ_PCI_DEVICE:
      return "the same PCI device";
    case HWLOC_OBJ_BRIDGE:
      return object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? "behind the same PCI bridge"
                                                                        : "at the same host bridge";
    case HWLOC_OBJ_MACHINE:
      return "in the same machine";
    default:
      return "in the same part of the machine";  // a package, or what it is divided into
  }
}

// ---- The choice ----------------------------------------------------------------------------------------------------

struct Device {
  int index = 0;
  PciId id;
  uint64_t bytesPerSecond = 0;
  Path path;
};

struct Nearest {
  std::vector<size_t> devices;  // in the order of their PCI bus ids
  size_t common = 0;
};

// Of those equally near, the fastest.
Nearest nearestTo(const Path& place, const std::vector<Device>& devices) {
  Nearest nearest;
  uint64_t speed = 0;
  for (size_t d = 0; d < devices.size(); ++d) {
    const size_t common = nearness(place, devices[d].path);
    const std::pair<size_t, uint64_t> mine(common, devices[d].bytesPerSecond), best(nearest.common, speed);
    if (mine < best) continue;
    if (mine > best) {
      nearest = {{}, common};
      speed = devices[d].bytesPerSecond;
    }
    nearest.devices.push_back(d);
  }
  return nearest;
}

// Every rank of the node does this with the same result.  Who has the fewest to choose from goes first; each takes what the
// fewest have taken, by its local rank where that leaves a choice.
size_t spread(const std::vector<std::optional<Nearest>>& ranks, uint32_t local, size_t devices) {
  std::vector<size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  order.erase(std::remove_if(order.begin(), order.end(), [&](size_t r) { return !ranks[r]; }), order.end());
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranks[a]->devices.size() < ranks[b]->devices.size(); });
  std::vector<int> users(devices);
  for (const size_t r : order) {
    const std::vector<size_t>& choice = ranks[r]->devices;
    size_t taken = choice[r % choice.size()];
    for (size_t i = 0; i < choice.size(); ++i) {
      const size_t other = choice[(r + i) % choice.size()];
      if (users[other] < users[taken]) taken = other;
    }
    if (r == local) return taken;
    ++users[taken];
  }
  fail(mkErrorInternal, "local rank %u is not among %zu", local, ranks.size());
}

bool anythingToChoose(const NicQuestion& question) {
  return question.devices.size() > 1 &&
         std::any_of(question.devices.begin(), question.devices.end(),
                     [](const mkTransportDevice_t& device) { return parsePciId(pciIdOf(device)).has_value(); });
}

}  // namespace

NicChoice chooseNic(hwloc_topology* topology, const NicQuestion& question) {
  if (question.devices.empty()) return {0, "no device is listed"};
  if (question.devices.size() == 1) return {0, "there is no other"};
  if (!anythingToChoose(question)) return {0, "the first, as none has a PCI bus id"};
  if (question.local >= question.gpus.size())
    fail(mkErrorInternal, "local rank %u is not among %zu", question.local, question.gpus.size());

  std::vector<Device> devices;
  for (size_t d = 0; d < question.devices.size(); ++d) {
    const std::optional<PciId> id = parsePciId(pciIdOf(question.devices[d]));
    if (!id) continue;  // not hardware of its own: it gives way
    Device device;
    device.index = static_cast<int>(d);
    device.id = *id;
    device.bytesPerSecond = question.devices[d].bytesPerSecond;
    device.path = pathOf(topology, *id);
    devices.push_back(std::move(device));
  }
  std::sort(devices.begin(), devices.end(),
            [](const Device& a, const Device& b) { return std::tie(a.id, a.index) < std::tie(b.id, b.index); });

  // A rank without a GPU knows no other rank's processors, nor do the others know its own.
  std::vector<std::optional<Nearest>> ranks(question.gpus.size());
  const std::string& gpu = question.gpus[question.local];
  Path own;
  if (gpu.empty()) {
    own = pathOf(topology, question.cpus);
    ranks[question.local] = nearestTo(own, devices);
  } else {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const std::optional<PciId> id = parsePciId(question.gpus[r]);
      if (question.gpus[r].empty()) continue;
      const Path place = id ? pathOf(topology, *id) : Path{};
      if (r == question.local) own = place;
      ranks[r] = nearestTo(place, devices);
    }
  }
  const size_t chosen = spread(ranks, question.local, devices.size());
  const Nearest& mine = *ranks[question.local];
  return {devices[chosen].index,
          format("nearest to %s: %s; %zu device(s) are equally good", gpu.empty() ? "the processors" : gpu.c_str(),
                 describe(own, mine.common).c_str(), mine.devices.size())};
}

NicChoice chooseNic(const NicQuestion& question) {
  if (!anythingToChoose(question)) return chooseNic(nullptr, question);
  std::string why;
  const Topology topology = loadTopology(&why);
  NicChoice choice = chooseNic(topology.get(), question);
  if (!why.empty()) choice.reason += " (" + why + ")";
  return choice;
}

std::vector<uint32_t> allowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {};
  std::vector<uint32_t> cpus;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace mk
