// What the launches of all operations share: which devices can run the kernels, loading them, and the choices of the GPU.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/operands.h"
#include "sched/choice.h"
#include "sched/kernel_choice.h"

namespace mk::kernels {

// Why a device cannot run the kernels, or "".
std::string unsupported(int device);

struct KernelDevice {
  uint32_t clusters = 0;  // of two blocks that fit at once
};
// Loads every kernel onto the current device, so that no launch does, and asks what fits.  "" or what failed.
std::string loadKernels(KernelDevice* device);

// Whether lean instances can run it: on one node, a plain product whose results are and travel as the inputs' type, and, of
// AllReduce, C in a window or of one rank (`staged`: it is an ordinary pointer).
inline bool isLean(const protocol::GemmOperands& op, const sched::Place& place, bool staged = false) {
  return place.nodes == 1 && isPlain(op) && op.out != protocol::Type::f32 && op.wire != protocol::Type::f32 &&
         !(staged && place.locals > 1);
}
// And whether those can whose tiles are of B as (N, K) alone: turned ones, if rows are few, and those of sched::kSlimCols and
// sched::kMediumCols.
inline bool isTurnable(const protocol::GemmOperands& op, const sched::Place& place, bool staged = false) {
  return op.bTransposed && isLean(op, place, staged);
}

// The plan's choices of the GPU: tiles and parts.
sched::GemmChoice clusterChoice(const sched::KernelChoice& kernel, sched::GemmChoice choice);

}  // namespace mk::kernels
