// Which of a transport's devices a rank opens: the nearest to its GPU, or to its processors where it has no GPU; and another
// one for each rank where several are equally near.  Called once while a communicator's network is set up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mkernel/transport.h"

struct hwloc_topology;

namespace mk {

struct NicQuestion {
  std::vector<std::string> gpus;  // PCI bus ids of the GPUs of the node's ranks, by local rank; "": no GPU
  uint32_t local = 0;             // which of them asks
  std::vector<uint32_t> cpus;     // that it may run on; they count where it has no GPU
  std::vector<mkTransportDevice_t> devices;
};

struct NicChoice {
  int device = 0;
  std::string reason;  // for the log
};

// Devices are told by PCI bus id alone: names and order are the system's whim.  If no device has one, the first.  Ranks that
// ask the same, but for `local` and `cpus`, spread over what is equally near; ranks with a GPU as evenly as can be.
// topology: of the node, with its PCI devices and bridges; null: not known, so that everything is equally near.
NicChoice chooseNic(hwloc_topology* topology, const NicQuestion& question);

// On this machine.  hwloc is loaded here, and only if there is something to choose: the library needs nothing beyond C and
// C++ to be loaded, and without hwloc everything is equally near.
NicChoice chooseNic(const NicQuestion& question);

// The processors that the calling thread may run on; empty: not known.
std::vector<uint32_t> allowedCpus();

}  // namespace mk
