// One GEMM+AllReduce launch on the GPU.  Called by the communicator; no CUDA type but the stream and the tensor map inside.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/rank_memory.h"
#include "protocol/operands.h"
#include "sched/gemm_ar.h"
#include "sched/kernel_choice.h"
#include "sched/tile_order.h"

namespace mk::kernels {

using protocol::Type;
using protocol::typeBytes;

struct GemmArOperands : protocol::GemmOperands {
  char* peerC[kMaxLocals] = {};  // by local rank; used when C lies in a window
};

// What the kernel is launched with.  A kernel parameter: no initialisers, the launch zeroes it.
// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
struct GemmArParams {
  CUtensorMap a, b, c;
  CUtensorMap peerC[kMaxLocals];  // by local rank, in boxes of 16 rows
  RankMemory memory;
  sched::GemmArPlan plan;
  sched::TileOrder order;
  sched::KernelChoice choice;
  GemmArOperands operands;
  // What the plan says at some cost, worked out beforehand.
  uint64_t partialFlags, outFlags, stagedFlags;  // first words of their kinds
  uint64_t stage;                                // where staged tiles begin
  uint32_t ownedParts;                           // own tiles times blocks of a cluster
  uint32_t owners;                               // a bit for each local rank that owns a tile
  uint32_t hash;
  uint32_t kSteps;  // of 64, at least one
  uint32_t kFirst;  // the first of them: past the matrices' ends, where loads give zeros, if K is 0
};

// Why a device cannot run the kernels, or "".
std::string gemmArUnsupported(int device);

// What the launch of this shape on this device would be; the plan is made with it.
struct GemmArDevice {
  uint32_t clusters = 0;  // of two blocks that fit at once
};
// Loads every kernel onto the current device, so that no launch does, and asks what fits.  "" or what failed.
std::string loadGemmAr(GemmArDevice* device);

// The plan's choices of the GPU: tiles and parts.
sched::GemmChoice gemmArChoice(const sched::KernelChoice& kernel, sched::GemmChoice choice);

// Enqueues one launch on the current device.  `hash`: of the plan and everything else that must agree.  "" or what failed.
std::string launchGemmAr(const RankMemory& memory, const sched::GemmArPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const GemmArOperands& operands, cudaStream_t stream);

}  // namespace mk::kernels
