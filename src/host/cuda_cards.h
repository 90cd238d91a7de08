// The memory of network cards' queues, mapped for a GPU's agents: entries and records, which are host memory, and doorbells,
// which are registers of the card.  Made by CudaPlatform when it is handed queues.
#pragma once

#include <cstdint>
#include <map>

#include "protocol/mlx5_queue.h"

namespace mk::cuda {

class CardMap {
 public:
  explicit CardMap(int device) : device_(device) {}
  // The queues' memory must still be there.
  ~CardMap();
  CardMap(const CardMap&) = delete;
  CardMap& operator=(const CardMap&) = delete;

  // The queue with the device's addresses in place of the host's.  Several queues may share pages.  Throws
  // mkErrorUnhandledCuda.
  protocol::Mlx5Queue map(const protocol::Mlx5Queue& queue);

 private:
  char* reach(void* host, uint64_t bytes, const char* what);

  const int device_;
  std::map<uint64_t, uint64_t> ranges_;  // registered here: begin, end; whole pages, none of them twice
};

}  // namespace mk::cuda
