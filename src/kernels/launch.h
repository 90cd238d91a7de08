// What the launches of all operations share: which devices can run the kernels, loading them, and the choices of the GPU.
#pragma once

#include <cstdint>
#include <string>

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

// The plan's choices of the GPU: tiles and parts.
sched::GemmChoice clusterChoice(const sched::KernelChoice& kernel, sched::GemmChoice choice);

}  // namespace mk::kernels
