// For the files of instances: the element type that stands for a type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/kernel_table.h"

namespace mk::kernels {

template <Type type>
using ElementOf = std::conditional_t<type == Type::bf16, __nv_bfloat16, __half>;

}  // namespace mk::kernels
