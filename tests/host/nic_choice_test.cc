// The choice of a network device, on machines described in hwloc's XML: shapes that are sold, and shapes that are awkward.
#include "host/nic_choice.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/error.h"
#include "support/catch_compat.h"

namespace mk {
namespace {

// Makes hwloc's XML of a machine of two packages with two processors each, from words: "p{" the next package, "h{" a host
// bridge, "s{" a PCI switch, "}" the end of one of them, anything else the PCI bus id of a device.
class Xml {
 public:
  explicit Xml(const std::string& words) {
    text_ =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
        "version=\"2.0\">\n";
    open("Machine", 0xf, 0x3, "os_index=\"0\" allowed_cpuset=\"0xf\" allowed_nodeset=\"0x3\"");
    std::istringstream stream(words);
    for (std::string word; stream >> word;) add(word);
    while (packages_ < 2) {
      add("p{");
      add("}");
    }
    text_ += "</object>\n</topology>\n";
  }
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& word) {
    if (word == "p{") {
      package();
    } else if (word == "h{") {
      object("Bridge", "bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-ff]\"");
    } else if (word == "s{") {
      char id[32];
      std::snprintf(id, sizeof(id), "0000:f0:%02x.0", switches_++);
      object("Bridge", "bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[00-ff]\" pci_busid=\"" + std::string(id) +
                           "\" pci_type=\"0604 [1000:c030] [1000:100b] b0\"");
    } else if (word == "}") {
      text_ += "</object>\n";
    } else {
      object("PCIDev", "pci_busid=\"0000:" + word + "\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\"");
      text_ += "</object>\n";
    }
  }
  void package() {
    const unsigned node = 1u << packages_, cpus = 0x3u << (2 * packages_);
    const std::string index = "os_index=\"" + std::to_string(packages_) + "\"";
    open("Package", cpus, node, index);
    open("NUMANode", cpus, node, index + " local_memory=\"1073741824\"");
    text_ += "</object>\n";
    for (unsigned cpu = 2 * packages_; cpu < 2 * packages_ + 2; ++cpu) {
      open("Core", 1u << cpu, node, "os_index=\"" + std::to_string(cpu) + "\"");
      open("PU", 1u << cpu, node, "os_index=\"" + std::to_string(cpu) + "\"");
      text_ += "</object>\n</object>\n";
    }
    ++packages_;
  }
  void open(const char* type, unsigned cpus, unsigned nodes, const std::string& more) {
    char sets[256];
    std::snprintf(sets, sizeof(sets),
                  "cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" complete_nodeset=\"0x%x\" ", cpus, cpus,
                  nodes, nodes);
    object(type, sets + more);
  }
  void object(const char* type, const std::string& attributes) {
    text_ += "<object type=\"" + std::string(type) + "\" gp_index=\"" + std::to_string(++objects_) + "\" " +
             attributes + ">\n";
  }

  std::string text_;
  unsigned packages_ = 0, switches_ = 0, objects_ = 0;
};

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Topology machine(const std::string& words) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) throw std::runtime_error("hwloc_topology_init");
  Topology topology(made, hwloc_topology_destroy);
  const Xml xml(words);
  if (hwloc_topology_set_io_types_filter(made, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_set_xmlbuffer(made, xml.text().c_str(), static_cast<int>(xml.text().size()) + 1) != 0 ||
      hwloc_topology_load(made) != 0)
    throw std::runtime_error("hwloc does not take this:\n" + xml.text());
  // Every word that is a device is one: else a test would choose among places that are not known.
  std::istringstream stream(words);
  for (std::string word; stream >> word;)
    if (word.find(':') != std::string::npos && hwloc_get_pcidev_by_busidstring(made, word.c_str()) == nullptr)
      throw std::runtime_error("no " + word + " in\n" + xml.text());
  return topology;
}

// "NAME=ID", or "NAME=ID@BYTES", or "NAME=".
mkTransportDevice_t device(const std::string& word) {
  mkTransportDevice_t result = {};
  result.structSize = sizeof(result);
  const size_t equals = word.find('='), at = std::min(word.find('@'), word.size());
  word.copy(result.name, equals);
  const std::string id = word.substr(equals + 1, at - equals - 1);
  std::snprintf(result.pciBusId, sizeof(result.pciBusId), "%s%s", id.empty() ? "" : "0000:", id.c_str());
  if (at < word.size()) result.bytesPerSecond = std::stoull(word.substr(at + 1));
  return result;
}

