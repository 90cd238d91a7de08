// See cuda_carrier.h.
#include "cuda_carrier.h"

#include <algorithm>
#include <thread>

#include "common/failure.h"

namespace mk::plugin::loopback::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

Context currentContext(const Driver& driver) {
  Context current = nullptr;
  const Result result = driver.ctxGetCurrent(&current);
  if (result != kSuccess || current == nullptr)
    fail(mkErrorInvalidUsage,
         "CUDA memory needs the GPU's context current in the calling thread, which has none (%s): "
         "cudaSetDevice or cuCtxSetCurrent must come before",
         result != kSuccess ? driver.describe("cuCtxGetCurrent", result).c_str() : "cuCtxGetCurrent: NULL");
  return current;
}

}  // namespace

Lanes::Lanes(size_t peers) : driver_(driver()), context_(currentContext(driver_)), lanes_(peers) {
  driver_.check(driver_.ctxGetDevice(&device_), "cuCtxGetDevice", "the endpoint's GPU");
}

Lanes::~Lanes() {
  const UseContext use(driver_, context_);
  if (drain()) {
    lanes_.clear();
    mappings_.clear();
    return;
  }
  MK_PLUGIN_WARN("copies to CUDA memory are under way still %lld s after close: what they use is kept",
                 static_cast<long long>(kDrainTime.count()));
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane != nullptr) lane->abandon();
  for (const std::shared_ptr<Mapping>& mapping : mappings_) mapping->abandon();
}

void Lanes::requireContext() const {
  if (const Context current = currentContext(driver_); current != context_)
    fail(mkErrorInvalidUsage,
         "the calling thread's CUDA context (%p) is not that of the endpoint's other CUDA memory (%p, device %d): "
         "one endpoint serves one GPU",
         static_cast<void*>(current), static_cast<void*>(context_), device_);
}

void Lanes::checkMemory(const mkTransportMemory_t& memory) {
  requireContext();
  cuda::checkMemory(driver_, memory);
}

std::shared_ptr<Mapping> Lanes::map(int peer, int fd, uint64_t bytes) {
  requireContext();
  sweep();
  std::unique_ptr<Lane>& lane = lanes_[static_cast<size_t>(peer)];
  if (lane == nullptr) lane = std::make_unique<Lane>(driver_, peer);
  mappings_.reserve(mappings_.size() + 1);
  auto mapping = std::make_shared<Mapping>(driver_, fd, bytes, device_);
  mappings_.push_back(mapping);
  lane->probe(mapping->base());
  return mapping;
}

// Only in calls that may take their time: unmapping may wait for the GPU.
void Lanes::sweep() {
  const auto unused = [](const std::shared_ptr<Mapping>& mapping) { return mapping.use_count() == 1; };
  if (std::none_of(mappings_.begin(), mappings_.end(), unused) || !drain()) return;
  const UseContext use(driver_, context_);
  std::erase_if(mappings_, unused);
}

void Lanes::flush() {
  const UseContext use(driver_, context_);
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane != nullptr) lane->flush();
}

void Lanes::collect(Sink& sink) {
  const UseContext use(driver_, context_);
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane != nullptr) lane->collect(sink);
}

bool Lanes::drain() {
  const UseContext use(driver_, context_);
  const auto deadline = Clock::now() + kDrainTime;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    while (lane != nullptr && !lane->idle()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(20us);
    }
  }
  return true;
}

}  // namespace mk::plugin::loopback::cuda
