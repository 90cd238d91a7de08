#!/usr/bin/env python3
"""Adds up what `meson test` left in several build directories: the last step of tests/run.sh.

Unit tests print "CASES: N passed, N failed" at their end and count by test case; every other test counts as one.  A test
that could not run prints "SKIP: reason" and exits with 77; a test case of a unit test that could not run prints "SKIP CASE:
reason" and counts there as passed, so it is taken off again.  The reasons are shown.  A build directory that did not
build, or whose tests left no results, counts as one failure; one that was left out, as one skipped test.  Prints as its very last line
"N passed, N failed, N skipped"; exits with 0 if nothing failed and something passed.
"""

import argparse
import json
import pathlib
import re
import sys

CASES = re.compile(r"^CASES: (\d+) passed, (\d+) failed$", re.MULTILINE)
SKIP = re.compile(r"^SKIP(?: CASE)?: (.*)$", re.MULTILINE)
SHOWN_FAILURES = 4
SHOWN_LINES = 60
SKIPPED_CASE = re.compile(r"^SKIP CASE: ", re.MULTILINE)


class Summary:
    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = []  # lines
        self.failures = []  # lines
        self.said = []  # lines of the failed tests

    def add(self, directory, test):
        name = f"{directory}: {test['name']}"
        output = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
        result = test["result"]
        reasons = SKIP.findall(output)
        if result == "SKIP":
            self.skipped.append(f"{name}: {'; '.join(reasons) or 'the test gives no reason'}")
            return
        cases = CASES.findall(output)
        good = result in ("OK", "EXPECTEDFAIL")
        passed, failed = (int(n) for n in cases[-1]) if cases else (int(good), int(not good))
        if not good and failed == 0:
            failed = 1  # it crashed, ran out of time, or a sanitizer spoke, after its last test case
        self.passed += max(0, passed - len(SKIPPED_CASE.findall(output)))
        self.failed += failed
        self.skipped += [f"{name}: {reason}" for reason in reasons]
        if failed > 0:
            self.failures.append(f"{name}: {result}, {failed} failed")
            if len(self.failures) <= SHOWN_FAILURES:
                self.said.append(f"{name} ended with:")
                self.said += ["  | " + line[:300] for line in output.strip().splitlines()[-SHOWN_LINES:]]

    def add_failure(self, line):
        self.failed += 1
        self.failures.append(line)


def summarise(directories, broken, left_out):
    summary = Summary()
    for directory in directories:
        log = pathlib.Path(directory) / "meson-logs" / "testlog.json"
        if directory in left_out:
            summary.skipped.append(f"{directory}: all of it, for want of time (MKERNEL_TEST_MINUTES)")
            continue
        if directory in broken:
            summary.add_failure(f"{directory}: did not build")
            continue
        lines = log.read_text().splitlines() if log.exists() else []
        if not lines:
            summary.add_failure(f"{directory}: no test has run")
        for line in lines:
            summary.add(directory, json.loads(line))
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", default="", help="directories that did not build, separated by blanks")
    parser.add_argument("--left-out", default="", help="directories that were not built, likewise")
    parser.add_argument("directories", nargs="+")
    arguments = parser.parse_args()
    summary = summarise(arguments.directories, arguments.broken.split(), arguments.left_out.split())
    if summary.skipped:
        print("Skipped:\n" + "\n".join(f"  {line}" for line in summary.skipped))
    if summary.said:
        print("\n".join(summary.said))
    if summary.failures:
        print("Failed (see meson-logs/testlog.txt in the directory):\n" + "\n".join(f"  {l}" for l in summary.failures))
    print(f"{summary.passed} passed, {summary.failed} failed, {len(summary.skipped)} skipped")
    return 0 if summary.failed == 0 and summary.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
