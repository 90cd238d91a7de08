#!/bin/sh
# Installs what is missing, builds, and runs the whole suite: sh tests/run.sh [--long]
# On Debian 12 or Ubuntu 24.04, as root or with sudo.  Three builds: build/ (plain), build-asan/ (address and undefined
# behaviour sanitizers), build-tsan/ (thread sanitizer); a second run reuses them.  --long adds the soaks, in build/ only.
# MKERNEL_TEST_MINUTES (0: as long as it takes): a sanitizers' build that would not be done by then, judged by what the plain
# one took, is left out, and counts as skipped.
# The last line is "N passed, N failed, N skipped"; the exit status is 0 if nothing failed and something passed.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/support/steps.sh

long=0
for argument in "$@"; do
  case $argument in
    --long) long=1 ;;
    *)
      echo "usage: sh tests/run.sh [--long]" >&2
      exit 2
      ;;
  esac
done

# Both sanitizers need the address space laid out as it was before Linux 6.6's larger random offsets.
fixed_addresses=
if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ] && setarch "$(uname -m)" -R true 2>/dev/null; then
  fixed_addresses="setarch $(uname -m) -R"
fi
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-second_deadlock_stack=1}"
# Open MPI as root, on machines with fewer cores than ranks, without ssh, and on loopback only.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_oob_tcp_if_include=lo

broken=
left_out=

configure() { # DIRECTORY OPTIONS...
  directory=$1
  shift
  # A directory of an earlier run is reused; Meson itself notices what has changed.
  [ -f "$directory/build.ninja" ] && return 0
  mkdir -p "$directory"
  run_logged "$directory/setup.log" meson setup "$directory" "$@"
}

build() { # DIRECTORY OPTIONS...
  step "configuring and compiling $1"
  rm -f "$1/meson-logs/testlog.json"
  configure "$@" && run_logged "$1/build.log" ninja -C "$1" && return 0
  broken="$broken $1"
  return 1
}

# An exit status of a test run is not looked at: summary.py counts what the runs left behind.
run_tests() { # DIRECTORY OPTIONS...
  directory=$1
  shift
  step "testing $directory"
  wrapper=
  [ "$directory" = build ] || wrapper=$fixed_addresses
  # shellcheck disable=SC2086
  run_shown "$directory/test.log" $wrapper meson test -C "$directory" --no-rebuild --print-errorlogs "$@" || true
}

# Whether there is time for what takes PERCENT of the time up to the end of the plain run.
time_for() { # DIRECTORY PERCENT
  minutes=${MKERNEL_TEST_MINUTES:-0}
  needed=$((plain_seconds * $2 / 100))
  now=$(($(date +%s) - steps_start))
  [ "$minutes" -eq 0 ] || [ $((now + needed)) -le $((minutes * 60)) ] && return 0
  step "$1 is left out: MKERNEL_TEST_MINUTES=$minutes, and it would take about $((needed / 60 + 1)) more"
  left_out="$left_out $1"
  return 1
}

steps_begin 7
step "packages"
sh tests/support/packages.sh build mpi test vm lint || exit 1

if build build; then
  if [ $long = 1 ]; then
    MKERNEL_TEST_LONG=1 run_tests build --timeout-multiplier 20
  else
    run_tests build
  fi
fi
plain_seconds=$(($(date +%s) - steps_start))
# Without -Db_lundef=false clang refuses to link sanitized libraries; gcc does not mind.
time_for build-asan 110 && build build-asan -Db_sanitize=address,undefined -Db_lundef=false -Dperf=disabled &&
  run_tests build-asan --no-suite plain --timeout-multiplier 3
time_for build-tsan 90 && build build-tsan -Db_sanitize=thread -Db_lundef=false -Dperf=disabled &&
  run_tests build-tsan --no-suite plain --timeout-multiplier 4

printf '\nAll test runs took %s.\n' "$(elapsed_time)"
# shellcheck disable=SC2086
exec python3 tests/support/summary.py --broken "$broken" --left-out "$left_out" build build-asan build-tsan
