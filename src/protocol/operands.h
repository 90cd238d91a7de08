// Operands of a matrix product, as agents of every platform take them.
#pragma once

#include <cstdint>

#include "sched/common.h"

namespace mk::protocol {

enum class Type : uint32_t { f16, bf16, f32 };
MK_HD constexpr uint32_t typeBytes(Type t) { return t == Type::f32 ? 4 : 2; }

// Applied once, by who finishes an element.  gelu: x * Phi(x), by the error function.
enum class Activation : uint32_t { none, relu, gelu, silu };

// Of one rank.  Strides are in elements; the last stride of every matrix is 1; bases and rows are multiples of 16 bytes.
// out: `in`, or f32.  wire, what travels as a partial result: `out`, or f32.
struct GemmOperands {
  Type in = Type::bf16, out = Type::bf16, wire = Type::bf16, biasType = Type::f32;
  uint64_t k = 0;
  const void* a = nullptr;
  uint64_t aStride = 0;
  const void* b = nullptr;
  uint64_t bStride = 0;
  bool bTransposed = false;  // B is (N, K)
  char* c = nullptr;
  uint64_t cStride = 0;
  const void* bias = nullptr;
  float alpha = 1, beta = 0;
  Activation activation = Activation::none;
};

// Nothing is to be done to the sums but to round them.
MK_HD constexpr bool isPlain(const GemmOperands& op) {
  return op.alpha == 1.0f && op.beta == 0.0f && op.bias == nullptr && op.activation == protocol::Activation::none;
}

}  // namespace mk::protocol
