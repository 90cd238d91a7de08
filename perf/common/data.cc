// Element types and their data; see data.h.
#include "data.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "mkernel.h"

namespace mk::perf {
namespace {

// One 16-bit floating-point format: the width of its stored fraction and the bias of its exponent.
struct Format {
  int fractionBits;
  int exponentBias;
};
constexpr Format kBf16{7, 127};
constexpr Format kFp16{10, 15};

float decode(Format format, uint16_t bits) {
  const int fraction = bits & ((1 << format.fractionBits) - 1);
  const int exponentMax = (1 << (15 - format.fractionBits)) - 1;
  const int exponent = bits >> format.fractionBits & exponentMax;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == exponentMax) {
    return fraction ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  const int implicit = exponent ? 1 << format.fractionBits : 0;
  const int power = (exponent ? exponent : 1) - format.exponentBias - format.fractionBits;
  return sign * std::ldexp(static_cast<float>(implicit + fraction), power);
}

// Rounds a value of [-1, 1] to nearest.  The formats' values rise with their bits, so the nearest one is found by halving.
uint16_t encode(Format format, const std::vector<float>& decoded, double value) {
  const double magnitude = std::fabs(value);
  uint32_t low = 0, high = static_cast<uint32_t>(format.exponentBias) << format.fractionBits;  // 0 and 1.0
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (decoded[middle] <= magnitude ? low : high) = middle;
  }
  const bool up = decoded[high] - magnitude < magnitude - decoded[low];
  return static_cast<uint16_t>((up ? high : low) | (value < 0 ? 0x8000u : 0u));
}

struct Tables {
  std::vector<float> decoded;     // by the bits
  std::vector<uint16_t> uniform;  // evenly spaced over [-1, 1], rounded
  explicit Tables(Format format) : decoded(65536), uniform(65536) {
    for (uint32_t i = 0; i < 65536; ++i) decoded[i] = decode(format, static_cast<uint16_t>(i));
    for (uint32_t i = 0; i < 65536; ++i) uniform[i] = encode(format, decoded, (i - 32767.5) / 32767.5);
  }
};

const Tables& tables(Type type) {
  static const Tables bf16(kBf16);
  static const Tables fp16(kFp16);
  return type == Type::bf16 ? bf16 : fp16;
}

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

}  // namespace

const TypeInfo& info(Type type) {
  static const TypeInfo infos[] = {
      {"bf16", mkBfloat16, 2, std::ldexp(1.0, -8), std::ldexp(1.0, -134)},
      {"fp16", mkFloat16, 2, std::ldexp(1.0, -11), std::ldexp(1.0, -25)},
      {"fp32", mkFloat32, 4, std::ldexp(1.0, -24), std::ldexp(1.0, -150)},
  };
  return infos[static_cast<int>(type)];
}

uint64_t seedOf(Role role, int64_t m, int64_t launch, int rank) {
  uint64_t seed = 0x6d6b65726e656cu;
  for (uint64_t part : {static_cast<uint64_t>(role), static_cast<uint64_t>(m), static_cast<uint64_t>(launch),
                        static_cast<uint64_t>(rank + 1)}) {
    seed = mix((seed ^ part) + kStep);
  }
  return seed;
}

void fillUniform(Type type, void* data, int64_t count, uint64_t seed) {
  if (type == Type::fp32) {
    float* out = static_cast<float*>(data);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits = mix(seed += kStep) >> 40;  // 24 bits, exact in a float
      out[i] = static_cast<float>(bits) * 0x1p-23f - 1.0f;
    }
    return;
  }
  const std::vector<uint16_t>& uniform = tables(type).uniform;
  uint16_t* out = static_cast<uint16_t*>(data);
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; ++i, bits >>= 16) {
    if (i % 4 == 0) bits = mix(seed += kStep);
    out[i] = uniform[bits & 0xffff];
  }
}

void fillNaN(Type type, void* data, int64_t count) {
  if (type == Type::fp32) {
    uint32_t* out = static_cast<uint32_t*>(data);
    for (int64_t i = 0; i < count; ++i) out[i] = 0x7fc0dead;
  } else {
    uint16_t* out = static_cast<uint16_t*>(data);
    for (int64_t i = 0; i < count; ++i) out[i] = type == Type::bf16 ? 0x7fd5 : 0x7ed5;
  }
}

void toDouble(Type type, const void* source, int64_t count, double* destination) {
  if (type == Type::fp32) {
    const float* in = static_cast<const float*>(source);
    for (int64_t i = 0; i < count; ++i) destination[i] = in[i];
  } else {
    const float* decoded = tables(type).decoded.data();
    const uint16_t* in = static_cast<const uint16_t*>(source);
    for (int64_t i = 0; i < count; ++i) destination[i] = decoded[in[i]];
  }
}

uint64_t hash(const void* data, size_t bytes) {
  const char* in = static_cast<const char*>(data);
  uint64_t result = mix(bytes + kStep);
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, in + at, bytes - at < 8 ? bytes - at : 8);
    result = std::rotl(result ^ word * kStep, 29) * 0xbf58476d1ce4e5b9u;
  }
  return mix(result);
}

void FreeDeleter::operator()(void* memory) const { std::free(memory); }

Memory allocate(size_t bytes) {
  Memory memory(std::aligned_alloc(64, (bytes / 64 + 1) * 64));
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace mk::perf
