// The kernels by operation, type of inputs, width of tiles and layout of B; each file of instances, compiled once for each type of
// inputs, lean and general, fills a table.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "kernels/params.h"

namespace mk::kernels {

template <class Params>
struct KernelEntry {
  void (*kernel)(Params) = nullptr;
  uint32_t sharedBytes = 0;
};
// Tiles of one owner, narrow or wide; then, where there are such, turned ones, spanning ones, and those of 112 and 224 columns.
// In pairs, B is (N, K), or has N contiguous, but for turned, slim and medium ones.
enum KernelEntries : uint32_t {
  entryNarrow = 0,
  entryWide = 2,
  entryTurned = 4,
  entrySpanning = 5,  // GEMM+ReduceScatter
  entrySlim = 5,      // AllGather+GEMM
  entryMedium = 7,
  entryCount = 8
};

template <class Params>
struct KernelTable {
  KernelEntry<Params> entries[entryCount];
};

// Which of them a launch takes.  Only GEMM+ReduceScatter's spanning tiles have a kernel of their own.
template <class Params>
constexpr uint32_t entryOf(const sched::KernelChoice& choice, bool bTransposed) {
  if (choice.turned) return entryTurned;
  if (choice.tileN == sched::kMediumCols) return entryMedium;
  if (choice.tileN == sched::kSlimCols) return entrySlim;
  const uint32_t alongN = bTransposed ? 0 : 1;
  if (std::is_same_v<Params, GemmRsParams> && choice.spanning) return entrySpanning + alongN;
  return (choice.tileN == 256 ? entryWide : entryNarrow) + alongN;
}
static_assert(entryOf<GemmArParams>({.tileN = 128}, true) == 0 && entryOf<GemmArParams>({.tileN = 128}, false) == 1);
static_assert(entryOf<GemmRsParams>({.tileN = 256}, true) == 2 && entryOf<AgGemmParams>({.tileN = 256}, false) == 3);
static_assert(entryOf<GemmRsParams>({.tileN = sched::kTurnedCols, .turned = true, .spanning = true}, true) == 4);
static_assert(entryOf<AgGemmParams>({.tileN = sched::kTurnedCols, .turned = true, .spanning = true}, true) == 4);
static_assert(entryOf<GemmRsParams>({.tileN = 128, .spanning = true}, true) == 5);
static_assert(entryOf<GemmRsParams>({.tileN = 128, .spanning = true}, false) == 6);
static_assert(entryOf<AgGemmParams>({.tileN = 128, .spanning = true}, true) == 0);
static_assert(entryOf<AgGemmParams>({.tileN = sched::kMediumCols, .spanning = true}, true) == 7);
static_assert(entryOf<AgGemmParams>({.tileN = sched::kSlimCols}, true) == 5);

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
