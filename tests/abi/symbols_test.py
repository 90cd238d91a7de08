#!/usr/bin/env python3
"""The library exports what mkernel.h declares and nothing else, each symbol with its version; it needs no library beyond
those of C and C++, and has the soname programs look for.  symbols_test.py LIBRARY MAP INCLUDE
"""

import pathlib
import re
import sys

from abi_tools import exported_functions, need, run

SONAME = "libmkernel.so.0"
ALLOWED = re.compile(r"^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64|ld-linux-aarch64|libpthread|libdl|librt)\.so\.\d+$")


def map_symbols(path):
    """{symbol: version node} of a linker map; patterns other than the final local: * are refused."""
    text = re.sub(r"#[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    result = {}
    for node, body in re.findall(r"(MKERNEL_[\d.]+)\s*\{(.*?)\}", text, re.DOTALL):
        exported, _, local = body.partition("local:")
        if "*" in exported or local.split() not in ([], ["*;"]):
            sys.exit(f"{path}: {node} has a pattern; symbols are listed one by one")
        names = exported.replace("global:", "").replace(";", " ").split()
        result.update({name: node for name in names})
    return result


def library_symbols(path):
    """{symbol: version} of the defined dynamic symbols."""
    result = {}
    for line in run(["nm", "-D", "--defined-only", "--with-symbol-versions", path]).stdout.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind == "A":
            continue  # the version nodes themselves
        symbol, _, version = name.partition("@@")
        result[symbol] = version
    return result


def main():
    library, map_file, include = (pathlib.Path(p) for p in sys.argv[1:4])
    need("nm", "readelf")
    problems = []
    declared = {name for _, name, _ in exported_functions(include / "mkernel.h")}
    mapped, exported = map_symbols(map_file), library_symbols(library)
    for name in sorted(declared | set(mapped) | set(exported)):
        places = [p for p, names in (("mkernel.h", declared), ("mkernel.map", mapped), ("the library", exported))
                  if name not in names]
        if places:
            problems.append(f"{name} is missing from {' and '.join(places)}")
        elif exported[name] != mapped[name]:
            problems.append(f"{name} is exported as {exported[name] or 'unversioned'}, mapped as {mapped[name]}")

    dynamic = run(["readelf", "--dynamic", "--wide", library]).stdout
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not ALLOWED.match(name):
            problems.append(f"the library needs {name}; legal are the C and C++ libraries")
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    if soname != [SONAME]:
        problems.append(f"the soname is {soname}; legal is {SONAME}")
    if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        problems.append("the library has a run path; it must find nothing by the place it was built in")
    print("\n".join(problems) or f"{len(exported)} symbols, {soname[0]}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