NicQuestion question(const std::vector<std::string>& gpus, const std::vector<std::string>& devices) {
  NicQuestion q;
  for (const std::string& gpu : gpus) q.gpus.push_back(gpu.empty() ? "" : "0000:" + gpu);
  for (const std::string& word : devices) q.devices.push_back(device(word));
  return q;
}

// The PCI bus ids, without the domain, of the devices that the local ranks choose.
std::vector<std::string> chosen(hwloc_topology* topology, NicQuestion q) {
  std::vector<std::string> ids;
  for (q.local = 0; q.local < q.gpus.size(); ++q.local) {
    const NicChoice choice = chooseNic(topology, q);
    REQUIRE(choice.device >= 0);
    REQUIRE(static_cast<size_t>(choice.device) < q.devices.size());
    CHECK(!choice.reason.empty());
    const std::string id = q.devices[static_cast<size_t>(choice.device)].pciBusId;
    ids.push_back(id.empty() ? id : id.substr(5));
  }
  return ids;
}

using Ids = std::vector<std::string>;

// Per package two host bridges, each with two switches; GPUs at even buses from 10 on, NICs at odd ones.
const char* const kEightAndEight =
    "p{ h{ s{ 10:00.0 11:00.0 } s{ 12:00.0 13:00.0 } } h{ s{ 20:00.0 21:00.0 } s{ 22:00.0 23:00.0 } } } "
    "p{ h{ s{ 80:00.0 81:00.0 } s{ 82:00.0 83:00.0 } } h{ s{ 90:00.0 91:00.0 } s{ 92:00.0 93:00.0 } } }";
const Ids kEightGpus = {"10:00.0", "12:00.0", "20:00.0", "22:00.0", "80:00.0", "82:00.0", "90:00.0", "92:00.0"};
const Ids kEightNics = {"11:00.0", "13:00.0", "21:00.0", "23:00.0", "81:00.0", "83:00.0", "91:00.0", "93:00.0"};
// Named so that neither the order of the names nor that of the indices helps.
const Ids kShuffled = {"mlx5_4=83:00.0", "mlx5_0=93:00.0", "mlx5_7=11:00.0", "mlx5_1=21:00.0",
                       "mlx5_6=81:00.0", "mlx5_2=23:00.0", "mlx5_5=91:00.0", "mlx5_3=13:00.0"};

TEST_CASE("nic choice: 8 GPUs with 8 NICs") {
  const Topology topology = machine(kEightAndEight);
  CHECK(chosen(topology.get(), question(kEightGpus, kShuffled)) == kEightNics);
  // The order of the GPUs is the application's.
  Ids gpus = kEightGpus, nics = kEightNics;
  std::rotate(gpus.begin(), gpus.begin() + 3, gpus.end());
  std::rotate(nics.begin(), nics.begin() + 3, nics.end());
  CHECK(chosen(topology.get(), question(gpus, kShuffled)) == nics);
  CHECK(chosen(topology.get(), question({"90:00.0"}, kShuffled)) == Ids{"91:00.0"});
}

TEST_CASE("nic choice: renamed devices") {
  const Topology topology = machine(kEightAndEight);
  for (int i = 0; i < 8; ++i) {
    Ids devices;
    for (size_t d = 0; d < 8; ++d)
      devices.push_back("rocep" + std::to_string(7 - d) + "=" + kEightNics[(d * 3 + i) % 8]);
    CHECK(chosen(topology.get(), question(kEightGpus, devices)) == kEightNics);
  }
}

