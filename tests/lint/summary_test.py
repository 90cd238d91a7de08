#!/usr/bin/env python3
"""tests/support/summary.py counts as it says, above all what has failed."""

import json
import pathlib
import subprocess
import sys
import tempfile

OK = {"name": "a", "result": "OK", "stdout": ""}
CASES = {"name": "b", "result": "OK", "stdout": "text\nCASES: 7 passed, 0 failed\nAll good\n"}
SKIPPED = {"name": "c", "result": "SKIP", "stdout": "SKIP: no abidw here\n"}
SKIPPED_CASE = {"name": "d", "result": "OK", "stdout": "SKIP CASE: no IPv6\nCASES: 3 passed, 0 failed\n"}
PARTLY_SKIPPED = {"name": "h", "result": "OK", "stdout": "SKIP: no MPI\nCASES: 9 passed, 0 failed\n"}
FAILED = {"name": "e", "result": "FAIL", "stdout": "CASES: 4 passed, 2 failed\n"}
CRASHED = {"name": "f", "result": "FAIL", "stdout": "CASES: 4 passed, 0 failed\n", "stderr": "LeakSanitizer: leaks"}
TIMEOUT = {"name": "g", "result": "TIMEOUT", "stdout": ""}

# (tests by directory, directories that did not build, wanted last line, wanted exit status); "late" is left out.
SCENES = [
    ({"x": [OK, CASES]}, "", "8 passed, 0 failed, 0 skipped", 0),
    ({"x": [OK, SKIPPED, SKIPPED_CASE]}, "", "3 passed, 0 failed, 2 skipped", 0),
    ({"x": [PARTLY_SKIPPED]}, "", "9 passed, 0 failed, 1 skipped", 0),
    ({"x": [OK], "y": [CASES]}, "", "8 passed, 0 failed, 0 skipped", 0),
    ({"x": [OK, FAILED]}, "", "5 passed, 2 failed, 0 skipped", 1),
    ({"x": [CRASHED]}, "", "4 passed, 1 failed, 0 skipped", 1),
    ({"x": [OK, TIMEOUT]}, "", "1 passed, 1 failed, 0 skipped", 1),
    ({"x": [OK], "y": None}, "", "1 passed, 1 failed, 0 skipped", 1),  # no results at all
    ({"x": [OK], "y": [OK]}, " y", "1 passed, 1 failed, 0 skipped", 1),
    ({"x": [OK], "late": None}, "", "1 passed, 0 failed, 1 skipped", 0),
    ({"x": [OK], "late": [FAILED]}, "", "1 passed, 0 failed, 1 skipped", 0),  # of an earlier run
    ({"x": [FAILED], "late": None}, "", "4 passed, 2 failed, 1 skipped", 1),
    ({"late": None}, "", "0 passed, 0 failed, 1 skipped", 1),
    ({"x": [SKIPPED]}, "", "0 passed, 0 failed, 1 skipped", 1),  # nothing ran
]


def main():
    script = pathlib.Path(__file__).parent.parent / "support" / "summary.py"
    failures = 0
    for tests, broken, line, status in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            for directory, results in tests.items():
                logs = pathlib.Path(folder) / directory / "meson-logs"
                logs.mkdir(parents=True)
                if results is not None:
                    (logs / "testlog.json").write_text("".join(json.dumps(r) + "\n" for r in results))
            done = subprocess.run([sys.executable, script, "--broken", broken, "--left-out", "late", *tests], cwd=folder,
                                  capture_output=True, text=True, check=False)
        last = done.stdout.splitlines()[-1] if done.stdout else done.stderr
        # What failed tests said last, and no others.
        results = [r for name, rs in tests.items() if rs and name not in broken and name != "late" for r in rs]
        shown = {r["name"] for r in results if f"{r['name']} ended with:\n" in done.stdout}
        failed = {r["name"] for r in results if r["result"] in ("FAIL", "TIMEOUT")}
        said = all(f"  | {r['stderr']}" in done.stdout for r in results if r.get("stderr"))
        if (last, done.returncode) != (line, status) or shown != failed or not said:
            failures += 1
            print(f"{tests} {broken}: wanted '{line}', status {status}; got '{last}', status {done.returncode}, "
                  f"words of {shown}")
    print(f"CASES: {len(SCENES) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
