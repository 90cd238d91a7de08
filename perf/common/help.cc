// What -h prints of the programs that run an operation; see options.h.
#include "options.h"

namespace mk::perf {

std::string helpText(Operation operation) {
  const bool gather = operation == Operation::allGatherGemm, all = operation == Operation::gemmAllReduce;
  const std::string program = programName(operation);
  std::string text = program +
                     (gather ? ": AllGather+GEMM"
                      : all  ? ": GEMM+AllReduce"
                             : ": GEMM+ReduceScatter") +
                     " of libmkernel, one rank per process:\n"
                     "  mpirun -np RANKS " +
                     program +
                     " [options]\n"
                     "\n"
                     "Sizes (K, M, G behind a number mean 2^10, 2^20, 2^30)\n"
                     "  -b MIN  -e MAX        scan M, the rows of the whole product, from MIN (256) to MAX (MIN)\n"
                     "  -f FACTOR             multiply M from row to row (2)\n"
                     "  -i INCREMENT          add to M instead\n";
  text += gather ? "  --N N                 columns of each rank's B and C (1024)\n"
                   "  --K K                 the summed dimension (1024)\n"
                 : "  --N N                 columns of C (1024)\n"
                   "  --K K                 the whole summed dimension (1024): each rank gets K/ranks, in multiples of "
                   "8\n";
  text +=
      "\n"
      "Runs\n"
      "  -w COUNT              warm-up launches (1)\n"
      "  -n COUNT              launches per row (4), each with fresh data; GPUs: in each batch (by their time)\n"
      "  -c CHECK              0: no check of the data, 1: of the last launch, more: of every launch (1)\n"
      "  -T SECONDS            longest time that one step may take (300)\n"
      "  --limit SECONDS       longest time of the whole run (GPUs: 120, sweeps 300; else no limit)\n"
      "  -g 1  -t 1            accepted for likeness with nccl-tests\n"
      "\n"
      "The operation\n"
      "  -d TYPE               of A and B: bf16, fp16 (bf16)\n"
      "  --out TYPE            of C: same, fp32 (same)\n";
  if (!gather) text += "  --wire TYPE           of what travels: same (as C), fp32 (same)\n";
  text +=
      "  --trans-b             B is stored as (N, K)\n"
      "  --alpha X  --beta X   C = X*A*B + X*C (1, 0)\n"
      "  --bias                adds a bias vector\n";
  if (gather) text += "  --gathered WHERE      the whole A, as an output: none, memory, window (none)\n";
  if (all) text += "  --window 0|1          C lies in a registered window (GPUs: 1, else 0)\n";
  text +=
      "\n"
      "The world\n"
      "  --nodes COUNT         treat the ranks as so many nodes, whatever hosts they run on\n"
      "  --platform NAME       cpu, cuda (the library's choice)\n"
      "  --transport NAME      network plugin (the library's choice)\n"
      "\n";
  text +=
      "On GPUs\n"
      "  --suite               the shapes of the target table: ";
  text += gather ? "M = K = b in 2K to 32K, with b/2 and b/16 of N on each\n"
                 : "M = N = b in 2K to 32K, with b/2 and b/16 of K on each\n";
  text +=
      "                        rank; B as (N, K)\n"
      "  --layers              the shapes of a model of 70e9 parameters: M from 1 to 16384, ";
  text += gather ? "K 8192, and of N on\n" : "N 8192, and of K on\n";
  text +=
      "                        each rank 8192 or 28672 over 2, 4, 8; B as (N, K)\n"
      "  --rounds COUNT        batches whose median is the time (5)\n"
      "  -G COUNT              also time CUDA graphs of so many operations (0: no graphs)\n"
      "  --baseline 0|1        compare with cuBLAS and NCCL, which are loaded at run time (1)\n"
      "  --nic GBPS            rate of a network card, for the roof and for emulated nodes (50)\n"
      "\n";
  text +=
      "Tuning (the library's choice)\n"
      "  --tile-m M  --tile-n N  ";
  text += gather ? "--chunk-rows COUNT  --exchange direct|ring\n" : "--chunk-tiles COUNT";
  if (!gather) text += all ? "  --exchange swap|home\n" : "\n";
  text +=
      "  --sweep-split[=LIST]  run every shape with so many SMs for communication, and as the library chooses\n"
      "                        (1,2,4,6,8,12,16,24,32,48,64); on GPUs timed without cuBLAS and NCCL\n";
  text +=
      "\n"
      "Output\n"
      "  --json FILE           also write JSON Lines: a header, one object per row, a summary\n"
      "  -h, --help            this text\n"
      "\n"
      "Exit status: 0 good; 1 wrong data, differing ranks or bytes that do not match; 2 arguments; 3 the library\n"
      "failed; 4 a step took too long; 5 the system failed.\n";
  return text;
}

}  // namespace mk::perf
