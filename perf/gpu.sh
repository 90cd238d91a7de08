#!/bin/sh
# Builds, tests and times everything on a machine with GPUs: sh perf/gpu.sh RESULTS [BUILD] [PART...]
#   RESULTS  folder for what was printed (machine, build, tests, perf, sweep, sanitizer, summary .txt) and for the rows as JSON
#   BUILD    a build made before, perhaps on another machine; "" or none: build-gpu, which is made here
#   PART     some of: build tests perf sweep sanitizer; none: all (build only where BUILD is not given)
# Needs nvcc, meson, ninja, Open MPI and Catch2; nothing of rdma-core or libfabric.  Every command has a time limit.  The exit
# status is 0 if everything went well.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=perf/libraries.sh
. perf/libraries.sh

if [ $# -lt 1 ]; then
  sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
  exit 2
fi
results=$1
build=${2:-}
shift
[ $# -eq 0 ] || shift
parts=${*:-}
if [ -z "$parts" ]; then
  parts="tests perf sweep sanitizer"
  [ -n "$build" ] || parts="build $parts"
fi
build=${build:-build-gpu}
mkdir -p "$results" || exit 1
results=$(cd "$results" && pwd)
command -v nvcc >/dev/null 2>&1 || PATH=$PATH:/usr/local/cuda/bin
export PATH
export NCCL_NVLS_ENABLE=0

failed=0
: >"$results/summary.txt"
say() { printf '%s\n' "$*" | tee -a "$results/summary.txt"; }

# run FILE SECONDS COMMAND...: appends to FILE.txt; shows the end of what it printed
run() {
  file=$results/$1.txt
  seconds=$2
  shift 2
  printf '$ %s\n' "$*" | tee -a "$file"
  begun=$(date +%s)
  timeout -k 10 "$seconds" "$@" >"$results/run.tmp" 2>&1 </dev/null
  code=$?
  cat "$results/run.tmp" >>"$file"
  tail -n "${show:-40}" "$results/run.tmp"
  rm -f "$results/run.tmp"
  printf '  exit status %d\n' "$code" >>"$file"
  say "$(printf 'status %3d, %3d s of %3d: %s' "$code" "$(($(date +%s) - begun))" "$seconds" "$*")"
  [ "$code" -eq 0 ] || failed=1
  return "$code"
}

perf() { # SECONDS PROGRAM RANKS OPTIONS...
  seconds=$1
  program=$build/perf/$2
  ranks=$3
  shift 3
  run perf "$seconds" sh perf/mpirun.sh -np "$ranks" "$program" --platform cuda "$@"
}

sweep() { # OPERATION NAME OPTIONS...: of the SM split
  program=$build/perf/mk_$1_perf
  rows=$results/$1-$2.json
  shift 2
  run sweep 310 sh perf/mpirun.sh -np "$gpus" "$program" --platform cuda --sweep-split --limit 300 --json "$rows" "$@"
}

sanitizer() { # SECONDS TOOL PROGRAM OPTIONS...: of a small run, without the comparison's libraries
  seconds=$1
  tool=$2
  program=$build/perf/$3
  shift 3
  run sanitizer "$seconds" env MKERNEL_TIMEOUT_MS=120000 sh perf/mpirun.sh -np "$gpus" \
    compute-sanitizer --tool "$tool" --error-exitcode "$([ "$tool" = racecheck ] && echo 0 || echo 9)" "$program" \
    --platform cuda --baseline 0 --rounds 1 -n 1 --limit "$seconds" "$@"
}

has() { case " $parts " in *" $1 "*) true ;; *) false ;; esac }

gpus=$(gpu_count)
: >"$results/machine.txt"
show=8
run machine 30 nvidia-smi || true
run machine 30 nvcc --version || true
say "GPUs: ${gpus:-0}; revision $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown); cuBLAS ${CUBLAS_LIBRARY:-by name}; NCCL ${NCCL_LIBRARY:-by name}"
show=40
if [ "${gpus:-0}" -lt 1 ]; then
  say "no GPU is here (nvidia-smi -L)"
  exit 1
fi

if has build; then
  : >"$results/build.txt"
  if [ ! -f "$build/build.ninja" ]; then
    run build 120 meson setup "$build" -Dcuda=enabled -Dperf=enabled || exit 1
  fi
  show=5
  run build 580 ninja -C "$build" || exit 1
  show=40
