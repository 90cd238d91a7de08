# shellcheck shell=sh
# Sourced by the scripts a person runs (tests/run.sh, perf/demo.sh, tests/support/packages.sh): numbered steps with the
# elapsed time, and long commands whose output goes to a file but which are never silent for long.  POSIX sh.
#
#   steps_begin TOTAL            before the first step
#   step TITLE                   the next step begins
#   run_logged LOG COMMAND...    runs it with its output in LOG; a line every 20 s; shows the end of LOG if it fails
#   run_shown LOG COMMAND...     the same, and its lines are shown as they come

steps_begin() {
  steps_total=$1
  steps_done=0
  steps_start=$(date +%s)
}

step() {
  steps_done=$((steps_done + 1))
  steps_title=$1
  printf '[%d/%d, %s] %s\n' "$steps_done" "$steps_total" "$(elapsed_time)" "$1"
}

elapsed_time() {
  steps_seconds=$(($(date +%s) - steps_start))
  printf '%d:%02d' $((steps_seconds / 60)) $((steps_seconds % 60))
}

run_logged() {
  steps_show=0
  run_watched "$@" || {
    steps_rc=$?
    printf '  failed (exit status %d): %s\n  the end of %s:\n' "$steps_rc" "$steps_title" "$1" >&2
    tail -n 40 "$1" | sed 's/^/  | /' >&2
    return "$steps_rc"
  }
}

run_shown() {
  steps_show=1
  run_watched "$@"
}

# Runs the command in the background and watches its log, so that something is printed at least every 20 s.
run_watched() {
  steps_log=$1
  shift
  : >"$steps_log"
  steps_shown=0
  "$@" >>"$steps_log" 2>&1 </dev/null &
  steps_pid=$!
  # A shell without job control starts background commands with SIGINT ignored, so pass the end on by hand.
  trap 'kill "$steps_pid" 2>/dev/null; exit 130' INT TERM HUP
  steps_quiet=$(date +%s)
  while kill -0 "$steps_pid" 2>/dev/null; do
    sleep 0.5
    show_new_lines
    if [ $(($(date +%s) - steps_quiet)) -ge 20 ]; then
      steps_quiet=$(date +%s)
      printf '  ... %s  %s\n' "$(elapsed_time)" "$(tail -n 1 "$steps_log" | cut -c 1-100)"
    fi
  done
  steps_rc=0
  wait "$steps_pid" || steps_rc=$?
  trap - INT TERM HUP
  show_new_lines
  return "$steps_rc"
}

show_new_lines() {
  [ "$steps_show" = 1 ] || return 0
  steps_lines=$(wc -l <"$steps_log")
  [ "$steps_lines" -gt "$steps_shown" ] || return 0
  sed -n "$((steps_shown + 1)),${steps_lines}p" "$steps_log" | sed 's/^/  /'
  steps_shown=$steps_lines
  steps_quiet=$(date +%s)
}
