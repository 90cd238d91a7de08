#!/bin/sh
# Installs the distribution packages that are missing, on Debian 12 or Ubuntu 24.04: sh packages.sh GROUP...
# The one list of what the project needs.  Groups:
#   build   to build the library            mpi     to build and run the programs in perf/
#   test    to build and run the tests      lint    for the format and clang-tidy tests
#   vm      to run tests in a virtual machine with soft-RoCE (tests/rxe)
# Nothing is asked: packages are installed as root, or with sudo where it needs no password.
set -eu
# shellcheck source=tests/support/steps.sh
. "$(dirname "$0")/steps.sh"

packages_of() {
  case $1 in
    build) echo gcc g++ meson ninja-build pkg-config libeigen3-dev libfabric-dev libhwloc-dev libibverbs-dev python3 ;;
    mpi) echo openmpi-bin libopenmpi-dev ;;
    test) echo catch2 abigail-tools binutils ;;
    vm) echo ibverbs-providers qemu-system-x86 busybox-static iproute2 xz-utils ;;
    # The same major version everywhere, since formatting and checks differ between versions.
    lint) echo clang-format-14 clang-tidy-14 ;;
    *)
      echo "packages.sh: unknown group '$1'; legal are build, mpi, test, vm, lint" >&2
      return 2
      ;;
  esac
}

wanted=
for group in "$@"; do
  names=$(packages_of "$group")
  wanted="$wanted $names"
done

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
  echo "  no apt-get here: going on with what is installed; needed are (Debian names)$wanted"
  exit 0
fi

missing=
for package in $wanted; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=none
  [ "$status" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  echo "  all packages are installed"
  exit 0
fi
echo "  installing$missing"

if [ "$(id -u)" = 0 ]; then
  as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  as_root="sudo -n"
else
  echo "  packages are missing and this is neither root nor sudo without a password; run:" >&2
  echo "  apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi

log=$(mktemp "${TMPDIR:-/tmp}/mkernel-packages.XXXXXX")
trap 'rm -f "$log"' EXIT
steps_begin 1
# shellcheck disable=SC2034
steps_title="installing packages"
options="-y -q -o DPkg::Lock::Timeout=300 -o APT::Get::Assume-Yes=true"
# An old package list makes the installation fail, a list that cannot be renewed need not.
# shellcheck disable=SC2086
run_logged "$log" $as_root apt-get update $options || echo "  apt-get update failed; trying with the lists that are there"
# shellcheck disable=SC2086
run_logged "$log" $as_root env DEBIAN_FRONTEND=noninteractive apt-get install $options --no-install-recommends $missing
