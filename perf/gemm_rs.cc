// mk_gemm_rs_perf: runs mkGemmReduceScatter over a scan of M on the ranks of an MPI job, checks every rank's rows against a
// reference in double, compares the bytes each rank sent over the network with the formula, and prints a table as nccl-tests
// does.  perf/README.md explains the columns.  CPU platform.
#include "common/program.h"
#include "common/sum_run.h"

int main(int argc, char** argv) {
  mk::perf::Program program;
  program.operation = mk::perf::Operation::gemmReduceScatter;
  program.cpu = mk::perf::runSumOnCpu;
  return mk::perf::runProgram(argc, argv, program);
}
