// The CUDA driver, loaded when the first GPU memory is registered or imported and not before: on a machine without one the
// plugin carries host memory as ever.  Used by cuda_memory, cuda_lane and cuda_carrier.
#pragma once

#include <string>

#include "cuda_abi.h"

namespace mk::plugin::loopback::cuda {

struct Driver : Calls {
  // "call: CUDA_ERROR_..."
  std::string describe(const char* call, Result result) const;
  // Throws Failure(mkErrorSystem, "what: call: CUDA_ERROR_...") unless the result is success.
  void check(Result result, const char* call, const std::string& what) const;
};

// Throws Failure(mkErrorNotSupported) where there is no driver, or one that is too old.
const Driver& driver();

// Makes the context current in this thread while it lives; costs nothing where it is so already.
class UseContext {
 public:
  UseContext(const Driver& driver, Context context);
  ~UseContext();
  UseContext(const UseContext&) = delete;
  UseContext& operator=(const UseContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace mk::plugin::loopback::cuda