TEST_CASE("nic choice: 8 GPUs with 4 NICs") {
  // Two GPUs and a NIC at each switch: near beats distinct.
  const Topology topology = machine(
      "p{ h{ s{ 10:00.0 11:00.0 12:00.0 } } h{ s{ 20:00.0 21:00.0 22:00.0 } } } "
      "p{ h{ s{ 80:00.0 81:00.0 82:00.0 } } h{ s{ 90:00.0 91:00.0 92:00.0 } } }");
  CHECK(chosen(topology.get(),
               question({"10:00.0", "11:00.0", "20:00.0", "21:00.0", "80:00.0", "81:00.0", "90:00.0", "91:00.0"},
                        {"a=92:00.0", "b=12:00.0", "c=82:00.0", "d=22:00.0"})) ==
        Ids{"12:00.0", "12:00.0", "22:00.0", "22:00.0", "82:00.0", "82:00.0", "92:00.0", "92:00.0"});
  // Two NICs for the four GPUs of a package, at a host bridge of their own: two GPUs each.
  const Topology apart = machine(
      "p{ h{ 10:00.0 } h{ 11:00.0 } h{ 12:00.0 } h{ 13:00.0 } h{ 1a:00.0 1b:00.0 } } "
      "p{ h{ 80:00.0 } h{ 81:00.0 } h{ 82:00.0 } h{ 83:00.0 } h{ 8a:00.0 8b:00.0 } }");
  const Ids ids = chosen(
      apart.get(), question({"10:00.0", "11:00.0", "12:00.0", "13:00.0", "80:00.0", "81:00.0", "82:00.0", "83:00.0"},
                            {"a=1a:00.0", "b=8b:00.0", "c=8a:00.0", "d=1b:00.0"}));
  for (const char* nic : {"1a:00.0", "1b:00.0", "8a:00.0", "8b:00.0"})
    CHECK(std::count(ids.begin(), ids.end(), nic) == 2);
  for (size_t r = 0; r < 8; ++r) CHECK(ids[r][0] == (r < 4 ? '1' : '8'));
}

TEST_CASE("nic choice: 4 EFA NICs for each GPU") {
  std::string words;
  Ids gpus, devices;
  for (int g = 0; g < 8; ++g) {
    if (g % 4 == 0) words += "p{ ";
    words += "h{ s{ ";
    const std::string bus = std::to_string(10 + g) + ":00.";
    for (int f = 0; f < 4; ++f) {
      words += bus + std::to_string(f) + " ";
      devices.push_back("rdmap" + std::to_string((g * 4 + f) * 7 % 32) + "=" + bus + std::to_string(f));
    }
    gpus.push_back(std::to_string(10 + g) + ":1f.0");
    words += gpus.back() + " } } ";
    if (g % 4 == 3) words += "} ";
  }
  std::rotate(devices.begin(), devices.begin() + 5, devices.end());
  const Topology topology = machine(words);
  // One of the GPU's own four, by the local index.
  const Ids ids = chosen(topology.get(), question(gpus, devices));
  for (size_t g = 0; g < 8; ++g) CHECK(ids[g] == gpus[g].substr(0, 2) + ":00." + std::to_string(g % 4));
  // Four ranks on one GPU have one each.
  const Ids shared = chosen(topology.get(), question({gpus[2], gpus[2], gpus[2], gpus[2]}, devices));
  CHECK(std::set<std::string>(shared.begin(), shared.end()) ==
        std::set<std::string>{"12:00.0", "12:00.1", "12:00.2", "12:00.3"});
}

TEST_CASE("nic choice: 2 GPUs equally near 2 NICs have one each") {
  const Ids gpus = {"10:00.0", "11:00.0"}, devices = {"x=12:00.0", "y=13:00.0"};
  for (const char* words : {"p{ h{ s{ 10:00.0 11:00.0 12:00.0 13:00.0 } } }",       // behind one switch
                            "p{ h{ s{ 10:00.0 11:00.0 } s{ 12:00.0 13:00.0 } } }",  // at one host bridge
                            "p{ h{ 10:00.0 11:00.0 } h{ 12:00.0 13:00.0 } }",       // in one package
                            "p{ h{ 10:00.0 11:00.0 } } p{ h{ 12:00.0 13:00.0 } }"}) {
    INFO(words);
    const Topology topology = machine(words);
    CHECK(chosen(topology.get(), question(gpus, devices)) == Ids{"12:00.0", "13:00.0"});
    CHECK(chosen(topology.get(), question({gpus[1], gpus[0]}, {devices[1], devices[0]})) == Ids{"12:00.0", "13:00.0"});
  }
  // Who has no choice goes first: the second GPU's switch has a NIC, the first GPU is as near to that as to the other.
  const Topology topology = machine("p{ h{ 10:00.0 s{ 11:00.0 12:00.0 } 13:00.0 } }");
  CHECK(chosen(topology.get(), question(gpus, devices)) == Ids{"13:00.0", "12:00.0"});
}

