#!/usr/bin/env python3
"""No source is longer than a reader can take in: 500 lines, kernels 800.  length.py ROOT."""

import pathlib
import sys

from sources import CPP_SUFFIXES, sources

LIMIT = 500
KERNEL_LIMIT = 800


def main():
    root = pathlib.Path(sys.argv[1])
    names = sources(root, CPP_SUFFIXES | {".py", ".sh"})
    too_long = 0
    for name in names:
        limit = KERNEL_LIMIT if name.as_posix().startswith("src/kernels/") else LIMIT
        lines = len((root / name).read_text().splitlines())
        if lines > limit:
            too_long += 1
            print(f"{name}: {lines} lines; legal are {limit}: split it by what it owns")
    print(f"{len(names)} files checked, {too_long} too long")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
