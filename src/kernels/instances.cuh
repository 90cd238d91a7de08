// For the files of instances: the element type that stands for a type, and which instances there are.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/kernel_table.h"

namespace mk::kernels {

template <Type type>
using ElementOf = std::conditional_t<type == Type::bf16, __nv_bfloat16, __half>;

// Only plain products have turned, spanning, slim or medium tiles.  (To name the kernel of others would be to compile it.)
template <class C>
constexpr bool kInstantiated =
    !(C::kGeneral && (C::kTurned || C::kSpanning || C::kN == sched::kSlimCols || C::kN == sched::kMediumCols));

}  // namespace mk::kernels
