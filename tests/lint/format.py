#!/usr/bin/env python3
"""Every tracked C and C++ source is as clang-format leaves it: format.py ROOT."""

import subprocess
import sys

from sources import CPP_SUFFIXES, clang_tool, sources


def main():
    root = sys.argv[1]
    tool = clang_tool("clang-format")
    names = [str(n) for n in sources(root, CPP_SUFFIXES - {".def"})]
    done = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *names], cwd=root, check=False)
    print(f"{len(names)} files checked")
    if done.returncode:
        print(f"to mend them: {tool} -i FILE...")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
