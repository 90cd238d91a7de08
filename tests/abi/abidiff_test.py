#!/usr/bin/env python3
"""Programs linked against the baseline work with this build: abidiff_test.py BASELINE LIBRARY INCLUDE"""

import sys

from abi_tools import abi_differences, need


def main():
    need("abidiff", "readelf")
    baseline, library, include = sys.argv[1:4]
    differences = abi_differences(baseline, library, include)
    if differences:
        print(differences)
        print("If the change is one that ABI.md allows: ninja -C build abi-baseline, and commit the new baseline with it.")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
