#include "emu/tile_engine.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>

namespace mk::emu {

namespace {

constexpr float kInvSqrt2 = 0.70710678118654752440f;
constexpr uint64_t kPanel = 256;  // columns of A and rows of B converted at a time

template <class T>
void widen(const T* from, uint64_t count, float* to) {
  for (uint64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
void widen(Type type, const void* base, uint64_t offset, uint64_t count, float* to) {
  switch (type) {
    case Type::f16:
      widen(static_cast<const Eigen::half*>(base) + offset, count, to);
      break;
    case Type::bf16:
      widen(static_cast<const Eigen::bfloat16*>(base) + offset, count, to);
      break;
    case Type::f32:
      std::memcpy(to, static_cast<const float*>(base) + offset, count * sizeof(float));
      break;
  }
}

template <class T>
void narrow(const float* from, uint64_t count, char* to) {
  for (uint64_t i = 0; i < count; ++i) {
    const T value(from[i]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}
void narrow(Type type, const float* from, uint64_t count, char* to) {
  switch (type) {
    case Type::f16:
      narrow<Eigen::half>(from, count, to);
      break;
    case Type::bf16:
      narrow<Eigen::bfloat16>(from, count, to);
      break;
    case Type::f32:
      std::memcpy(to, from, count * sizeof(float));
      break;
  }
}

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void activate(protocol::Activation activation, float* values, uint64_t count) {
  switch (activation) {
    case protocol::Activation::none:
      break;
    case protocol::Activation::relu:
      for (uint64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? 0 : values[i];  // NaN stays
      break;
    case protocol::Activation::gelu:
      for (uint64_t i = 0; i < count; ++i) values[i] *= 0.5f * std::erfc(-values[i] * kInvSqrt2);
      break;
    case protocol::Activation::silu:
      for (uint64_t i = 0; i < count; ++i) values[i] /= 1.0f + std::exp(-values[i]);
      break;
  }
}

uint64_t count(const sched::Tile& t) { return static_cast<uint64_t>(t.rows) * t.cols; }

}  // namespace

// Left uninitialised: the pages are touched when a tile first needs them.
TileEngine::TileEngine()
    : acc_(new float[size_t{kMaxTileM} * kMaxTileN]),
      a_(new float[kMaxTileM * kPanel]),
      b_(new float[kMaxTileN * kPanel]),
      done_(new char[size_t{kMaxTileM} * kMaxTileN * sizeof(float)]) {}

void TileEngine::multiply(const GemmOperands& op, const sched::Tile& t) {
  std::fill_n(acc_.get(), count(t), 0.0f);
  const auto rows = static_cast<Eigen::Index>(t.rows);
  const auto cols = static_cast<Eigen::Index>(t.cols);
  Eigen::Map<Matrix> acc(acc_.get(), rows, cols);
  for (uint64_t k = 0; k < op.k; k += kPanel) {
    const uint64_t depth = std::min(kPanel, op.k - k);
    const auto deep = static_cast<Eigen::Index>(depth);
    for (uint64_t r = 0; r < t.rows; ++r) widen(op.in, op.a, (t.row + r) * op.aStride + k, depth, &a_[r * depth]);
    const Eigen::Map<const Matrix> a(a_.get(), rows, deep);
    if (op.bTransposed) {
      for (uint64_t c = 0; c < t.cols; ++c) widen(op.in, op.b, (t.col + c) * op.bStride + k, depth, &b_[c * depth]);
      const Eigen::Map<const Matrix> b(b_.get(), cols, deep);
      acc.noalias() += a * b.transpose();
    } else {
      for (uint64_t d = 0; d < depth; ++d) widen(op.in, op.b, (k + d) * op.bStride + t.col, t.cols, &b_[d * t.cols]);
      const Eigen::Map<const Matrix> b(b_.get(), deep, cols);
      acc.noalias() += a * b;
    }
  }
}

void TileEngine::storePacked(const sched::Tile& t, Type type, char* to) const {
  narrow(type, acc_.get(), count(t), to);
}

void TileEngine::addPacked(const sched::Tile& t, Type type, const char* from, bool replace) {
  float* row = a_.get();  // as scratch
  for (uint64_t r = 0; r < t.rows; ++r) {
    float* acc = &acc_[r * t.cols];
    for (uint64_t c = 0; c < t.cols; c += kPanel) {
      const uint64_t n = std::min<uint64_t>(kPanel, t.cols - c);
      widen(type, from, r * t.cols + c, n, row);
      for (uint64_t i = 0; i < n; ++i) acc[c + i] = replace ? row[i] : acc[c + i] + row[i];
    }
  }
}

void TileEngine::finish(const GemmOperands& op, const sched::Tile& t) {
  float* scratch = a_.get();
  for (uint64_t r = 0; r < t.rows; ++r) {
    float* acc = &acc_[r * t.cols];
    for (uint64_t c = 0; c < t.cols; c += kPanel) {
      const uint64_t n = std::min<uint64_t>(kPanel, t.cols - c);
      for (uint64_t i = 0; i < n; ++i) acc[c + i] *= op.alpha;
      if (op.beta != 0) {
        widen(op.out, op.c, (t.row + r) * op.cStride + t.col + c, n, scratch);
        for (uint64_t i = 0; i < n; ++i) acc[c + i] += op.beta * scratch[i];
      }
      if (op.bias != nullptr) {
        widen(op.biasType, op.bias, t.col + c, n, scratch);
        for (uint64_t i = 0; i < n; ++i) acc[c + i] += scratch[i];
      }
    }
  }
  activate(op.activation, acc_.get(), count(t));
  narrow(op.out, acc_.get(), count(t), done_.get());
}

void TileEngine::storeFinished(const sched::Tile& t, Type type, char* c, uint64_t stride) const {
  const uint64_t size = typeBytes(type);
  for (uint64_t r = 0; r < t.rows; ++r)
    std::memcpy(c + ((t.row + r) * stride + t.col) * size, done_.get() + r * t.cols * size, t.cols * size);
}

void TileEngine::storeFinishedPacked(const sched::Tile& t, Type type, char* to) const {
  std::memcpy(to, done_.get(), count(t) * typeBytes(type));
}

void TileEngine::loadFinishedPacked(const sched::Tile& t, Type type, const char* from) {
  std::memcpy(done_.get(), from, count(t) * typeBytes(type));
}

}  // namespace mk::emu
