// The result of an operation beside a reference in fp64.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "ops/matrix.h"
#include "ops/values.h"

namespace test {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline double roundOff(mkDataType_t t) { return t == mkFloat32 ? 0x1p-24 : t == mkFloat16 ? 0x1p-11 : 0x1p-8; }

struct Reference {
  Matrix product;           // of A and B
  Matrix magnitude;         // the same of their absolute values
  double travel = 0;        // what elements lose as they travel, as a share of their magnitude
  double mostRelative = 0;  // error of the whole
  uint64_t owner = 0;       // whose bias and old C these are
};

// Throws std::string.  An element's bound follows from its magnitude, with a little room for fp32 sums, and from the rounding of
// the result.
template <class OneCase>
void checkResult(const OneCase& c, const GuardedMatrix& result, const Reference& reference) {
  const int64_t rows = reference.product.rows(), cols = reference.product.cols();
  double errorNorm = 0, refNorm = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double ref = c.alpha * reference.product(i, j);
      if (c.beta != 0)
        ref += static_cast<double>(c.beta) * element(c.out, c.seed, 4, reference.owner, uint64_t(i), uint64_t(j));
      if (c.bias) ref += element(c.out, c.seed, 3, reference.owner, 0, uint64_t(j));
      ref = activate(c.activation, ref);
      const double bound =
          slope(c.activation) * std::abs(c.alpha) * reference.magnitude(i, j) * (reference.travel + 0x1p-20) +
          std::abs(ref) * roundOff(c.out) * 1.01 + 1e-6;
      const double value = result.value(i, j), error = std::abs(value - ref);
      if (!(error <= bound)) {
        // As before an operation.
        int64_t poisoned = 0;
        for (int64_t at = 0; at < rows * cols; ++at) poisoned += std::isnan(result.value(at / cols, at % cols)) ? 1 : 0;
        throw std::to_string(poisoned) + " elements are not numbers; C(" + std::to_string(i) + ", " +
            std::to_string(j) + ") is " + std::to_string(value) + ", should be " + std::to_string(ref) + " within " +
            std::to_string(bound) + " (" + c.text() + ")";
      }
      errorNorm += error * error;
      refNorm += ref * ref;
    }
  }
  const double relative = refNorm > 0 ? std::sqrt(errorNorm / refNorm) : 0;
  if (!(relative <= reference.mostRelative)) throw "relative error " + std::to_string(relative) + " (" + c.text() + ")";
}

}  // namespace test
