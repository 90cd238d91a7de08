#!/usr/bin/env bash
# Runs a program on real RDMA verbs without an RDMA card: vm.sh [OPTION...] [--] PROGRAM [ARGUMENT...]
#
# Boots Debian's own kernel in QEMU, makes two soft-RoCE devices joined by a virtual cable, runs the program there as root, and
# exits with its exit status.  This machine is left alone: no module is loaded, no interface made, and the guest has no
# network outside itself.  What is missing here makes it print "SKIP: reason" and exit with 77.  vm.sh --help
set -euo pipefail

KERNEL_META=linux-image-amd64 # Debian's; the cloud flavour has no rdma_rxe
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mkernel-rxe

usage() {
	cat <<'EOF'
usage: vm.sh [OPTION...] [--] PROGRAM [ARGUMENT...]

The guest has the soft-RoCE devices
  rxe0  on eth0, 10.99.0.1   \  the two ends of one cable
  rxe1  on eth1, 10.99.0.2   /
(port 1, GID index 1 = RoCE v2 over IPv4) and TCP on 127.0.0.1.  The program starts in the directory of the same path as here,
with RXE_VM=1 set and nothing to read; its output comes out here.  Its file, its interpreter and the shared libraries that ldd
finds go into the guest by themselves; whatever else it opens is named with -i.  Paths stay the same.

  -i PATH        put a file or folder into the guest (repeatable)
  -e NAME=VALUE  set an environment variable (repeatable)
  -t SECONDS     end the guest after so long (default 300)
  -m MIB         guest memory (default 1024)
  -c N           guest CPUs (default: as here, at most 4)
  --mtu N        MTU of the cable (default 1500: RDMA path MTU 1024; 4200 gives 4096)
  --kvm          use the CPU's virtualisation.  Off by default: where it does not work, guests hang; emulation boots in seconds
  --verbose      show the guest's kernel log

Exit status: the program's own (128 + N if signal N ended it); 77 if something is missing here; 124 after the time limit; 125
if the guest could not be made, did not boot or ended before the program did.  The kernel is fetched once, with apt-get
download, and unpacked in ${XDG_CACHE_HOME:-~/.cache}/mkernel-rxe.
EOF
}

die() { echo "vm.sh: $*" >&2; exit 125; }
skip() { echo "SKIP: $*"; exit 77; }
warn() { echo "vm.sh: warning: $*" >&2; }
quote() { printf "'%s'" "${1//\'/\'\\\'\'}"; }       # for a POSIX shell
number() { [[ $2 =~ ^[0-9]+$ && $2 -gt 0 ]] || die "$1 wants a positive number, not '$2'"; }

# ---- options ---------------------------------------------------------------
include=() envs=()
timeout=300 memory=1024 cpus='' mtu=1500 kvm=0 verbose=0
boot=60 # seconds; a few are enough
while (($#)); do
	case $1 in
	-i | -e | -t | -m | -c | --mtu)
		(($# > 1)) || die "$1 wants a value"
		case $1 in
		-i) include+=("$2") ;;
		-e) envs+=("$2") ;;
		-t) number "$1" "$2"; timeout=$2 ;;
		-m) number "$1" "$2"; memory=$2 ;;
		-c) number "$1" "$2"; cpus=$2 ;;
		--mtu) number "$1" "$2"; mtu=$2 ;;
		esac
		shift
		;;
	--kvm) kvm=1 ;;
	--verbose) verbose=1 ;;
	-h | --help) usage; exit 0 ;;
	--) shift; break ;;
	-*) die "unknown option $1 (see --help)" ;;
	*) break ;;
	esac
	shift
