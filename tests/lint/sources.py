"""Which files the lint tests look at, and which version of the clang tools they use."""

import pathlib
import shutil
import subprocess
import sys

CPP_SUFFIXES = {".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu", ".def"}
FOLDERS = ("include", "src", "plugins", "tests", "perf")
# Formatting and checks differ between versions, so one is fixed.
CLANG_MAJOR = 14


def sources(root, suffixes):
    """Tracked files with these suffixes, relative to the root; without git, all files in the source folders."""
    tracked = b""
    if shutil.which("git"):
        command = ["git", "-C", root, "ls-files", "-z", "--", *FOLDERS]
        tracked = subprocess.run(command, capture_output=True, check=False).stdout
    if tracked:
        names = [pathlib.Path(name) for name in tracked.decode().split("\0") if name]
    else:
        names = [p.relative_to(root) for folder in FOLDERS for p in (pathlib.Path(root) / folder).rglob("*")]
    names = sorted(n for n in names if n.suffix in suffixes and (pathlib.Path(root) / n).is_file())
    if not names:
        sys.exit(f"no source was found in {root}: is this the project's root?")
    return names


def clang_tool(name):
    """Path of clang-format or clang-tidy of the fixed version; ends the test as skipped where there is none."""
    for candidate in (f"{name}-{CLANG_MAJOR}", name):
        path = shutil.which(candidate)
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if f"version {CLANG_MAJOR}." in version:
            return path
    print(f"SKIP: there is no {name} of version {CLANG_MAJOR} here (package {name}-{CLANG_MAJOR})")
    sys.exit(77)