fi
build=$(cd "$build" && pwd) || exit 1
MKERNEL_PLUGIN_PATH=$build/plugins/loopback
export MKERNEL_PLUGIN_PATH

if has tests; then
  : >"$results/tests.txt"
  # Ranks that share the GPU: tests/README.md.
  if [ "$gpus" -eq 1 ]; then export MKERNEL_TEST_ONE_GPU=1; fi
  run tests "${MK_GPU_TESTS_SECONDS:-900}" python3 perf/gpu_tests.py "$build" || true
fi

if has perf; then
  : >"$results/perf.txt"
  # Of each operation: the target table; the layers of a model; the same beside emulated nodes with a network between them.
  for operation in gemm_ar gemm_rs ag_gemm; do
    perf 250 "mk_${operation}_perf" "$gpus" --suite -G 4 --limit 240 --json "$results/$operation-suite.json" || true
    perf 160 "mk_${operation}_perf" "$gpus" --layers --limit 150 --json "$results/$operation-layers.json" || true
    if [ "$gpus" -ge 2 ] && [ $((gpus % 2)) -eq 0 ]; then
      perf 160 "mk_${operation}_perf" "$gpus" --nodes 2 -b 1K -e 16K --N 8K --K 8K --trans-b --limit 150 \
        --json "$results/$operation-nodes.json" || true
    fi
  done
  run perf 250 "$build/tests/queue/gpu_queue" measure || true
  run perf 120 "$build/tests/ibgda/gpu_test" compare || true
  # Odd shapes and types.
  for operation in gemm_ar gemm_rs ag_gemm; do
    perf 60 "mk_${operation}_perf" "$gpus" -b 1 -e 1001 -i 250 --N 1000 --K 1000 -d fp16 --out fp32 --bias -G 1 \
      --limit 50 || true
  done
  perf 60 mk_ag_gemm_perf "$gpus" -b 1 -e 1001 -i 250 --N 1000 --K 1000 --gathered window -G 1 --limit 50 || true
fi

if has sweep && [ "$gpus" -ge 2 ]; then
  : >"$results/sweep.txt"
  for operation in gemm_ar gemm_rs ag_gemm; do
    sweep "$operation" split --suite || true
    [ $((gpus % 2)) -ne 0 ] || sweep "$operation" split-nodes --nodes 2 -b 2K -e 16K --N 8K --K 8K --trans-b || true
  done
  run sweep 60 python3 perf/draw_split.py "$results"/*-split*.json --check 3 || true
  if python3 -c 'import matplotlib' 2>/dev/null; then
    run sweep 60 python3 perf/draw_split.py "$results"/*-split*.json -o "$results/split.svg" || true
  fi
elif has sweep; then
  say "sweep: needs 2 GPUs, $gpus here: not run"
fi

if has sanitizer && ! command -v compute-sanitizer >/dev/null 2>&1; then
  say "no compute-sanitizer is here"
  failed=1
elif has sanitizer; then
  : >"$results/sanitizer.txt"
  for tool in memcheck racecheck; do
    for operation in gemm_ar gemm_rs ag_gemm; do
      sanitizer 100 "$tool" "mk_${operation}_perf" -b 300 --N 512 --K 512 --trans-b || true
    done
    sanitizer 100 "$tool" mk_gemm_ar_perf -b 77 --N 264 --K 264 --out fp32 --bias --window 0 || true
    sanitizer 100 "$tool" mk_gemm_rs_perf -b 77 --N 264 --K 264 --out fp32 --bias || true
    sanitizer 100 "$tool" mk_ag_gemm_perf -b 77 --N 264 --K 264 --out fp32 --bias --gathered memory || true
  done
fi

# racecheck takes words in shared memory that warps hand over by st.release and ld.acquire for races; others are.
if [ -f "$results/sanitizer.txt" ]; then
  races=$(grep -E 'Race reported|and (Read|Write) access' "$results/sanitizer.txt" | grep -cvE 'sharedStoreRelease|sharedLoadAcquire')
  say "races but those of released and acquired words: $races"
  [ "$races" -eq 0 ] || failed=1
fi

if [ "$failed" -eq 0 ]; then say "all well"; else say "something FAILED: see above"; fi
exit "$failed"
