// Element types of the perf programs and their data: random inputs that every rank can reproduce, and exact conversion to
// double.  Nothing here comes from the library, so that a fault there cannot hide in the check.  Called by the programs'
// main files and by check.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mk::perf {

enum class Type { bf16, fp16, fp32 };

struct TypeInfo {
  const char* name;
  uint32_t dtype;   // mkDataType_t
  size_t bytes;     // of one element
  double roundoff;  // largest relative error of rounding to nearest
  double
      underflow;  // largest absolute error of rounding where the relative one does not hold: below the normal numbers
};
const TypeInfo& info(Type type);

// What a stream of random numbers is for; part of its seed.
enum class Role : uint64_t { a = 1, b = 2, oldC = 3, bias = 4 };
// Streams that all ranks share take rank -1.
uint64_t seedOf(Role role, int64_t m, int64_t launch, int rank);

// Uniform in [-1, 1], rounded to the type.
void fillUniform(Type type, void* data, int64_t count, uint64_t seed);
// Quiet NaNs with a payload that arithmetic does not make.
void fillNaN(Type type, void* data, int64_t count);
// Exact.
void toDouble(Type type, const void* source, int64_t count, double* destination);
// Of the bytes; differs, but for an accident, wherever one bit does.
uint64_t hash(const void* data, size_t bytes);

struct FreeDeleter {
  void operator()(void* memory) const;
};
using Memory = std::unique_ptr<void, FreeDeleter>;
// Aligned to 64 bytes; zero bytes give a valid address too.  Throws std::bad_alloc.
Memory allocate(size_t bytes);

}  // namespace mk::perf
