#!/bin/sh
# The main job, from nothing: installs the packages that are missing, builds into build/ and runs fused GEMM+AllReduce under
# mpirun on real matrices, checked against a reference in double, as a table: sh perf/demo.sh
# With two or more GPUs and nvcc it runs on them and prints times beside cuBLAS + NCCL; else on the CPU platform.
# On Debian 12 or Ubuntu 24.04, as root or with sudo; asks nothing.  A second run reuses the build, which is also the one of
# tests/run.sh.  Exit status 0 means that everything was right.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=tests/support/steps.sh
. tests/support/steps.sh
# shellcheck source=perf/libraries.sh
. perf/libraries.sh

build=build
program=$build/perf/mk_gemm_ar_perf

gpus=$(gpu_count)
if [ "${gpus:-0}" -ge 2 ] && ! command -v nvcc >/dev/null 2>&1; then PATH=$PATH:/usr/local/cuda/bin; fi

steps_begin 4
step "packages"
if ! sh tests/support/packages.sh build mpi test; then
  for tool in meson ninja mpirun python3; do command -v "$tool" >/dev/null 2>&1 || exit 1; done
  echo "  going on with what is installed"
fi

step "configuring and compiling $build"
mkdir -p "$build"
if [ ! -f "$build/build.ninja" ]; then
  run_logged "$build/setup.log" meson setup "$build"
fi
if ! ninja -C "$build" -t query perf/mk_gemm_ar_perf >/dev/null 2>&1; then
  # Configured before MPI was installed.
  run_logged "$build/setup.log" meson setup --reconfigure "$build" -Dperf=enabled
fi
run_shown "$build/build.log" ninja -C "$build" perf/mk_gemm_ar_perf plugins/loopback/libmkernel-loopback.so
if [ "${gpus:-0}" -ge 2 ] && ! ninja -C "$build" -t query perf/libmk_perf_cuda.a >/dev/null 2>&1; then
  echo "  $gpus GPUs are here, but $build was configured without nvcc: going on with the CPU platform"
  gpus=0
fi

MKERNEL_PLUGIN_PATH=$PWD/$build/plugins/loopback
export MKERNEL_PLUGIN_PATH

# Both runs are made, whatever the first one says; the first failure's status is the script's.
status=0
run() { # RANKS OPTIONS...
  ranks=$1
  shift
  printf '$ mpirun -np %s %s %s\n' "$ranks" "$program" "$*"
  code=0
  timeout 600 sh perf/mpirun.sh -np "$ranks" "$program" "$@" || code=$?
  if [ "$code" -ne 0 ]; then
    echo "  failed: exit status $code" >&2
    [ "$status" -ne 0 ] || status=$code
  fi
}

if [ "${gpus:-0}" -ge 2 ]; then
  step "GEMM+AllReduce on $gpus GPUs: one rank per GPU, bf16, beside cuBLAS + NCCL"
  run "$gpus" --platform cuda --suite -G 4 --limit 300

  step "the same with ragged rows: fp16, fp32 result, bias"
  run "$gpus" --platform cuda -b 1 -e 1001 -i 250 --N 1000 --K 1000 -d fp16 --out fp32 --bias --limit 100
else
  step "GEMM+AllReduce: 2 nodes x 4 ranks, 8 processes, bf16, loopback transport between the nodes"
  run 8 --platform cpu --nodes 2 -b 256 -e 2048 -f 2 --N 2048 --K 4096 -w 1 -n 2 -c 1

  step "the same with ragged rows: fp16, fp32 result in a window, B as (N, K), bias"
  run 8 --platform cpu --nodes 2 -b 1 -e 401 -i 100 --N 1000 --K 1000 -d fp16 --out fp32 --trans-b --bias --window 1 \
    -w 1 -n 2 -c 2
fi

if [ "$status" -eq 0 ]; then
  echo "demo passed, in $(elapsed_time)"
else
  echo "demo FAILED, after $(elapsed_time)"
fi
exit "$status"
