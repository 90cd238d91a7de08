"""Runs mk_queue_perf over loopback, efa or ibgda and judges its exit status, its table and its JSON.

meson test calls it once per case: test_queue.py PROGRAM MPIRUN_SH CASE.  "corrupt" is a negative control: a byte is spoilt
before it is sent, and the receiver must notice.  No case looks at how long anything took.
"""

import os
import sys

from runner import expect, refused, run

SIZES = [256, 4096, 65536, 1048576]
SCAN = ["-b", "256", "-e", "1M", "-f", "16", "-n", "40", "-w", "5"]


def rows_of(contract, sizes, writes, *arguments, transport="loopback"):
    """The rows of a run that must pass."""
    status, out, _, records = run(2, *arguments)
    expect(status == 0, f"exit status {status}, not 0")
    header, rows, summary = records[0], records[1:-1], records[-1]
    expect(header["contract"] == contract and header["transport"] == transport, "header")
    kinds = [("latency", 8, 1), ("rate", 8, 1), ("rate", 8, 8)] + [("bandwidth", size, 8) for size in sizes]
    expect([(row["test"], row["bytes"], row["batch"]) for row in rows] == kinds, "rows")
    for row in rows:
        expect(row["passed"] and row["wrong"] == 0 and row["writes"] == writes, f"row {row}")
        if row["test"] == "latency":
            expect(0 < row["medianUs"] <= row["p99Us"], f"times of {row}")
            expect(row["accepted"] == {}, "no histogram of a ping-pong")
            continue
        rate, speed = row["writesPerSecond"], row["gigabytesPerSecond"]
        expect(rate > 0 and abs(speed - rate * row["bytes"] / 1e9) <= 1e-9 * speed, f"rates of {row}")
        taken = sum(int(size) * posts for size, posts in row["accepted"].items())
        expect(taken == writes, f"{taken} writes in the histogram of {row}, not {writes}")
        expect(all(int(size) <= row["batch"] for size in row["accepted"]), f"no post took more than {row['batch']}")
    expect(summary["record"] == "summary" and summary["passed"] and summary["rows"] == len(rows), "summary")
    expect("PASSED" in out and "FAILED" not in out, "verdict")
    return rows


def both(contract):
    os.environ["MKERNEL_LOOPBACK_CONTRACT"] = contract
    rows_of(contract, SIZES, 40, *SCAN)
    # A card that delivers in any order, some twice, and takes few at a time.
    os.environ.update({"MKERNEL_LOOPBACK_JITTER_US": "50", "MKERNEL_LOOPBACK_REORDER": "0.3"})
    os.environ.update({"MKERNEL_LOOPBACK_REPEAT": "0.3", "MKERNEL_LOOPBACK_OUTSTANDING": "3"})
    rows = rows_of(contract, [1000, 3000], 100, "-b", "1000", "-e", "3000", "-f", "3", "-n", "100", "--queues", "3")
    expect(any("0" in row["accepted"] for row in rows), "some post found no room")
    expect(all(int(size) <= 3 for row in rows for size in row["accepted"]), "no post took more than is allowed")


def ordered():
    both("ordered")


def completion():
    both("completion")


def options():
    plugin = os.path.join(os.environ["MKERNEL_PLUGIN_PATH"], "libmkernel-loopback.so")
    # Several passes: 32 MiB hold ten of these.
    rows_of("ordered", [3000001], 25, "--transport", plugin, "-b", "3000001", "-e", "3000001", "-n", "25", "-w", "0")
    status, out, _, _ = run(2, "-h")
    expect(status == 0 and "--transport" in out, "help")


def efa():
    os.environ["MKERNEL_EFA_PROVIDER"] = "tcp;ofi_rxm"
    rows_of("completion", [256, 65536], 100, "--transport", "efa", "-b", "256", "-e", "64K", "-f", "256", "-n", "100",
            transport="efa")


def ibgda():
    """The plugin over cards made of software, one in each process."""
    rows = rows_of("ordered", [256, 65536], 3000, "--transport", "ibgda", "-b", "256", "-e", "64K", "-f", "256",
                   "-n", "3000", transport="ibgda")
    expect(any("0" in row["accepted"] for row in rows), "a queue was full: there were more writes than it has entries")


def corrupt():
    for kind, bad in (("latency", 1), ("rate", 2), ("bandwidth", 2)):
        status, out, _, records = run(2, "-b", "1K", "-e", "2K", "-n", "20", "-w", "0", "--corrupt", kind)
        expect(status == 1, f"exit status {status}, not 1")
        expect("FAILED" in out and "PASSED" not in out, "verdict")
        expect(not records[-1]["passed"] and records[-1]["bad"] == bad, f"summary {records[-1]}")
        for row in records[1:-1]:
            expect(row["wrong"] == (row["test"] == kind), f"one wrong byte where it was spoilt, none elsewhere: {row}")


def usage():
    refused("3 ranks: 2 are legal", ranks=3)
    refused("--nonsense: not an option", "--nonsense")
    refused("-b 0: a whole number from 1", "-b", "0")
    refused("-e 256: must be at least -b", "-b", "1K", "-e", "256")
    refused("-n: needs a value", "-n")
    refused("--corrupt nothing: legal are", "--corrupt", "nothing")
    refused("no libmkernel-nosuchnet.so", "--transport", "nosuchnet", status=3)
    refused("cannot open shared object", "--transport", "./nosuchfile.so", status=3)
    refused("--device 7: loopback has", "--device", "7", status=3)


def failure():
    os.environ["MKERNEL_LOOPBACK_CONTRACT"] = "sometimes"
    refused("must be ordered or completion", status=3)
    os.environ["MKERNEL_LOOPBACK_CONTRACT"] = "ordered"
    os.environ["MKERNEL_LOOPBACK_FAIL_AFTER"] = "30"
    refused("libmkernel-loopback.so", *SCAN, status=3)
    del os.environ["MKERNEL_LOOPBACK_FAIL_AFTER"]
    os.environ["MKERNEL_LOOPBACK_DROP_AFTER"] = "30"
    refused("no end of 'latency, 8 bytes", *SCAN, "-T", "3", status=4)


cases = {name: function for name, function in globals().items() if callable(function)}
cases[sys.argv[3]]()
