#include "host/cuda_cards.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

#include "host/cuda_api.h"

namespace mk::cuda {
namespace {

constexpr uint64_t kHostPage = 4096;

}  // namespace

CardMap::~CardMap() {
  try {
    const OnDevice on(device_);
    for (const auto& [begin, end] : ranges_) static_cast<void>(cudaHostUnregister(reinterpret_cast<void*>(begin)));
    static_cast<void>(cudaGetLastError());
  } catch (const Error&) {  // the device has failed, and has taken its mappings with it
  }
}

// The device's address of host memory or of a register.
char* CardMap::reach(void* host, uint64_t bytes, const char* what) {
  const auto first = reinterpret_cast<uint64_t>(host);
  const uint64_t end = (first + bytes + kHostPage - 1) / kHostPage * kHostPage;
  uint64_t at = first / kHostPage * kHostPage;
  while (at < end) {
    const auto next = ranges_.upper_bound(at);
    if (next != ranges_.begin() && std::prev(next)->second > at) {
      at = std::prev(next)->second;
      continue;
    }
    const uint64_t until = next == ranges_.end() ? end : std::min(end, next->first);
    const auto begin = reinterpret_cast<void*>(at);
    cudaError_t e = cudaHostRegister(begin, until - at, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (e != cudaSuccess) {
      // A card's registers are no memory that could be pinned.
      static_cast<void>(cudaGetLastError());
      e = cudaHostRegister(begin, until - at,
                           cudaHostRegisterMapped | cudaHostRegisterPortable | cudaHostRegisterIoMemory);
    }
    check(e, what);
    ranges_.emplace(at, until);
    at = until;
  }
  void* device = nullptr;
  void* last = nullptr;
  check(cudaHostGetDevicePointer(&device, host, 0), what);
  check(cudaHostGetDevicePointer(&last, static_cast<char*>(host) + bytes - 1, 0), what);
  if (static_cast<char*>(last) - static_cast<char*>(device) != static_cast<int64_t>(bytes) - 1)
    fail(mkErrorUnhandledCuda, "%s: %llu bytes in one piece on the host are not in one on the device", what,
         static_cast<unsigned long long>(bytes));
  return static_cast<char*>(device);
}

protocol::Mlx5Queue CardMap::map(const protocol::Mlx5Queue& queue) {
  const OnDevice on(device_);
  protocol::Mlx5Queue q = queue;
  q.entries = reinterpret_cast<uint64_t*>(reach(
      queue.entries, uint64_t{queue.entryCount} * protocol::Mlx5Queue::kBlockBytes, "mapping a network card's queue"));
  q.record = reinterpret_cast<uint32_t*>(
      reach(queue.record, sizeof(*queue.record), "mapping a network card's doorbell record"));
  q.doorbell =
      reinterpret_cast<uint64_t*>(reach(queue.doorbell, sizeof(*queue.doorbell), "mapping a network card's doorbell"));
  return q;
}

}  // namespace mk::cuda
