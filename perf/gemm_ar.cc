// mk_gemm_ar_perf: runs mkGemmAllReduce over a scan of M on the ranks of an MPI job, checks every result against a
// reference in double, compares the bytes sent over the network with the formula, and prints a table as nccl-tests does.
// perf/README.md explains the columns.  common/sum_run.cc holds the run on the CPU platform; cuda/gemm_ar_cuda.cc that on GPUs.
#include "common/program.h"
#include "common/sum_run.h"
#ifdef MK_PERF_CUDA
#include "cuda/gemm_ar_cuda.h"

namespace {

void runOnGpus(mk::perf::World& world, const mk::perf::Options& options, mk::perf::Session& session,
               const mk::perf::RunInfo& run, std::unique_ptr<mk::perf::Report>* report) {
  mk::perf::GemmAllReduceCuda(world, options, session, run).run(report);
}

}  // namespace
#endif

int main(int argc, char** argv) {
  mk::perf::Program program;
  program.operation = mk::perf::Operation::gemmAllReduce;
  program.cpu = mk::perf::runSumOnCpu;
#ifdef MK_PERF_CUDA
  program.gpu = runOnGpus;
  program.chooseDevice = mk::perf::useLocalDevice;
#endif
  return mk::perf::runProgram(argc, argv, program);
}
