#!/usr/bin/env python3
"""Writes the baseline of the interface anew: update_baseline.py LIBRARY INCLUDE BASELINE, by `ninja -C build abi-baseline`.
When that is right, ABI.md says.
"""

import sys

from abi_tools import has_debug_info, write_abi


def main():
    library, include, baseline = sys.argv[1:4]
    if not has_debug_info(library):
        sys.exit(f"{library} has no .debug_info; build with -Dbuildtype=debugoptimized")
    write_abi(library, include, baseline)
    print(f"{baseline} written: look at the difference before you commit it")


if __name__ == "__main__":
    main()
