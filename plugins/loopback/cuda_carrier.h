// What an endpoint needs to write peers' GPU memory: the context of its own GPU, a lane for each peer, and the mappings of
// the peers' memory.  Made when the first GPU memory is registered or imported.  Used by endpoint.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda_lane.h"
#include "cuda_memory.h"

namespace mk::plugin::loopback::cuda {

class Lanes {
 public:
  // For the context that is current in this thread.  Throws Failure where there is none, or no driver.
  explicit Lanes(size_t peers);
  // Waits until nothing is under way, within a deadline.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Both throw Failure, also where another context is current than the endpoint's.
  void checkMemory(const mkTransportMemory_t& memory);
  std::shared_ptr<Mapping> map(int peer, int fd, uint64_t bytes);
  // Unmaps what no import uses any more.
  void sweep();

  // Of a peer whose memory has been mapped.
  Lane& lane(int peer) { return *lanes_[static_cast<size_t>(peer)]; }
  void flush();
  void collect(Sink& sink);
  // False: something is under way still after the time that a drain may take.
  bool drain();
  static constexpr std::chrono::seconds kDrainTime{5};

 private:
  void requireContext() const;

  const Driver& driver_;
  Context context_ = nullptr;
  Device device_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by peer; null: none of its memory has been imported
  std::vector<std::shared_ptr<Mapping>> mappings_;
};

}  // namespace mk::plugin::loopback::cuda
