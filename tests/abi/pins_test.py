#!/usr/bin/env python3
"""layout.c pins everything public: every structure and field, every enumerator, every constant; and the pins hold, as C
and as C++.  pins_test.py INCLUDE LAYOUT_C
"""

import pathlib
import re
import sys

from abi_tools import HEADERS, run, without_comments

STRUCT = re.compile(r"typedef struct\s*\{(.*?)\}\s*(\w+);", re.DOTALL)
ENUM = re.compile(r"typedef enum\s*\{(.*?)\}\s*(\w+);", re.DOTALL)
CONSTANT = re.compile(r"^#define (MK_\w+) +(\S.*)$", re.MULTILINE)
# These change with every version, or are no numbers.
FREE = {"MK_MAJOR", "MK_MINOR", "MK_PATCH", "MK_VERSION_CODE", "MK_TRANSPORT_ABI_MINOR", "MK_TRANSPORT_SYMBOL", "MK_EXPORT",
        "MK_QUEUE_FN"}


def fields(body):
    for declaration in filter(None, (d.strip() for d in body.split(";"))):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        if pointer:
            yield pointer.group(1)
        else:
            for name in declaration.split(","):
                yield re.search(r"(\w+)\s*(?:\[.*\])?$", name.strip()).group(1)


def wanted(text):
    for body, name in STRUCT.findall(text):
        names = list(fields(body))
        yield rf"STRUCT\({name}, \d+, {names[-1]}\);"
        yield from (rf"FIELD\({name}, {field}, \d+, \d+\);" for field in names)
    for body, _ in ENUM.findall(text):
        yield from (rf"VALUE\({e.split('=')[0].strip()}, \w+\);" for e in body.split(",") if e.strip())
    yield from (rf"VALUE\({name}, \w+\);" for name, _ in CONSTANT.findall(text) if name not in FREE)


def complaints(include, layout):
    """What the compilers say of layout.c."""
    text = ""
    for compiler, *language in (("cc", "-std=c99"), ("c++", "-std=c++11", "-x", "c++"), ("c++", "-std=c++20", "-x", "c++")):
        done = run([compiler, *language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", include, "-fsyntax-only", layout])
        text += done.stderr or ("" if done.returncode == 0 else f"{compiler}: status {done.returncode}")
    return text


def main():
    include, layout_file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    layout = layout_file.read_text()
    broken = complaints(include, layout_file)
    print(broken)
    pins = [pin for header in HEADERS for pin in wanted(without_comments(include / header))]
    missing = [pin for pin in pins if not re.search(pin, layout)]
    for pin in missing:
        print("layout.c has no line like", pin.replace("\\", ""))
    present = len(re.findall(r"^(?:STRUCT|FIELD|VALUE)\(", layout, re.MULTILINE))
    if present != len(pins):
        print(f"layout.c has {present} pins, the headers call for {len(pins)}")
    return 1 if broken or missing or present != len(pins) or len(pins) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
