// The chosen libfabric provider: its devices, what it can do and what it asks of us.  Made by init, lives as long as the
// plugin's context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "library.h"
#include "settings.h"

namespace mk::plugin::efa {

using Info = std::shared_ptr<fi_info>;

struct Device {
  Info info;
  std::string name;
  std::string pciBusId;  // "" if none
  uint64_t bytesPerSecond = 0;
};

class Provider {
 public:
  // Throws Failure if the library cannot be loaded or the provider has no device that will do.
  explicit Provider(Settings settings);

  const Settings& settings() const { return settings_; }
  const Library& library() const { return library_; }
  const std::vector<Device>& devices() const { return devices_; }
  uint64_t maxBytes() const { return maxBytes_; }
  // How a receiver learns who has written: from the upper half of the 64 bits that travel with a write, or, where the
  // provider carries 32 bits, from the source address that it reports.
  bool senderInData() const { return senderInData_; }
  bool gpuMemory() const { return gpuMemory_; }

 private:
  std::vector<Device> find(bool gpuMemory, bool senderInData) const;
  Info query(fi_info* hints, int* result) const;
  std::string whyNone() const;

  const Settings settings_;
  const Library library_;
  std::vector<Device> devices_;
  uint64_t maxBytes_ = 0;
  bool senderInData_ = false, gpuMemory_ = false;
};

}  // namespace mk::plugin::efa
