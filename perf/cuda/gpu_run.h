// The run of a program on GPUs, whatever the operation: times beside cuBLAS and NCCL, eager and from CUDA graphs, and checks of
// what was timed.  Without CUDA there is none.  Called by the programs.
#pragma once

#include <memory>
#include <string>

#include "common/program.h"

namespace mk::perf {

// Makes the report on rank 0, and ends the session, which is connected.
void runOnGpus(World& world, const Options& options, Session& session, const RunInfo& run,
               std::unique_ptr<Report>* report);
// Makes the GPU of this rank's place on its host the current one: one rank per GPU.  False, and nothing is done, if the
// platform is another one or there is no GPU; the library then has its own words.  *device: for the header.
bool useLocalDevice(World& world, const Options& options, std::string* device);

inline Program withGpus(Program program) {
#ifdef MK_PERF_CUDA
  program.gpu = runOnGpus;
  program.chooseDevice = useLocalDevice;
#endif
  return program;
}

}  // namespace mk::perf
