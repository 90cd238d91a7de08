"""Runs --sweep-split of a program that runs an operation: test_sweep.py PROGRAM MPIRUN_SH CASE."""

import json
import os
import subprocess
import sys
import tempfile

from runner import expect, need_gpus, refused, run

SHAPE = ["-b", "66", "-e", "130", "-i", "64", "--N", "128", "--K", "256", "-w", "0", "-n", "2"]
SIZES = [66, 130]
DRAW = os.path.join(os.path.dirname(__file__), os.pardir, "draw_split.py")


def swept(ranks, *arguments):
    """Of a run that must pass: standard output, header, the shapes' lists of rows with their verdicts, and the summary."""
    status, out, _, records = run(ranks, *arguments)
    expect(status == 0, f"exit status {status}, not 0")
    expect("PASSED" in out and "FAILED" not in out, "verdict of the footer")
    expect(records[0]["record"] == "header" and records[-1]["record"] == "summary", "records of the JSON")
    shapes, rows = [], []
    for record in records[1:-1]:
        if record["record"] == "row":
            rows.append(record)
            continue
        expect(record["record"] == "sweep", f"record {record['record']}")
        expect(all(row["M"] == record["M"] for row in rows), "a verdict stands behind its shape's rows")
        shapes.append((rows, record))
        rows = []
    expect(not rows, "rows without a verdict")
    for rows, _ in shapes:
        expect(rows[0]["split"]["automatic"] and "skipped" not in rows[0], "the automatic split comes first, and is run")
        for row in rows:
            if "skipped" in row:
                continue
            expect(row["passed"] and row["checked"] and row["wrong"] == 0, f"{row['split']} right")
            expect(row["split"]["compute"] == row["computeAgents"], f"{row['split']} computes")
            expect(row["netBytes"] == row["netBytesExpected"], f"{row['split']}: bytes")
    run_rows = [row for rows, _ in shapes for row in rows if "skipped" not in row]
    expect(records[-1]["rows"] == len(run_rows), "rows of the summary")
    expect(records[-1]["splitsNotRun"] == sum(len(rows) for rows, _ in shapes) - len(run_rows), "splits not run")
    return out, records, shapes


def drawn(records, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sweep.json")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        return subprocess.run([sys.executable, DRAW, path, *arguments], capture_output=True, text=True, timeout=60,
                              check=False)  # fmt: skip


def untimed(out, records, shapes, splits):
    """On the CPU platform."""
    expect([record["M"] for _, record in shapes] == SIZES, "sizes of the verdicts")
    for rows, record in shapes:
        expect([row["split"]["asked"] for row in rows] == [0, *splits], "one row for each split")
        expect(record["best"] is None and record["automatic"] is None, "no times, so no best")
        expect(all("skipped" in row or row["timeUs"] is None for row in rows), "no time on the CPU platform")
    ran = sum("skipped" not in row for rows, _ in shapes for row in rows)
    expect(out.count("CPU: no timing") == ran, "rows of the table say that there is no timing")
    expect(out.count("no timing, so no best split") == len(shapes), "a verdict below each shape")
    judged = drawn(records, "--check", "3")
    expect(judged.returncode == 2 and "no split in it was timed" in judged.stderr, "nothing to draw, nothing to judge")


def nodes():
    os.environ["MKERNEL_CPU_AGENTS"] = "8"
    out, records, shapes = swept(4, "--nodes", "2", "--platform", "cpu", *SHAPE, "--sweep-split=1,2,7,64")
    untimed(out, records, shapes, [1, 2, 7, 64])
    what = "move" if "ag_gemm" in sys.argv[1] else "receive"
    for rows, _ in shapes:
        automatic, same, two, seven, many = rows
        expect(all(row["split"]["what"] == what for row in rows), f"what the agents do is to {what}")
        expect("the same launch as split auto" in same["skipped"], "one agent is the library's own choice")
        expect(automatic["receiveAgents"] == 1 and two["receiveAgents"] == 2 and seven["receiveAgents"] == 7, "agents")
        expect(automatic["computeAgents"] - two["computeAgents"] == 1, "who receives does not compute")
        expect("64; legal: 0 (automatic), or 1 to 8" in many["skipped"], "the library's own words")
        expect(two["split"]["communicate"] == 2, "what was chosen")


def one_node():
    os.environ["MKERNEL_CPU_AGENTS"] = "8"
    out, records, shapes = swept(2, "--platform", "cpu", *SHAPE, "--window", "1", "--sweep-split")
    untimed(out, records, shapes, [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64])
    expect("idle: no SM communicates alone" in out, "it is said what a split means here")
    for rows, _ in shapes:
        expect(all(row["split"]["what"] == "idle" for row in rows), "no agents of their own")
        ran = {row["split"]["communicate"]: row["computeAgents"] for row in rows if "skipped" not in row}
        expect(ran == {1: 7, 2: 6, 4: 4, 6: 2}, f"idle and computing agents are {ran}")
        expect("of 8 SMs none would compute" in rows[5]["skipped"], "all of them")


def corrupt():
    status, out, _, records = run(4, "--nodes", "2", *SHAPE, "--sweep-split=1,2,3", "--corrupt", "element")
    expect(status == 1 and "FAILED" in out, f"exit status {status}, not 1")
    rows = [record for record in records if record["record"] == "row" and "skipped" not in record]
    expect(len(rows) == 6 and all(row["wrong"] == 4 and not row["passed"] for row in rows), "every split is checked")
    expect(drawn(records, "--check", "3").returncode == 1, "wrong results")


def usage():
    refused("--sweep-split: one rank communicates with nobody", "--sweep-split", ranks=1)
    refused("--sweep-split=1,,2: numbers with one comma", "--sweep-split=1,,2")


def gpu():
    need_gpus(2)
    for world in ([], ["--nodes", "2"]):
        _, records, shapes = swept(2, "--platform", "cuda", *world, "-b", "1K", "--N", "1K", "--K", "1K", "--trans-b",
                                   "--rounds", "2", "-G", "2", "--sweep-split=2,8")  # fmt: skip
        expect([record["mode"] for _, record in shapes] == ["eager", "graph"], "a verdict for each mode")
        for rows, record in shapes:
            ran = [row for row in rows if "skipped" not in row]
            expect(all(0 < row["timing"]["fusedUs"] < 1e6 for row in ran), "times")
            expect(record["best"]["timeUs"] == min(row["timeUs"] for row in ran), "the best")
            expect(record["automatic"]["timeUs"] == rows[0]["timeUs"] and record["behindPercent"] >= 0, "the automatic")
            expect(len(ran) > 1 or not world, "some split is another launch")
        expect(drawn(records, "--check", "1000").returncode == 0, "so far behind is none")


cases = {name.replace("_", "-"): function for name, function in list(globals().items()) if callable(function)}
cases[sys.argv[3]]()
