#!/usr/bin/env python3
"""clang-tidy over src/, plugins/ and perf/: tidy.py ROOT BUILD.  Works through the build's compile_commands.json on all
cores.  A file that was clean is not checked again before something in it, in its headers, or in .clang-tidy has changed:
clean results are kept in BUILD/tidy-clean.json by a hash of the preprocessed text, comments (NOLINT) included.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

from sources import clang_tool

CHECKED = ("src", "plugins", "perf")
# gcc's command line knows warnings that clang does not.  And a third of the analyzer's usual effort for one function: the
# rest takes half of the time and goes into the insides of the standard library.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option"] + [
    f"--extra-arg={a}" for a in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=75000")]
PROBE = "#include <chrono>\n#include <functional>\n#include <span>\n#include <string>\n#include <vector>\n"


def commands(root, build):
    """{file: (folder, compiler command)} of the C++ files to check, each once."""
    result = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if file.suffix != ".cc" or not any(file.is_relative_to(root / folder) for folder in CHECKED):
            continue
        if file.is_relative_to(root / "plugins") and "tests" in file.parts:
            continue
        result.setdefault(file, (entry["directory"], shlex.split(entry["command"])))
    return result


def preprocessed_hash(folder, command, salt):
    """A hash of everything the checks can see; None if the preprocessor fails (then the check says why)."""
    drop_next, arguments = False, []
    for argument in command:
        if drop_next or argument in ("-o", "-MF", "-MQ"):
            drop_next = not drop_next
        elif argument not in ("-c", "-MD"):
            arguments.append(argument)
    done = subprocess.run(arguments + ["-E", "-C"], cwd=folder, capture_output=True, check=False)
    return hashlib.sha256(salt + done.stdout).hexdigest() if done.returncode == 0 else None


def check(tool, root, build, file, command, clean, salt):
    key = preprocessed_hash(*command, salt)
    name = file.relative_to(root).as_posix()
    if key is not None and clean.get(name) == key:
        return name, key, 0.0, ""
    start = time.monotonic()
    done = subprocess.run([tool, "-p", str(build), "--quiet", *EXTRA, str(file)], cwd=root, capture_output=True, text=True,
                          check=False)
    report = done.stdout if done.returncode == 0 and not done.stdout.strip() else done.stdout + done.stderr
    return name, key, time.monotonic() - start, report.strip()


def skip_if_unreadable(tool):
    """clang 14 cannot read the C++ library of every newer compiler."""
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder) / "probe.cc"
        probe.write_text(PROBE)
        done = subprocess.run([tool, "--checks=-*,bugprone-*", str(probe), "--", "-std=c++20"], capture_output=True,
                              text=True, check=False)
    if done.returncode != 0:
        print(f"SKIP: {tool} cannot read this system's C++ library: {done.stdout.strip().splitlines()[:1]}")
        sys.exit(77)


def main():
    root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    tool = clang_tool("clang-tidy")
    skip_if_unreadable(tool)
    kept = build / "tidy-clean.json"
    clean = json.loads(kept.read_text()) if kept.exists() else {}
    version = subprocess.run([tool, "--version"], capture_output=True, check=True).stdout
    salt = version + " ".join(EXTRA).encode() + (root / ".clang-tidy").read_bytes()
    work = commands(root, build)
    if not work:
        print("no source to check was found in compile_commands.json")
        return 1
    only = {pathlib.Path(p).resolve() for p in sys.argv[3:]}  # for use by hand: files to check
    work = {f: c for f, c in work.items() if not only or f in only}
    found = {}
    faults, again = 0, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(check, tool, root, build, f, c, clean, salt) for f, c in work.items()]
        for job in concurrent.futures.as_completed(jobs):
            name, key, seconds, report = job.result()
            if report:
                faults += 1
                print(f"---- {name}\n{report}", flush=True)
                continue
            again += seconds > 0
            if seconds > 20:
                print(f"{name}: {seconds:.0f} s", flush=True)
            if key is not None:
                found[name] = key
    kept.write_text(json.dumps({**clean, **found}, indent=0))
    print(f"{len(work)} files, {again} checked anew and clean, {faults} with findings")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
