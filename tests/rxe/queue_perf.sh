#!/bin/sh
# mk_queue_perf over ibverbs, from one soft-RoCE device to the other, in the virtual machine: queue_perf.sh VM_SH PROGRAM PLUGIN
# [ARGUMENT...].  Every byte is checked; the times are those of software under emulation.  Puts Open MPI into the guest.
set -eu
vm=$1 program=$2 plugin=$3
shift 3
root=$(dirname "$0")/../..
root=$(cd "$root" && pwd)
for tool in mpirun orted; do
	command -v $tool >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
mpi=$(ldd "$program" | sed -n 's/.*libmpi\.so[^ ]* => \([^ ]*\) .*/\1/p')
[ -n "$mpi" ] || { echo "SKIP: $program is not linked with an Open MPI's libmpi.so"; exit 77; }
libs=$(dirname "$(readlink -f "$mpi")")
# Where distributions keep what Open MPI opens by name.
set -- --transport ibverbs "$@"
include=''
for folder in "$libs"/openmpi "$libs"/openmpi3 "$libs"/../../pmix2 /usr/lib/*/pmix2 /usr/share/openmpi /etc/openmpi; do
	[ ! -d "$folder" ] || include="$include -i $folder"
done
# shellcheck disable=SC2086
exec "$vm" -t 300 -m 2048 $include -i "$(command -v mpirun)" -i "$(command -v orted)" -i "$root/perf/mpirun.sh" -i "$program" \
	-i "$plugin" -e "MKERNEL_PLUGIN_PATH=$(dirname "$plugin")" -- \
	/bin/sh "$root/perf/mpirun.sh" -np 1 -x MKERNEL_IB_HCA==rxe0 "$program" "$@" \
	: -np 1 -x MKERNEL_IB_HCA==rxe1 "$program" "$@"
