#!/usr/bin/env python3
"""Every public header compiles alone, as C and as C++, with all warnings, twice in one file, and without CUDA:
headers_test.py INCLUDE COMPILER...
"""

import pathlib
import shutil
import sys
import tempfile

from abi_tools import HEADERS, run

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wundef", "-Werror"]
LANGUAGES = [("c", "c99"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")]


def main():
    include = pathlib.Path(sys.argv[1])
    compilers = [c for c in sys.argv[2:] if shutil.which(c)]
    public = sorted(p.relative_to(include).as_posix() for p in include.rglob("*") if p.is_file())
    if public != sorted(HEADERS):
        print(f"include/ holds {public}, the tests know {HEADERS}")
        return 1
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for header in public:
            source = pathlib.Path(folder) / "alone.source"
            source.write_text(f'#include "{header}"\n#include "{header}"\ntypedef int not_empty;\n')
            for compiler in compilers:
                for language, standard in LANGUAGES:
                    flags = [f"-std={standard}", "-x", language, "-I", include, *WARNINGS]
                    done = run([compiler, *flags, "-fsyntax-only", source])
                    used = run([compiler, *flags, "-M", source]).stdout
                    cuda = [word for word in used.split() if "cuda" in word.lower()]
                    good = done.returncode == 0 and used and not cuda
                    passed, failed = passed + bool(good), failed + (not good)
                    if not good:
                        print(f"{header} as {standard} with {compiler}:\n{done.stderr}{' '.join(cuda)}")
    print(f"CASES: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
