#!/usr/bin/env python3
"""Proves that the checks of the binary interface catch what they are there for: controls_test.py BASELINE MAP INCLUDE LAYOUT_C

Each variant below breaks a copy of the public headers in one way.  The copy is compiled into a small library that defines
every declared function, and must then be caught by abidiff against the stored baseline, by the layout pins, or by both, as
noted.  The unchanged headers must pass everything, or the variants would prove nothing.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from abi_tools import HEADERS, abi_differences, exported_functions, need, run

API, QUEUE, TRANSPORT = HEADERS
# (what is broken, header, text, its replacement, who must catch it: a = abidiff, p = layout pins)
VARIANTS = [
    ("function removed", API, "MK_EXPORT mkResult_t mkCommRevoke(mkComm_t comm);", "", "a"),
    ("parameter's type changed", API, "mkMemAlloc(void** ptr, size_t bytes)", "mkMemAlloc(void** ptr, int bytes)", "a"),
    ("parameter added", API, "mkCommAbort(mkComm_t comm)", "mkCommAbort(mkComm_t comm, int timeoutMs)", "a"),
    ("parameters swapped", API, "int nranks, int rank, mkAllgatherFn fn, void* user,",
     "int nranks, int rank, void* user, mkAllgatherFn fn,", "a"),
    ("result type changed", API, "MK_EXPORT mkResult_t mkCommFinalize(", "MK_EXPORT void mkCommFinalize(", "a"),
    ("callback's signature changed", API, "void* recv, size_t bytes, void* user);", "void* recv, int bytes, void* user);", "a"),
    ("enumerator renumbered", API, "mkFloat32 = 7,", "mkFloat32 = 17,", "p"),
    ("result code changed", API, "mkErrorTimeout = 8,", "mkErrorTimeout = 9,", "ap"),
    ("enumerator inserted", API, "mkErrorSystem = 2, ", "mkErrorOther, mkErrorSystem, ", "ap"),
    ("field widened", API, "uint32_t tileM, tileN;", "uint64_t tileM; uint32_t tileN;", "ap"),
    ("field narrowed, its place kept by padding", API, "uint64_t heapBytes;     /*", "uint32_t heapBytes;     /*", "ap"),
    ("fields swapped", API, "int32_t nranks, rank;", "int32_t rank, nranks;", "ap"),
    ("field inserted in the middle", API, "const char* hostId; /*", "const char* hostId; const char* rackId; /*", "ap"),
    ("field removed", API, "uint32_t reserved0;\n  uint32_t chunkRows;", "uint32_t chunkRows;", "ap"),
    ("field appended without a new pin", API, "\n} mkTune_t;", "\n  uint32_t next;\n} mkTune_t;", "ap"),
    ("pointed-to type changed", API, "const char* name;              /* MKERNEL_", "const int* name; /* MKERNEL_", "a"),
    ("array shortened", API, "#define MK_MAX_DIMS 5", "#define MK_MAX_DIMS 4", "ap"),
    ("identifier of a structure changed", API, "#define MK_ID_TUNE 0x6d6b0006u", "#define MK_ID_TUNE 0x6d6b0007u", "p"),
    ("constant changed", API, "#define MK_LAYOUT_NK 2u", "#define MK_LAYOUT_NK 3u", "p"),
    ("entries of the plugin table swapped", TRANSPORT, "int (*registerMemory)(", "int (*zeroth)(void); int (*registerMemory)(", "p"),
    ("field of the plugin's write widened", TRANSPORT, "  uint32_t immediate; /* completion",
     "  uint64_t immediate; /* completion", "p"),
    ("words of the command swapped", QUEUE, "uint64_t slot; ", "uint64_t epoch_; ", "p"),
]


def compile_library(include, map_file, out):
    """A library with an empty body for every declared function.  Returns the compiler's complaint, or ''."""
    lines = ['#include "mkernel.h"', 'extern "C" {']
    for result, name, parameters in exported_functions(include / API):
        lines.append(f"{result} {name}({parameters}) {{ return {'' if result == 'void' else f'({result})0'}; }}")
    source = out.with_suffix(".cc")
    source.write_text("\n".join(lines + ["}", ""]))
    done = run(["c++", "-std=c++20", "-g", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-I", include,
                f"-Wl,--version-script={map_file}", "-Wl,-soname,libmkernel.so.0", source, "-o", out])
    return done.stderr if done.returncode else ""


