// The kernels by operation, type of inputs, width of tiles and layout of B; each file of instances, compiled once for each type of
// inputs, lean and general, fills a table.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/params.h"

namespace mk::kernels {

template <class Params>
struct KernelEntry {
  void (*kernel)(Params) = nullptr;
  uint32_t sharedBytes = 0;
};
// By 2 * (tileN is 256) + (B has N contiguous); and, where there are such, the kernels of turned tiles and of spanning ones, the
// latter by whether B has N contiguous.
template <class Params>
struct KernelTable {
  KernelEntry<Params> entries[7];
};
constexpr uint32_t kTurnedEntry = 4, kSpanningEntry = 5;

template <class Params, Type in, bool general>
const KernelTable<Params>& kernelTable();
template <>
const KernelTable<GemmArParams>& kernelTable<GemmArParams, Type::bf16, false>();
template <>
const KernelTable<GemmArParams>& kernelTable<GemmArParams, Type::bf16, true>();
template <>
const KernelTable<GemmArParams>& kernelTable<GemmArParams, Type::f16, false>();
template <>
const KernelTable<GemmArParams>& kernelTable<GemmArParams, Type::f16, true>();
template <>
const KernelTable<GemmRsParams>& kernelTable<GemmRsParams, Type::bf16, false>();
template <>
const KernelTable<GemmRsParams>& kernelTable<GemmRsParams, Type::bf16, true>();
template <>
const KernelTable<GemmRsParams>& kernelTable<GemmRsParams, Type::f16, false>();
template <>
const KernelTable<GemmRsParams>& kernelTable<GemmRsParams, Type::f16, true>();
template <>
const KernelTable<AgGemmParams>& kernelTable<AgGemmParams, Type::bf16, false>();
template <>
const KernelTable<AgGemmParams>& kernelTable<AgGemmParams, Type::bf16, true>();
template <>
const KernelTable<AgGemmParams>& kernelTable<AgGemmParams, Type::f16, false>();
template <>
const KernelTable<AgGemmParams>& kernelTable<AgGemmParams, Type::f16, true>();

template <class Params>
const KernelTable<Params>& kernelTable(Type in, bool general) {
  if (in == Type::bf16)
    return general ? kernelTable<Params, Type::bf16, true>() : kernelTable<Params, Type::bf16, false>();
  return general ? kernelTable<Params, Type::f16, true>() : kernelTable<Params, Type::f16, false>();
}

}  // namespace mk::kernels
