#!/usr/bin/env python3
"""Writes wgmma.cuh, the matrix instructions with their 32 to 128 accumulators: make_wgmma.py > wgmma.cuh"""

HEAD = """\
// Written by make_wgmma.py.  The matrix unit: 64 x N x 16 products of a warpgroup, operands in shared memory, fp32 sums
// in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace mk::kernels {

__device__ __forceinline__ void productsFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void productsCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void productsWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Operands in rows of 128 swizzled bytes.  K is contiguous: groups of 8 rows lie 1024 bytes apart, and 16 more of K are 32
// bytes further.
constexpr uint64_t kOperandSwizzle = uint64_t{1} << 62;
__device__ __forceinline__ uint64_t operandAlongK(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | kOperandSwizzle;
}
// N is contiguous: blocks of 64 of N by 64 of K, 8192 bytes apart, in which groups of 8 of K lie 1024 bytes apart.
__device__ __forceinline__ uint64_t operandAlongN(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{8192 >> 4} << 16 | uint64_t{1024 >> 4} << 32 | kOperandSwizzle;
}

// kAlongN: B lies with N contiguous.  add 0: d is replaced.
template <class T, int kN, int kAlongN>
struct Products;

// clang-format off
"""


def lines(items, prefix, suffix, width=116):
    out, line = [], prefix
    for i, item in enumerate(items):
        piece = item + ("," if i + 1 < len(items) else "")
        if len(line) + len(piece) + len(suffix) > width:
            out.append(line + suffix)
            line = prefix
        line += piece
    return out + [line + suffix]


def instruction(ctype, ptype, n):
    count = n // 2
    out = [
        "template <int kAlongN>",
        f"struct Products<{ctype}, {n}, kAlongN> {{",
        f"  static __device__ __forceinline__ void add(float (&d)[{count}], uint64_t a, uint64_t b, uint32_t add) {{",
        "    asm volatile(",
        '        "{\\n.reg .pred p;\\n"',
        f'        "setp.ne.b32 p, %{count + 2}, 0;\\n"',
        f'        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptype}.{ptype} {{"',
    ]
    out += lines([f"%{i}" for i in range(count)], '        "', '"')
    out.append(f'        "}}, %{count}, %{count + 1}, p, 1, 1, 0, %{count + 3};\\n}}\\n"')
    operands = lines([f'"+f"(d[{i}])' for i in range(count)], "          ", "")
    operands[0] = "        : " + operands[0].lstrip()
    out += operands
    out += ['        : "l"(a), "l"(b), "r"(add), "n"(kAlongN));', "  }", "};"]
    return out


print(HEAD + "\n".join(
    line for ctype, ptype in (("__nv_bfloat16", "bf16"), ("__half", "f16")) for n in (64, 112, 128, 224, 256)
    for line in instruction(ctype, ptype, n)))
print("// clang-format on\n\n}  // namespace mk::kernels")
