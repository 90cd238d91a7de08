"""Runs perf/draw_split.py on sweeps written by hand: test_draw.py DRAW_SPLIT_PY CASE."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from runner import expect

HEADER = {"record": "header", "program": "mk_gemm_ar_perf", "nodes": 2, "ranksPerNode": 1}


def row(asked, sms, us, size=8192, mode="eager", **more):
    split = {"automatic": asked == 0, "asked": asked, "what": "receive", "communicate": sms, "compute": 132 - sms}
    timing = {"mode": mode, "fusedUs": us, "tflops": 2e5 / max(us, 1)}
    return {"record": "row", "M": size, "N": size, "K": size, "split": split, "timing": timing, "passed": True, **more}


def not_run(asked):
    split = {"automatic": False, "asked": asked, "what": "receive", "communicate": 0, "compute": 0}
    return {"record": "row", "M": 8192, "N": 8192, "K": 8192, "split": split, "skipped": "the same launch as split auto"}


# The first shape's automatic split is the best; the second's is 2.5% behind split 8.
NEAR = [
    HEADER,
    row(0, 16, 1000.0), row(8, 8, 1100.0), not_run(16), row(32, 32, 1010.0),
    {"record": "sweep", "M": 8192, "N": 8192, "K": 8192, "mode": "eager", "behindPercent": 0},
    row(0, 16, 102.5, 2048), row(8, 8, 100.0, 2048), row(32, 32, 101.0, 2048),
]  # fmt: skip


def judge(records, *arguments, status, ended=True):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sweep.json")
        with open(path, "w", encoding="utf-8") as file:
            summary = [{"record": "summary", "passed": True}] if ended else []
            file.writelines(json.dumps(record) + "\n" for record in records + summary)
        command = [sys.executable, sys.argv[1], path, *(argument.format(folder=folder) for argument in arguments)]
        # Without matplotlib, whether it is there or not: nothing but drawing needs it.
        drawing = "-o" in arguments
        process = subprocess.run(command if drawing else command[:1] + ["-I", "-S"] + command[1:], capture_output=True,
                                 text=True, timeout=60, check=False)  # fmt: skip
        print("+", " ".join(command), process.stdout, process.stderr, sep="\n", flush=True)
        expect(process.returncode == status, f"exit status {process.returncode}, not {status}")
        pictures = {}
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                pictures[name] = file.read()
        return process.stdout, process.stderr, pictures


def near():
    out, _, _ = judge(NEAR, "--check", "3", status=0)
    expect("0.00% behind split auto (16), 1000.00 us, of 3" in out, "the best split is the automatic one")
    expect("2.50% behind split 8 (8), 100.00 us, of 3" in out, "how far the other is behind")
    expect("PASSED" in out, "verdict")


def far():
    out, _, _ = judge(NEAR, "--check", "2", status=1)
    expect("FAR   GEMM+AllReduce, 2 x 1, eager, M 2048, N 2048, K 2048" in out, "which shape is far")
    expect("near  GEMM+AllReduce, 2 x 1, eager, M 8192, N 8192, K 8192" in out, "which shape is near")
    expect("FAILED" in out, "verdict")
    # The same shape launched otherwise, and in another world, has a best of its own.
    other = dict(HEADER, nodes=1, ranksPerNode=2)
    judge([*NEAR, row(0, 16, 50.0, mode="graph"), other, row(0, 16, 70.0), row(8, 8, 69.0)], "--check", "3", status=0)
    judge([*NEAR, row(0, 16, 50.0, mode="graph"), row(8, 8, 48.0, mode="graph")], "--check", "3", status=1)


def unusable():
    out, _, _ = judge([HEADER, row(8, 8, 100.0)], "--check", "3", status=1)
    expect("the automatic split was not timed" in out, "no automatic split")
    out, _, _ = judge([*NEAR, row(64, 64, 2000.0, passed=False)], "--check", "3", status=1)
    expect("WRONG RESULT: GEMM+AllReduce, 2 x 1, eager, M 8192, N 8192, K 8192, split 64" in out, "a wrong result")
    without = {key: value for key, value in row(0, 16, 1.0).items() if key != "timing"}
    for records in ([HEADER, without], [HEADER], [HEADER, {"record": "row", "M": 1, "N": 1, "K": 1}]):
        _, err, _ = judge(records, "--check", "3", status=2)
        expect("no split in it was timed" in err, "no times")
    _, err, _ = judge([row(0, 16, 1.0)], "--check", "3", status=2)
    expect("line 1: a row before any header" in err, "no header")
    _, err, _ = judge([HEADER, row(0, 16, 0.0)], "--check", "3", status=2)
    expect("line 2: a time of 0.0 us" in err, "a time that is none")
    _, err, _ = judge([HEADER, {"record": "row", "split": {}}], "--check", "3", status=2)
    expect("line 2: not a line that --json writes" in err, "a line of something else")
    _, err, _ = judge(NEAR, "--check", "3", status=2, ended=False)
    expect("the run did not come to its end" in err, "a run that was ended")
    _, err, _ = judge([*NEAR, row(0, 16, 999.0)], "--check", "3", status=2)
    expect("rows of two runs" in err, "rows of two runs")
    wrong = {**without, "passed": False}
    _, err, _ = judge([HEADER, wrong], "-o", "{folder}/split.svg", status=2)
    expect("nothing to draw" in err, "nothing to draw")
    judge(NEAR, status=2)


def picture():
    if importlib.util.find_spec("matplotlib") is None:
        print("SKIP: no matplotlib is here")
        sys.exit(77)
    for y in ("relative", "tflops"):
        for name, magic in (("split.svg", b"<?xml"), ("split.png", b"\x89PNG")):
            _, _, files = judge(NEAR, "-o", "{folder}/" + name, "--y", y, "--check", "3", status=0)
            expect(files[name].startswith(magic), f"{name} is a picture")
            expect(len(files[name]) > 5000, f"{name} has something in it")


cases = {name: function for name, function in list(globals().items()) if callable(function)}
cases[sys.argv[2]]()
