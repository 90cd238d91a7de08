// mk_gemm_rs_perf: runs mkGemmReduceScatter over a scan of M on the ranks of an MPI job, checks every rank's rows against a
// reference in double, compares the bytes each rank sent over the network with the formula, and prints a table as nccl-tests
// does.  perf/README.md explains the columns.  common/sum_run.cc holds the run on the CPU platform; cuda/gpu_run.cc that on GPUs.
#include "common/cpu_run.h"
#include "common/program.h"
#include "cuda/gpu_run.h"

int main(int argc, char** argv) {
  return mk::perf::runProgram(argc, argv,
                              mk::perf::withGpus({mk::perf::Operation::gemmReduceScatter, mk::perf::runSumOnCpu}));
}
