#!/usr/bin/env python3
"""Runs the tests of the suite `gpu` of a build, which may have been made in another place: gpu_tests.py BUILD [NAME...].

Meson itself knows its tests by the absolute paths of the machine that configured the build.  Those paths are replaced here;
nothing else of a build depends on where it lies.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

SKIPPED = 77


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    only = sys.argv[2:]
    source = pathlib.Path(__file__).resolve().parent.parent
    information = build / "meson-info"
    folders = json.loads((information / "meson-info.json").read_text())["directories"]
    tests = json.loads((information / "intro-tests.json").read_text())

    def here(text):
        if text.startswith("/") and ":" not in text:
            text = os.path.normpath(text)
        # The build may lie inside the source folder.
        return text.replace(folders["build"], str(build)).replace(folders["source"], str(source))

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for test in tests:
        if not any(suite.split(":")[-1] == "gpu" for suite in test["suite"]) or only and test["name"] not in only:
            continue
        command = [here(word) for word in test["cmd"]]
        if not os.path.exists(command[0]):
            command[0] = os.path.basename(command[0])  # a tool, which lies elsewhere here
        environment = dict(os.environ)
        for name, value in test["env"].items():
            before = [environment[name]] if name == "LD_LIBRARY_PATH" and environment.get(name) else []
            environment[name] = ":".join([*map(here, value.split(":")), *before])
        print(f"---- {test['name']}: {' '.join(command)}", flush=True)
        start = time.monotonic()
        process = subprocess.Popen(command, env=environment, cwd=build, start_new_session=True)
        try:
            status = process.wait(timeout=test["timeout"])
        except subprocess.TimeoutExpired:
            status = f"no end within {test['timeout']} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what the test may have left
            except ProcessLookupError:
                pass
            process.wait()
        verdict = "passed" if status == 0 else "skipped" if status == SKIPPED else "failed"
        counts[verdict] += 1
        print(f"---- {test['name']}: {verdict} ({status}), {time.monotonic() - start:.1f} s", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), flush=True)
    return 1 if counts["failed"] or not sum(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
