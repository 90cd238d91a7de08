#include "host/affinity.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <string_view>

#include "host/log.h"
#include "host/nic_choice.h"

namespace mk {

std::vector<uint32_t> parseCpuList(const std::string& text) {
  std::vector<uint32_t> cpus;
  std::string_view rest = text;
  while (!rest.empty() && std::isspace(static_cast<unsigned char>(rest.back())) != 0) rest.remove_suffix(1);
  const auto number = [&rest](uint32_t* value) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), *value);
    if (error != std::errc() || *value >= CPU_SETSIZE) return false;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return true;
  };
  while (!rest.empty()) {
    uint32_t first = 0, last = 0;
    if (!number(&first)) return {};
    last = first;
    if (!rest.empty() && rest.front() == '-') {
      rest.remove_prefix(1);
      if (!number(&last) || last < first) return {};
    }
    for (uint32_t cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (rest.empty()) break;
    if (rest.front() != ',' || rest.size() == 1) return {};
    rest.remove_prefix(1);
  }
  return cpus;
}

std::vector<uint32_t> chooseCpus(const std::vector<uint32_t>& nearDevice, const std::vector<uint32_t>& allowed) {
  std::vector<uint32_t> both;
  for (const uint32_t cpu : nearDevice)
    if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) both.push_back(cpu);
  return both.size() >= 2 ? both : nearDevice;
}

void moveNear(const std::string& pciBusId) {
  if (pciBusId.empty()) return;
  std::string name = pciBusId;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string text;
  std::getline(std::ifstream("/sys/bus/pci/devices/" + name + "/local_cpulist"), text);
  const std::vector<uint32_t> cpus = chooseCpus(parseCpuList(text), allowedCpus());
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const uint32_t cpu : cpus) CPU_SET(cpu, &set);
  // A container may not have them: then the thread stays where it is.
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0)
    MK_INFO(proxy, "runs on the processors near %s: %s", name.c_str(), text.c_str());
}

}  // namespace mk
