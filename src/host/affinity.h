// Where the library's own threads run.  Used by the proxy, which must not share a core with a caller that spins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mk {

// Processor numbers of a list as the kernel writes it: "0-3,8".  Empty if it is not one.
std::vector<uint32_t> parseCpuList(const std::string& text);

// The processors for a thread that should be near a device: those near it that this process may use, unless that is fewer than
// two.  Process managers bind a rank to one core, and there a spinning thread would keep the proxy out for milliseconds.
std::vector<uint32_t> chooseCpus(const std::vector<uint32_t>& nearDevice, const std::vector<uint32_t>& allowed);

// Moves the calling thread near the PCI device; "" or a device that is not known: nothing happens.
void moveNear(const std::string& pciBusId);

}  // namespace mk
