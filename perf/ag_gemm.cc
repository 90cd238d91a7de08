// mk_ag_gemm_perf: runs mkAllGatherGemm over a scan of M on the ranks of an MPI job, checks every rank's result against a
// reference in double and the gathered A bit by bit, compares the bytes each rank sent over the network with the formula, and
// prints a table as nccl-tests does.  perf/README.md explains the columns.  common/gather_run.cc holds the run on the CPU
// platform; cuda/gpu_run.cc that on GPUs.
#include "common/cpu_run.h"
#include "common/program.h"
#include "cuda/gpu_run.h"

int main(int argc, char** argv) {
  return mk::perf::runProgram(argc, argv,
                              mk::perf::withGpus({mk::perf::Operation::allGatherGemm, mk::perf::runGatherOnCpu}));
}
