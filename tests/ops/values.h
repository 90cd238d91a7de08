// Elements of operands: written, read, and known by where they are; and tensors made of them.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "mkernel.h"

namespace test {

inline size_t sizeOf(mkDataType_t t) { return t == mkFloat32 ? 4 : 2; }

inline void put(mkDataType_t t, char* to, float value) {
  if (t == mkFloat32) {
    std::memcpy(to, &value, 4);
  } else if (t == mkFloat16) {
    const Eigen::half h(value);
    std::memcpy(to, &h, 2);
  } else {
    const Eigen::bfloat16 b(value);
    std::memcpy(to, &b, 2);
  }
}
inline float get(mkDataType_t t, const char* from) {
  if (t == mkFloat32) {
    float f;
    std::memcpy(&f, from, 4);
    return f;
  }
  if (t == mkFloat16) {
    Eigen::half h;
    std::memcpy(&h, from, 2);
    return static_cast<float>(h);
  }
  Eigen::bfloat16 b;
  std::memcpy(&b, from, 2);
  return static_cast<float>(b);
}

// Element (row, col) of a matrix known by (seed, which, rank): the same wherever it is computed.
inline float element(mkDataType_t t, uint64_t seed, uint64_t which, uint64_t rank, uint64_t row, uint64_t col) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + which * 0xbf58476d1ce4e5b9u + rank * 0x94d049bb133111ebu +
               row * 0x2545f4914f6cdd1du + col;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 31;
  const float uniform = static_cast<float>(static_cast<double>(x >> 11) / 9007199254740992.0 * 2 - 1);
  char rounded[4];
  put(t, rounded, uniform);
  return get(t, rounded);
}

inline mkTensor_t matrix(const void* data, mkDataType_t t, int64_t rows, int64_t cols, int64_t stride) {
  mkTensor_t x = {};
  x.data = const_cast<void*>(data);
  x.dtype = static_cast<uint32_t>(t);
  x.ndim = 2;
  x.dims[0] = rows;
  x.dims[1] = cols;
  if (stride != cols) {
    x.strides[0] = stride;
    x.strides[1] = 1;
  }
  return x;
}

inline double activate(uint32_t activation, double x) {
  switch (activation) {
    case MK_ACTIVATION_RELU:
      return std::max(x, 0.0);
    case MK_ACTIVATION_GELU:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case MK_ACTIVATION_SILU:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}
// Largest slope, by which errors of its argument grow.
inline double slope(uint32_t activation) {
  return activation == MK_ACTIVATION_GELU || activation == MK_ACTIVATION_SILU ? 1.13 : 1;
}

}  // namespace test