TEST_CASE("nic choice: of what is equally near, the fastest") {
  const Topology topology = machine("p{ h{ s{ 10:00.0 11:00.0 12:00.0 13:00.0 } } h{ 20:00.0 } }");
  CHECK(chosen(topology.get(), question({"10:00.0", "10:00.0"},
                                        {"slow=11:00.0@3000000000", "a=13:00.0@50000000000", "b=12:00.0@50000000000",
                                         "far=20:00.0@90000000000"})) == Ids{"12:00.0", "13:00.0"});
}

TEST_CASE("nic choice: without a GPU, the processors count") {
  const Topology topology = machine(kEightAndEight);
  NicQuestion q = question({"", "", "", ""}, kShuffled);
  q.cpus = {2, 3};
  CHECK(chosen(topology.get(), q) == Ids{"81:00.0", "83:00.0", "91:00.0", "93:00.0"});
  q.cpus = {1};
  CHECK(chosen(topology.get(), q) == Ids{"11:00.0", "13:00.0", "21:00.0", "23:00.0"});
  // In the whole machine, or who knows where, all are equally near.
  for (const std::vector<uint32_t>& cpus : {std::vector<uint32_t>{0, 1, 2, 3}, {1, 2}, {}, {77}}) {
    q.cpus = cpus;
    CHECK(chosen(topology.get(), q) == Ids{"11:00.0", "13:00.0", "21:00.0", "23:00.0"});
  }
}

TEST_CASE("nic choice: no NIC, one, and devices without a PCI bus id") {
  const Topology topology = machine(kEightAndEight);
  const auto indices = [&](const Ids& devices) {
    std::vector<int> result;
    NicQuestion q = question(kEightGpus, devices);
    for (q.local = 0; q.local < 8; ++q.local) {
      result.push_back(chooseNic(topology.get(), q).device);
      CHECK(chooseNic(q).device == result.back());  // this machine is not asked
    }
    return result;
  };
  const std::vector<int> first(8, 0);
  CHECK(indices({}) == first);
  CHECK(indices({"loopback="}) == first);
  CHECK(indices({"lo=", "eth0="}) == first);
  CHECK(indices({"mlx5_0=93:00.0"}) == first);
  // They give way to hardware.
  CHECK(indices({"lo=", "mlx5_0=93:00.0"}) == std::vector<int>(8, 1));
}

TEST_CASE("nic choice: places that are not known") {
  const Topology topology = machine(kEightAndEight);
  // A GPU that the machine does not show: any, another for each.
  const Ids hidden = chosen(topology.get(), question({"a0:00.0", "a1:00.0", "nonsense"}, kShuffled));
  CHECK(std::set<std::string>(hidden.begin(), hidden.end()).size() == 3);
  // A NIC that it does not show is farther than any that it does.
  CHECK(chosen(topology.get(), question({"10:00.0"}, {"a=a0:00.0", "b=93:00.0"})) == Ids{"93:00.0"});
  // Without a topology the order of the bus ids has to do.
  CHECK(chosen(nullptr, question(kEightGpus, kShuffled)) == kEightNics);
  // A text without an end is read no further than it goes, and is no id.
  NicQuestion q = question({"10:00.0"}, {"a=11:00.0", "b=93:00.0"});
  std::fill(std::begin(q.devices[0].pciBusId), std::end(q.devices[0].pciBusId), '1');
  CHECK(chooseNic(topology.get(), q).device == 1);
  q.local = 1;
  CHECK_THROWS_AS(chooseNic(topology.get(), q), Error);
}

TEST_CASE("nic choice: on this machine") {
  const std::vector<uint32_t> cpus = allowedCpus();
  CHECK(!cpus.empty());
  NicQuestion q = question({"", ""}, {"a=11:00.0", "b=13:00.0"});
  q.cpus = cpus;
  for (q.local = 0; q.local < 2; ++q.local) {
    const NicChoice choice = chooseNic(q);
    INFO(choice.reason);
    CHECK(choice.reason.find("libhwloc") == std::string::npos);  // it was found, and had all that is called
    CHECK(choice.reason.find("cannot describe") == std::string::npos);
    // Made up, so that they are equally near.  Should the machine have one of them, that one is nearer.
    CHECK(choice.device >= 0);
    CHECK(choice.device < 2);
  }
}

}  // namespace
}  // namespace mk
