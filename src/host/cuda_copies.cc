// HeapCopies of the CUDA platform: by the copy engines, on streams that no kernel runs on.  What comes in goes by the stream that
// raises flags, so that each comes behind its payload.
#include <vector>

#include "host/cuda_platform.h"
#include "host/log.h"

namespace mk::cuda {

namespace {

class CudaCopies final : public HeapCopies {
 public:
  // flags: the stream of raiseFlag().
  CudaCopies(CudaPlatform& platform, char* heap, cudaStream_t flags, uint32_t marks)
      : platform_(platform), heap_(heap), flags_(flags) {
    const OnDevice on(platform_.device());
    check(cudaStreamCreateWithFlags(&out_, cudaStreamNonBlocking), "creating a stream");
    for (std::vector<cudaEvent_t>& events : events_) {
      events.resize(marks + 1);
      for (cudaEvent_t& event : events)
        check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    }
  }
  ~CudaCopies() override {
    try {
      const OnDevice on(platform_.device());
      for (cudaStream_t stream : {out_, flags_}) check(cudaStreamSynchronize(stream), "ending copies");
      cudaStreamDestroy(out_);
      for (const std::vector<cudaEvent_t>& events : events_)
        for (cudaEvent_t event : events) cudaEventDestroy(event);
      if (pinned_ != nullptr) cudaHostUnregister(pinned_);
    } catch (const std::exception& e) {
      MK_WARN(proxy, "device %d: %s", platform_.device(), e.what());
    }
  }

  void pin(void* memory, uint64_t bytes) override {
    const OnDevice on(platform_.device());
    check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "pinning host memory");
    pinned_ = memory;
  }
  void copyOut(void* to, uint64_t offset, uint64_t bytes) override {
    check(cudaMemcpyAsync(to, heap_ + offset, bytes, cudaMemcpyDeviceToHost, out_), "copying out of the heap");
  }
  void copyIn(uint64_t offset, const void* from, uint64_t bytes) override {
    check(cudaMemcpyAsync(heap_ + offset, from, bytes, cudaMemcpyHostToDevice, flags_), "copying into the heap");
  }
  void raise(uint64_t offset, uint64_t value) override { platform_.raiseFlag(offset, value); }
  uint64_t mark(Lane lane) override {
    const uint64_t number = ++given_[lane];
    check(cudaEventRecord(event(lane, number), lane == out ? out_ : flags_), "marking a copy");
    return number;
  }
  bool passed(Lane lane, uint64_t mark) override {
    if (done_[lane] >= mark) return true;
    const cudaError_t e = cudaEventQuery(event(lane, mark));
    if (e == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check(e, "copying between the heap and host memory");
    done_[lane] = mark;
    return true;
  }

 private:
  cudaEvent_t event(Lane lane, uint64_t number) const { return events_[lane][number % events_[lane].size()]; }

  CudaPlatform& platform_;
  char* const heap_;
  cudaStream_t const flags_;
  cudaStream_t out_ = nullptr;
  std::vector<cudaEvent_t> events_[2];
  uint64_t given_[2] = {}, done_[2] = {};
  void* pinned_ = nullptr;
};

}  // namespace

std::unique_ptr<HeapCopies> CudaPlatform::makeCopies(uint32_t marks) {
  return std::make_unique<CudaCopies>(*this, memory_.heaps[memory_.place.local], flags_, marks);
}

}  // namespace mk::cuda
