"""Runs a perf program under mpirun and returns what it said.  Called by the tests beside it, whose arguments begin with
PROGRAM MPIRUN_SH."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile

TIMEOUT = 100
CRASHES = 2  # of Open MPI, that refused() bears


def run(ranks, *arguments):
    """Returns exit status, standard output, standard error and the JSON objects of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        command = ["sh", sys.argv[2], "-np", str(ranks), sys.argv[1], "--json", path, "-T", "60", *arguments]
        print("+", " ".join(command), flush=True)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            sys.exit(f"no end within {TIMEOUT} s\n{out}{err}")
        print(out + err, flush=True)
        records = []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                records = [json.loads(line) for line in file]
        return process.returncode, out, err, records


def expect(condition, text):
    if not condition:
        sys.exit("FAILED: " + text)


def crashed(status):
    """Whether a signal ended mpirun itself (Python's sign, a shell's sum) or, as mpirun then says, one of the ranks."""
    return status < 0 or status > 128


def refused(text, *arguments, ranks=2, status=2):
    """A run that must say `text` and end with `status`.  Open MPI at times crashes in or after MPI_Abort, and with it may go
    the status and what the ranks have said: such a run is repeated, unless it has passed.  A program that
    crashes by itself does so again."""
    for attempt in range(1, CRASHES + 2):
        actual, out, err, _ = run(ranks, *arguments)
        expect("PASSED" not in out, "no verdict")
        if not crashed(actual) or attempt > CRASHES:
            break
        print(f"# exit status {actual}: a crash, the {attempt}. of at most {CRASHES}; once more", flush=True)
    expect(actual == status, f"exit status {actual}, not {status}")
    expect(text in err, f"standard error does not say {text!r}")


def good(nodes, locals_, sizes, *arguments, exchange=None, net=None):
    """A run that must pass; `net` gives the bytes of one launch over all ranks from M."""
    ranks = nodes * locals_
    status, out, _, records = run(ranks, "--nodes", str(nodes), *arguments)
    expect(status == 0, f"exit status {status}, not 0")
    expect([r["record"] for r in records] == ["header"] + ["row"] * len(sizes) + ["summary"], "records of the JSON")
    header, rows, summary = records[0], records[1:-1], records[-1]
    expect(header["ranks"] == ranks and header["nodes"] == nodes, "ranks and nodes of the header")
    expect(header["ranksPerNode"] == locals_, "ranks per node of the header")
    places = [(line["rank"], line["node"], line["localRank"]) for line in header["rankList"]]
    expect(places == [(r, r // locals_, r % locals_) for r in range(ranks)], f"ranks' places {places}")
    expect(len({line["pid"] for line in header["rankList"]}) == ranks, "one process per rank")
    expect(all(line["transport"] == header["transport"] for line in header["rankList"]), "transports of the ranks")
    expect(header["transport"] == ("loopback" if nodes > 1 else ""), f"transport {header['transport']!r}")
    expect([row["M"] for row in rows] == sizes, "sizes of the rows")
    for row in rows:
        expect(row["passed"] and row["checked"] and row["identical"], f"row {row['M']} passed")
        expect(row["wrong"] == 0 and row["outOfBounds"] == 0, f"row {row['M']} right")
        limits = {"bf16": 6e-3, "fp16": 1e-3, "fp32": 1e-5}
        expect(row["relativeError"] < max(limits[row["wire"]], limits[row["out"]]), f"relative error {row['relativeError']} of row {row['M']}")
        if row["out"] != "fp32" and row["M"]:
            expect(row["relativeError"] > 1e-6, f"row {row['M']} is rounded to 16 bits, and still has no error")
        expect(row["timeUs"] is None, "no time on the CPU platform")
        if exchange:
            expect(row["exchange"] == exchange, f"exchange {row['exchange']}, not {exchange}")
        if net:
            bytes_ = net(row["M"]) * row["launches"]
            expect(row["netBytes"] == bytes_, f"row {row['M']}: {row['netBytes']} bytes, not {bytes_}")
        expect(sum(row["netBytesPerRank"]) == row["netBytes"], "sum of the ranks' bytes")
        expect((row["netMessages"] > 0) == (row["netBytes"] > 0), "messages where there are bytes")
    expect(summary["passed"] and summary["bad"] == 0 and summary["rows"] == len(sizes), "summary")
    expect(out.count("CPU: no timing") == len(sizes), "rows of the table say that there is no timing")
    expect("PASSED" in out and "FAILED" not in out, "verdict of the footer")


def caught(arguments, ranks=4):
    """A spoilt run: must end with 1, and say so in the summary; returns the last row."""
    status, out, _, records = run(ranks, "-b", "65", "--N", "128", "--K", "256", "-n", "2", *arguments)
    expect(status == 1, f"exit status {status}, not 1")
    expect("FAILED" in out and "PASSED" not in out, "verdict of the footer")
    expect(records[-1]["record"] == "summary" and not records[-1]["passed"], "summary")
    expect(not records[-2]["passed"], "row")
    return records[-2]


def need_gpus(wanted):
    """Ends the test as skipped where there are fewer GPUs."""
    try:
        out = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        out = ""
    count = len(re.findall("^GPU", out, re.MULTILINE))
    if count < wanted:
        print(f"SKIP: {count} GPUs are here, {wanted} are needed")
        sys.exit(77)


def timed(ranks, rows, *arguments, nodes=1, modes=("eager",)):
    """A run on so many GPUs that must pass; `rows`: its values of M."""
    need_gpus(ranks)
    world = ["--nodes", str(nodes)] if nodes > 1 else []
    status, out, _, records = run(ranks, "--platform", "cuda", "--rounds", "2", *world, *arguments)
    expect(status == 0, f"exit status {status}, not 0")
    expect("PASSED" in out and "FAILED" not in out, "verdict of the footer")
    header, body = records[0], records[1:-1]
    expect(header["platform"] == "cuda" and header["nodes"] == nodes, "platform and nodes of the header")
    expect(len({line["device"] for line in header["rankList"]}) == ranks, "one GPU per rank")
    expect([(r["M"], r["timing"]["mode"]) for r in body] == [(m, mode) for m in rows for mode in modes], "rows")
    for row in body:
        expect(row["passed"] and row["checked"] and row["identical"] and row["wrong"] == 0, f"row {row['M']} passed")
        expect(row["checkedRows"] == row["M"], f"row {row['M']}: all rows checked")
        for name in ("fusedUs", "oursUs"):
            expect(0 < row["timing"][name] < 1e6, f"row {row['M']}: {name} {row['timing'][name]}")
        expect((row["netBytes"] > 0) == (nodes > 1), "bytes over the network")
