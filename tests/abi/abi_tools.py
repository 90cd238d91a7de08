"""What the interface tests share: reading the public headers, and running the ABI tools."""

import pathlib
import re
import shutil
import subprocess
import sys

HEADERS = ("mkernel.h", "mkernel/queue.h", "mkernel/transport.h")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
EXPORTED = re.compile(r"MK_EXPORT\s+([\w\s*]+?)\b(mk\w+)\s*\(([^;{]*)\)\s*;")


def without_comments(path):
    return COMMENT.sub(" ", pathlib.Path(path).read_text())


def exported_functions(header):
    """[(return type, name, parameters)] of the functions declared in mkernel.h."""
    found = [(r.strip(), n, " ".join(p.split())) for r, n, p in EXPORTED.findall(without_comments(header))]
    if not found:
        sys.exit(f"no exported function was found in {header}")
    return found


def run(command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)


def need(*tools):
    """Ends the test as skipped, saying why, where a tool is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            print(f"SKIP: {tool} is not installed")
            sys.exit(77)


def has_debug_info(library):
    """abidiff finds nothing wrong with a library that has none."""
    done = run(["readelf", "--section-headers", "--wide", library])
    return done.returncode == 0 and " .debug_info" in done.stdout


def write_abi(library, include, out):
    """Describes the library's interface, as far as the public headers show it, in a file free of machine paths and of
    the library's insides."""
    # Not --no-show-locs: a type without a place is taken for a private one, and its changes are no longer seen.
    done = run(["abidw", "--headers-dir", include, "--drop-private-types", "--exported-interfaces-only", "--no-corpus-path",
                "--no-comp-dir-path", "--short-locs", "--out-file", out, library])
    if done.returncode != 0:
        sys.exit(f"abidw failed on {library}: {done.stderr}")


def abi_differences(baseline, library, include):
    """'' if every program linked against the baseline works with the library, else what differs."""
    if not has_debug_info(library):
        return f"{library} has no .debug_info: there is nothing to compare"
    done = run(["abidiff", "--no-added-syms", "--exported-interfaces-only", "--headers-dir2", include, baseline, library])
    # The exit status holds bits; only removals set the one called incompatible, so any of them counts.
    return "" if done.returncode == 0 else f"abidiff says {done.returncode}:\n{done.stdout}{done.stderr}"