def pins_hold(include, layout):
    return run(["cc", "-std=c99", "-w", "-I", include, "-fsyntax-only", layout]).returncode == 0


class Controls:
    def __init__(self, baseline, map_file, include, layout, folder):
        self.baseline, self.map_file, self.include, self.layout = baseline, map_file, include, layout
        self.folder = folder
        self.passed, self.failed = 0, 0

    def say(self, title, problem):
        if problem:
            self.failed += 1
            print(f"{title}: {problem}")
        else:
            self.passed += 1

    def variant(self, number, header, text, replacement):
        """(folder of the broken headers, its library); ends the test if the text to break is not there exactly once."""
        include = self.folder / f"include{number}"
        shutil.copytree(self.include, include)
        old = (include / header).read_text()
        if old.count(text) != 1:
            sys.exit(f"variant {number}: {header} holds {text!r} {old.count(text)} times, it must be once: mend this list")
        (include / header).write_text(old.replace(text, replacement))
        library = self.folder / f"libvariant{number}.so"
        complaint = compile_library(include, self.map_file, library)
        if complaint:
            sys.exit(f"variant {number} does not compile: {complaint}")
        return include, library

    def unchanged(self):
        include, library = self.variant(0, API, "mkGetVersion", "mkGetVersion")
        self.say("unchanged headers", abi_differences(self.baseline, library, include))
        self.say("unchanged headers", "" if pins_hold(include, self.layout) else "the layout pins do not hold")
        return library

    def function_added(self):
        """Additions are no breach: abidiff must let them pass (symbols_test sees that they are listed in the map)."""
        include, library = self.variant(
            1, API, "MK_EXPORT mkResult_t mkMemFree(void* ptr);",
            "MK_EXPORT mkResult_t mkMemFree(void* ptr); MK_EXPORT mkResult_t mkMemSize(void* ptr, size_t* bytes);")
        self.say("function added", abi_differences(self.baseline, library, include))

    def stripped(self):
        """Without debug information abidiff is content with anything; has_debug_info() must not be."""
        include, library = self.variant(2, API, "uint32_t tileM, tileN;", "uint64_t tileM; uint32_t tileN;")
        subprocess.run(["strip", "--strip-debug", library], check=True)
        found = abi_differences(self.baseline, library, include)
        self.say("stripped library", "" if "no .debug_info" in found else f"was not refused: {found!r}")

    def broken(self):
        for number, (title, header, text, replacement, catchers) in enumerate(VARIANTS, start=10):
            include, library = self.variant(number, header, text, replacement)
            caught = ("a" if abi_differences(self.baseline, library, include) else "") + (
                "" if pins_hold(include, self.layout) else "p")
            self.say(title, "" if caught == catchers else f"caught by {caught or 'nobody'}, must be by {catchers}")

    def unpinned(self):
        """A field that is pinned nowhere must be missed by pins_test.py."""
        include, _ = self.variant(3, API, "uint32_t maxSMs;  ", "uint32_t maxSMs, extra;  ")
        script = pathlib.Path(__file__).with_name("pins_test.py")
        for folder, wanted in ((self.include, 0), (include, 1)):
            done = run([sys.executable, script, folder, self.layout])
            self.say(f"pins of {folder.name}", "" if done.returncode == wanted else f"status {done.returncode}")


def main():
    baseline, map_file, include, layout = (pathlib.Path(p) for p in sys.argv[1:5])
    need("abidiff", "readelf", "strip", "c++", "cc")
    with tempfile.TemporaryDirectory() as folder:
        controls = Controls(baseline, map_file, include, layout, pathlib.Path(folder))
        controls.unchanged()
        controls.function_added()
        controls.stripped()
        controls.unpinned()
        controls.broken()
    print(f"CASES: {controls.passed} passed, {controls.failed} failed")
    return 1 if controls.failed else 0


if __name__ == "__main__":
    sys.exit(main())
