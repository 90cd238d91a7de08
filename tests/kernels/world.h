// Ranks on two GPUs of one process, or, where there is but one, all on that, for tests of the GEMM+AllReduce kernel: memory, inputs, references, launches, and a pump
// that stands for the proxy where the ranks are two nodes.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/gemm_ar.h"

namespace mk::kernels::test {

using protocol::Type;
using protocol::typeBytes;

void check(cudaError_t e, const char* what, int line);
#define CUDA(call) ::mk::kernels::test::check((call), #call, __LINE__)

constexpr int kRanks = 2;
constexpr int kMostRanks = 4;  // two or more on each GPU, which share its multiprocessors
int deviceCount();             // that are used

struct Problem {
  uint64_t m = 0, n = 0, k = 0;
  Type in = Type::bf16, out = Type::bf16, wire = Type::bf16;
  bool bTransposed = true;
  float alpha = 1, beta = 0;
  bool bias = false;
  bool staged = false;
  uint32_t tileN = 0;       // forced, or 0
  uint32_t chunkTiles = 0;  // likewise
  uint32_t exchange = 0;
  uint32_t pad = 0;  // elements between rows of C
  int pace = -1;     // ns, or the choice's
  int bands = 0;
  int early = -1;
  uint32_t clusters = 0;  // that compute, or the choice's
  std::string name() const;
};

struct Rank {
  int index = 0;
  int device = 0;
  cudaStream_t stream = nullptr, side = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  char* heap = nullptr;
  uint64_t* own = nullptr;
  protocol::FailRecord* record = nullptr;
  mkCommand_t* ring = nullptr;
  char* a[2] = {};  // two sets of inputs
  char* work = nullptr;
  char* b = nullptr;
  char* c = nullptr;
  char* bias = nullptr;
  float* partial[2] = {};  // this rank's product in fp32, of each set
  unsigned long long* counts = nullptr;
};

class World {
 public:
  // nodes x locals, up to kMostRanks; 1 x 1 twice: two ranks that know nothing of each other.
  World(Rank* ranks, uint32_t nodes, uint32_t locals, uint64_t workspace);
  void reset();  // all words and flags to their state after initialisation
  RankMemory memory(int me) const;
  int count() const { return nodes_ * locals_ == 1 ? kRanks : static_cast<int>(nodes_ * locals_); }
  uint32_t locals() const { return locals_; }
  uint32_t nodes() const { return nodes_; }

  // Of one rank, and a set of inputs.
  GemmArOperands operands(const Problem& p, int me, int set) const;
  sched::KernelChoice choose(const Problem& p) const;
  sched::GemmArPlan plan(const Problem& p, int me) const;
  // set: inputs 0 or 1, or 2: the work copy.
  void launch(int me, const Problem& p, int set, uint32_t hash = 0);
  // Waits for the rank's stream.  After `limitMs` it revokes; false then, or if there is a record.
  bool sync(int me, int limitMs = 8000);
  void revoke(int me);
  void poisonBanks();

  uint64_t timeoutNs = 2'000'000'000;

 private:
  Rank* const ranks_;
  const uint32_t nodes_, locals_;
  const uint64_t workspace_;
  sched::HeapLayout layout_;
  sched::ControlLayout control_;
};

// Runs fn(0), fn(1), ... on threads of their own.
void both(const std::function<void(int)>& fn, int count = kRanks);

// Carries out the commands of a rank's ring by copies between the devices, in order.
class Pump {
 public:
  Pump(Rank* ranks, const World& world, int me);
  ~Pump();

 private:
  void loop();
  Rank* const ranks_;
  const World& world_;
  const int me_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

constexpr uint64_t kMaxElements = 16384ull * 16384;
constexpr uint64_t kHeapBytes = 1536ull << 20;
constexpr uint64_t kRingSlots = 1024;

void makeRanks(Rank* ranks);
void fill(Rank& r, const Problem& p);
void makeReference(Rank& r, const Problem& p, int set);
// Compares all ranks' C with the references' sum: number of wrong elements, of differences between the ranks, and of
// elements between the rows that have been written.  `before` filled C with poison or, for beta, with known values.
struct Verdict {
  unsigned long long wrong = 0, different = 0, outside = 0;
  double worst = 0;  // largest error over its bound
  bool good() const { return wrong + different + outside == 0; }
};
void prepareC(Rank& r, const Problem& p);
Verdict judge(Rank* ranks, const World& world, const Problem& p, int set);

}  // namespace mk::kernels::test
