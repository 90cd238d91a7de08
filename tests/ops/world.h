// Worlds of ranks that are threads of this process, and cases of the operations with a reference in fp64.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mkernel.h"
#include "ops/matrix.h"

namespace test {

struct World {
  int nodes = 1, locals = 1;
  int ranks() const { return nodes * locals; }
};

// Under ThreadSanitizer every agent is a thread, and all takes some thirty times longer: two worlds then stand for all, and
// streams of operations are shorter.
#if defined(__SANITIZE_THREAD__)
constexpr bool kBrief = true;
#else
constexpr bool kBrief = false;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
std::vector<World> worlds(std::vector<World> all);

// Runs body(comm, rank) on every rank of a new communicator, each in a thread, and destroys it.  Returns what went wrong, one
// text per rank that failed; body throws std::string, or returns normally.  Where an operation's deadline has passed, the text
// has what tells a lost write from a machine that stood still: what the rank's proxy has counted, and how long a thread that
// only sleeps was held up.
std::vector<std::string> runWorld(const World& world, const std::function<void(mkComm_t, int)>& body,
                                  const std::function<void(mkConfig_t&, int)>& configure = {});

// Throws std::string unless the result is `expected`.
void expect(mkResult_t result, const char* what, mkComm_t comm = nullptr, mkResult_t expected = mkSuccess);

struct Case {
  int op = MK_OP_GEMM_ALL_REDUCE;
  int64_t m = 64, n = 64, k = 64;  // k: over all ranks
  mkDataType_t in = mkBfloat16, out = mkBfloat16;
  bool wireF32 = false, transposed = false, window = false, bias = false;
  float alpha = 1, beta = 0;
  uint32_t activation = 0;
  mkTune_t tune = {};  // zero: automatic
  uint64_t seed = 1;
  int64_t padding = 0;  // extra elements per row of A, B and C
  std::string text() const;
};

// Until what is on the stream has ended.
void synchronize(mkStream_t stream);

// One rank's buffers of a case.  Inputs depend on (seed, rank) only.
class Operands {
 public:
  Operands(const Case& c, const World& world, int rank, mkComm_t comm);
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  mkGemmAllReduceArgs_t args() const;  // of a case of that operation
  mkGemmReduceScatterArgs_t scatterArgs() const;
  size_t workspace() const;
  mkTune_t tune() const;  // what was chosen
  void reserve() const;
  mkResult_t launch(mkStream_t stream = nullptr) const;
  void refill(uint64_t seed);  // other inputs; C poisoned again
  // Compares C with the reference; throws std::string.  Checks that padding and guards are untouched.
  void check() const;
  std::vector<uint16_t> outputBits() const;  // for bit-identity between ranks; fp32 as pairs
  void* c() const { return c_->at(0, 0); }
  // Where the operation has A, B and C.
  std::pair<void*, size_t> deviceBytes(char which) const {
    return (which == 'c' ? *c_ : which == 'b' ? *b_ : *a_).memory();
  }

 private:
  template <class Args>
  Args argsOf(uint32_t id) const;
  template <class Call>
  auto withArgs(const Call& call) const;
  Case case_;
  World world_;
  int rank_;
  mkComm_t comm_;
  int64_t kLocal_ = 0;
  int64_t firstRow_ = 0, rows_ = 0;  // of the result, in C
  uint64_t own_ = 0;                 // whose bias and old C these are
  std::unique_ptr<GuardedMatrix> a_, b_, bias_, c_;
  mkTune_t tune_ = {};
};

// Reserves what the case needs and runs it once, checked.
void runCase(const Case& c, const World& world, int rank, mkComm_t comm, mkStream_t stream = nullptr);

// All ranks' bits are equal; throws std::string.  Called by all ranks with a shared place per rank.
class BitCompare {
 public:
  explicit BitCompare(int ranks) : bits_(static_cast<size_t>(ranks)) {}
  void put(int rank, std::vector<uint16_t> bits) { bits_[static_cast<size_t>(rank)] = std::move(bits); }
  bool same(const BitCompare& other) const { return bits_ == other.bits_; }
  bool equal() const {
    for (const auto& b : bits_)
      if (b != bits_[0]) return false;
    return true;
  }

 private:
  std::vector<std::vector<uint16_t>> bits_;
};

}  // namespace test