done
(($#)) || { usage >&2; exit 125; }
if [[ -z $cpus ]]; then cpus=$(nproc); ((cpus <= 4)) || cpus=4; fi

[[ $(uname -m) == x86_64 ]] || skip "the virtual machine with soft-RoCE is for x86-64"

# ---- what must be installed ------------------------------------------------
PATH=$PATH:/usr/sbin:/sbin
missing=()
for pair in qemu-system-x86_64=qemu-system-x86 busybox=busybox-static \
	ip=iproute2 rdma=iproute2 xz=xz-utils; do
	command -v "${pair%=*}" >/dev/null || missing+=("${pair%=*} (package ${pair#*=})")
done
compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so' >/dev/null ||
	missing+=("the verbs provider librxe (package ibverbs-providers)")
((!${#missing[@]})) || skip "the virtual machine with soft-RoCE needs $(printf '%s, ' "${missing[@]}" | sed 's/, $//')"


# ---- kernel: $kernel (boot file) and $moddir (its modules) -------------------
# A .deb is unpacked once into the cache (only the parts a guest may want). The
# bzImage is also stored decompressed: QEMU starts that one at once through its
# PVH entry, which saves seconds of decompression under emulation.
unpack_kernel() {              # unpack_kernel DEB
	local deb=$1 tmp to head off len setup
	to=$CACHE/kernel-$(basename "$deb" .deb)
	if [[ ! -d $to ]]; then
		tmp=$(mktemp -d "$CACHE/tmp.XXXXXX")
		dpkg --fsys-tarfile "$deb" | tar -x -C "$tmp" --no-same-owner --wildcards \
			--exclude='*/net/wireless' --exclude='*/net/ethernet' \
			'*/vmlinuz-*' '*/modules.builtin' '*/kernel/arch/*' '*/kernel/crypto/*' \
			'*/kernel/lib/*' '*/kernel/fs/*' '*/kernel/net/*' '*/kernel/drivers/infiniband/*' \
			'*/kernel/drivers/virtio/*' '*/kernel/drivers/net/*' ||
			{ rm -rf "$tmp"; die "cannot unpack $deb"; }
		mv "$tmp"/boot/vmlinuz-* "$tmp/bzImage"
		# setup_sects, payload_offset and payload_length of the x86 boot protocol
		setup=$(od -A n -t u1 -j 497 -N 1 "$tmp/bzImage")
		read -r off len < <(od -A n -t u4 -j 584 -N 8 "$tmp/bzImage")
		tail -c +$(((setup + 1) * 512 + off + 1)) "$tmp/bzImage" 2>/dev/null | head -c $((len - 4)) |
			xz -dc >"$tmp/vmlinux" 2>/dev/null || true
		head=$(head -c 4 "$tmp/vmlinux" | od -A n -t x1 | tr -d ' \n')
		[[ $head == 7f454c46 ]] || rm -f "$tmp/vmlinux"     # not xz: boot the bzImage
		mv -T "$tmp" "$to"
	fi
	echo "$to"
}
mkdir -p "$CACHE" 2>/dev/null || true
[[ -w $CACHE ]] || die "cannot write to $CACHE"
exec 9>"$CACHE/lock"
flock 9                        # several rxe-vm may start at the same time
rm -rf "$CACHE"/tmp.*          # left by one that was killed while unpacking
kdir=$(find "$CACHE" -maxdepth 1 -type d -name 'kernel-*' | sort -V | tail -n 1)
if [[ -z $kdir ]]; then
	kernel_name() {
		apt-cache show --no-all-versions $KERNEL_META 2>/dev/null |
			sed -n 's/^Depends: \(linux-image-[^ ,]*\).*/\1/p' | head -n 1
	}
	name=$(kernel_name) || true
	if [[ -z $name ]]; then
		apt-get -qq update >&2 || true
		name=$(kernel_name) || true
	fi
	[[ -n $name ]] || skip "no kernel for the virtual machine: apt knows no package $KERNEL_META"
	echo "vm.sh: fetching $name (once)" >&2
	tmp=$(mktemp -d "$CACHE/tmp.XXXXXX")
	(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$name") >&2 ||
		{ rm -rf "$tmp"; skip "no kernel for the virtual machine: the package $name cannot be downloaded"; }
	kdir=$(unpack_kernel "$tmp"/*.deb)
	rm -rf "$tmp"
fi
flock -u 9
exec 9>&-
kernel=$kdir/vmlinux
[[ -e $kernel ]] || kernel=$kdir/bzImage
moddir=$(dirname "$(find "$kdir" -name modules.builtin | head -n 1)")
[[ -e $kernel && -d $moddir/kernel ]] || die "broken cache entry $kdir: remove it"

# ---- initramfs -------------------------------------------------------------
work=$(mktemp -d "${TMPDIR:-/tmp}/mkernel-rxe.XXXXXX")
pids=()
cleanup() { ((!${#pids[@]})) || kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
root=$work/root
mkdir -p "$root"/{proc,sys,dev,tmp,run,root,var,etc,usr,.rxe-vm/{modules,bin}}
chmod 1777 "$root/tmp"
for d in bin sbin lib lib64; do                # a merged /usr, if this one is
	if [[ -L /$d ]]; then mkdir -p "$root/usr/$d"; ln -s "usr/$d" "$root/$d"; else mkdir -p "$root/$d"; fi
done

# Modules, each after those that it depends on (its own 'depends=' says which).
declare -A modpath=() modseen=()
modcount=0
while read -r f; do
	n=${f##*/} n=${n%%.ko*}
	modpath[${n//-/_}]=$f
done < <(find "$moddir/kernel" -name '*.ko*')
add_module() {
	local n=${1//-/_} f d to
	[[ -z ${modseen[$n]-} ]] || return 0
	modseen[$n]=1 f=${modpath[$n]-}
	if [[ -z $f ]]; then
		grep -q "/${n//_/[-_]}\.ko" "$moddir/modules.builtin" || die "this kernel has no module $1"
		return 0
	fi
	to=$work/$n.ko
	case $f in *.xz) xz -dc "$f" >"$to" ;; *.zst) zstd -qdc "$f" >"$to" ;; *) cp "$f" "$to" ;; esac
	for d in $(grep -azom1 -P '^depends=\K.*' "$to" | tr '\0,' '  '); do
		add_module "$d"
	done
	modcount=$((modcount + 1))
	mv "$to" "$root/.rxe-vm/modules/$(printf '%03d-%s.ko' $modcount "$n")"
}
for m in crc32_generic ib_uverbs rdma_rxe rdma_ucm veth; do add_module "$m"; done

# Files. add_files takes absolute paths; links are followed, paths are kept (but
# /lib/x and /usr/lib/x are one file where /usr is merged).
unmerge=''
[[ ! -L /lib ]] || unmerge='s,^/(bin|sbin|lib|lib64)/,/usr/\1/,'
abspath() { case $1 in /*) realpath -sm -- "$1" ;; *) realpath -sm -- "$PWD/$1" ;; esac; }
add_files() {
	(($#)) || return 0
	printf '%s\0' "$@" | sed -zE "$unmerge" | sort -zu | xargs -0 cp -L --parents --no-preserve=ownership -t "$root" -- ||
		die "cannot copy into the guest's file system"
}
with_libs() {                  # adds files and the shared libraries they need
	(($#)) || return 0
	add_files "$@"
	local libs lddout
	lddout=$(printf '%s\0' "$@" | { LC_ALL=C xargs -0 grep -lazsP '\A\x7fELF' -- /dev/null || true; } |
		tr '\n' '\0' | { xargs -0 -r ldd 2>/dev/null || true; })
	if grep -q '=> not found' <<<"$lddout"; then
		warn "shared libraries not found: $(sed -n 's/^[[:space:]]*\(.*\) => not found.*/\1/p' <<<"$lddout" | sort -u | tr '\n' ' ')"
	fi
	mapfile -t libs < <(sed -nE 's/^[[:space:]]*([^ ]+ => )?(\/.*) \(0x[0-9a-f]+\)$/\2/p' <<<"$lddout" | sort -u)
	add_files "${libs[@]}"
}
bb=$(command -v busybox) ip=$(command -v ip) rdma=$(command -v rdma)
files=("$bb" "$ip" "$rdma")
files+=(/bin/sh /usr/lib/*/libibverbs/librxe-rdmav*.so /etc/libibverbs.d/rxe.driver)
for f in /etc/ld.so.cache /etc/passwd /etc/group /etc/nsswitch.conf /etc/protocols /etc/services; do
	[[ ! -e $f ]] || files+=("$f")
done
cmd=$(type -P -- "$1" || true)      # the command itself
if [[ -n $cmd ]]; then
	cmd=$(abspath "$cmd")
	include+=("$cmd")
	if [[ $(head -c 2 "$cmd" | tr -d '\0') == '#!' ]]; then    # and its interpreter
		read -r interp arg _ < <(head -n 1 "$cmd" | cut -c 3-) || true
		files+=("$interp")
		[[ $interp != */env || -z $arg ]] || files+=("$(type -P -- "$arg" || die "no $arg")")
	fi
fi
for p in "${include[@]}"; do
	a=$(abspath "$p")
	if [[ -d $a ]]; then
		mkdir -p "$root$a"
		mapfile -d '' -t inside < <(find -L "$a" -type f -print0)
		files+=("${inside[@]}")
	elif [[ -f $a ]]; then
		files+=("$a")
	else
		die "no such file or folder: $p"
	fi
done
mkdir -p "$root$PWD"
printf '127.0.0.1 localhost rxe-vm\n' >"$root/etc/hosts"
with_libs "${files[@]}"

# The command, as a script for the guest's /bin/sh.
{
	echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.rxe-vm/bin'
	echo 'export HOME=/root TERM=dumb RXE_VM=1'
	for e in "${envs[@]}"; do
		[[ ${e%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || die "bad variable name in -e $e"
		echo "export ${e%%=*}=$(quote "${e#*=}")"
	done
	echo 'ulimit -l unlimited'
	echo "cd $(quote "$PWD") 2>/dev/null || cd /"
	printf exec
	for a in "$@"; do printf ' %s' "$(quote "$a")"; done
	echo
} >"$root/.rxe-vm/command"
{
	echo "bb=$bb ip=$ip rdma=$rdma mtu=$mtu timeout=$timeout"
} >"$root/.rxe-vm/settings"

# PID 1 of the guest. Serial ports: S0 kernel log, S1/S2 the command's stdout and
# stderr, S3 what became of it ("exit N" or "fail REASON").
cat >"$root/init" <<EOF
#!$bb sh
. /.rxe-vm/settings
EOF
cat >>"$root/init" <<'EOF'
$bb --install -s /.rxe-vm/bin
export PATH=/.rxe-vm/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd 2>/dev/null
ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr
for n in 1 2 3; do stty -F /dev/ttyS$n raw -echo -hupcl; done

finish() {
	for n in 1 2; do stty -F /dev/ttyS$n raw; done      # waits until all is sent
	echo "$*" >/dev/ttyS3
	stty -F /dev/ttyS3 raw
	poweroff -f
	sleep 60
}
must() { "$@" || finish fail "$*"; }

hostname rxe-vm
for m in /.rxe-vm/modules/*.ko; do must insmod $m; done
must $ip link set lo up
must $ip link add eth0 mtu $mtu type veth peer name eth1 mtu $mtu
for n in 0 1; do
	# Both ends are in one network namespace (rxe works in no other); these
	# settings let packets between the two addresses go over the cable.
	echo 1 >/proc/sys/net/ipv4/conf/eth$n/accept_local
	echo 1 >/proc/sys/net/ipv4/conf/eth$n/arp_ignore
	echo 0 >/proc/sys/net/ipv4/conf/eth$n/rp_filter
	must $ip addr add 10.99.0.$((n + 1))/24 dev eth$n
	must $ip link set eth$n up
done
for n in 0 1; do
	must $rdma link add rxe$n type rxe netdev eth$n
	port=/sys/class/infiniband/rxe$n/ports/1 try=0
	until grep -q ACTIVE $port/state && grep -q ffff $port/gids/1 2>/dev/null; do
		try=$((try + 1))
		[ $try -lt 100 ] || finish fail "rxe$n did not become active"
		sleep 0.1
	done
done

if [ $timeout -gt 20 ]; then                            # say what hangs
	(sleep $((timeout - 10 - $(cut -d. -f1 /proc/uptime)))
	{ echo "vm.sh: the timeout is near; processes and queue pairs:"
	ps -o pid,ppid,stat,args | grep -v '\[.*\]$'
	$rdma resource show qp; } >/dev/ttyS2 2>&1) </dev/null &
fi
echo up >/dev/ttyS3
/bin/sh /.rxe-vm/command </dev/null >/dev/ttyS1 2>/dev/ttyS2
rc=$?
sync
finish exit $rc
EOF
chmod +x "$root/init"
(cd "$root" && find . | "$bb" cpio -o -H newc -R 0:0 2>/dev/null) >"$work/initramfs"
rm -rf "$root"

# ---- run it ----------------------------------------------------------------
# stdout and stderr pass through FIFOs, so that ours may be anything.
mkfifo "$work/out" "$work/err"
# Without erms and fsrm the kernel copies words, not bytes: soft-RoCE delivers flags by memcpy, and a flag must not be seen
# half written, as it never is from a card.
qemu=(qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -M pc
	-cpu "max,la57=off,erms=off,fsrm=off" -smp "$cpus" -m "$memory" -kernel "$kernel" -initrd "$work/initramfs"
	-append "console=ttyS0 loglevel=$((verbose ? 7 : 5)) panic=-1 nokaslr mitigations=off cryptomgr.notests")
((!kvm)) || qemu+=(-accel kvm)
qemu+=(-accel "tcg,thread=multi")
for port in console out err status; do
	qemu+=(-chardev "file,id=$port,path=$work/$port" -serial "chardev:$port")
done
exec 7<>"$work/out" 8<>"$work/err"             # keeps the readers from waiting at open
# A reader whose own reader is gone (rxe-vm ... | head) drains, lest the guest stall.
{ cat || cat >/dev/null; } <"$work/out" 7>&- 8>&- & readers=($!)
{ cat || cat >/dev/null; } <"$work/err" >&2 7>&- 8>&- & readers+=($!)
# Now and then an emulated kernel gets stuck while it boots, which says nothing of the program: again, then.
for attempt in 1 2 3; do
	: >"$work/status"; : >"$work/console"
	timeout -k 5 "$timeout" "${qemu[@]}" </dev/null >"$work/qemu.log" 2>&1 7>&- 8>&- &
	pids=($! "${readers[@]}")
	for ((waited = 0; waited < boot; ++waited)); do
		if [[ -s $work/status ]] || ! kill -0 "${pids[0]}" 2>/dev/null; then break; fi
		sleep 1
	done
	stuck=0
	if [[ ! -s $work/status ]] && kill -0 "${pids[0]}" 2>/dev/null; then
		stuck=1
		warn "the guest has not booted within $boot s (attempt $attempt of 3)"
		kill "${pids[0]}"
	fi
	rc=0
	wait "${pids[0]}" || rc=$?
	((stuck)) || break
done
exec 7>&- 8>&-
wait "${readers[@]}" || true
pids=()

# ---- say what became of it -------------------------------------------------
console() { tr -d '\r' <"$work/console"; }
((!verbose)) || console >&2
read -r word result < <(tail -n 1 "$work/status") || { word='' result=''; }
trouble=$(console | grep -E 'Out of memory|BUG:|Oops|WARNING:|general protection|segfault at|panic' | head -n 10) || true
[[ -z $trouble ]] || warn "in the guest's kernel log:"$'\n'"$trouble"
((!stuck)) || skip "the virtual machine is too slow here: three times it has not booted within $boot s"
case $word in
exit) exit "$result" ;;
fail) console | tail -n 20 >&2; die "setting up the guest failed: $result" ;;
esac
if ((rc == 124 || rc == 137)); then
	echo "vm.sh: killed after $timeout s (-t)" >&2
	exit 124
fi
cat "$work/qemu.log" >&2
console | tail -n 30 >&2
die "the guest ended before the command did (qemu's exit status $rc)"
