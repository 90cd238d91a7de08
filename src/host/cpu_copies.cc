// HeapCopies of the CPU platform.  Its network reaches the heap, so this stands for a GPU's copy engine in tests of staging, and
// like one it is late: nothing is done before it has been asked for twice.
#include <cstring>
#include <deque>

#include "host/cpu_platform.h"

namespace mk {

namespace {

class CpuCopies final : public HeapCopies {
 public:
  CpuCopies(CpuPlatform& platform, char* heap) : platform_(platform), heap_(heap) {}
  ~CpuCopies() override = default;

  void pin(void*, uint64_t) override {}
  void copyOut(void* to, uint64_t offset, uint64_t bytes) override { add(out, {to, heap_ + offset, bytes, 0, 0}); }
  void copyIn(uint64_t offset, const void* from, uint64_t bytes) override {
    add(in, {heap_ + offset, from, bytes, 0, 0});
  }
  void raise(uint64_t offset, uint64_t value) override { add(in, {nullptr, nullptr, 0, offset, value}); }
  uint64_t mark(Lane lane) override { return lanes_[lane].given; }
  bool passed(Lane lane, uint64_t mark) override {
    Queue& q = lanes_[lane];
    if (q.done >= mark) return true;
    q.asked = !q.asked;
    if (q.asked) return false;
    for (; q.done < mark; ++q.done, q.steps.pop_front()) carryOut(q.steps.front());
    return true;
  }

 private:
  struct Step {
    void* to;  // null: a flag
    const void* from;
    uint64_t bytes, flag, value;
  };
  struct Queue {
    std::deque<Step> steps;
    uint64_t given = 0, done = 0;
    bool asked = false;
  };
  void add(Lane lane, const Step& step) {
    lanes_[lane].steps.push_back(step);
    ++lanes_[lane].given;
  }
  void carryOut(const Step& s) {
    if (s.to != nullptr)
      std::memcpy(s.to, s.from, s.bytes);
    else
      platform_.raiseFlag(s.flag, s.value);
  }

  CpuPlatform& platform_;
  char* const heap_;
  Queue lanes_[2];
};

}  // namespace

std::unique_ptr<HeapCopies> CpuPlatform::makeCopies(uint32_t) {
  return std::make_unique<CpuCopies>(*this, memory_.heaps[memory_.place.local]);
}

}  // namespace mk
