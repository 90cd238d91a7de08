"""Runs mk_gemm_rs_perf in small emulated worlds and judges its exit status, its table and its JSON.

meson test calls it once per case: test_rs.py PROGRAM MPIRUN_SH CASE.  The cases "corrupt-..." are negative controls: the
program spoils its own result before the check and must notice.
"""

import sys

from runner import caught, expect, good, refused


def world_1x3():
    good(1, 3, [64], "-b", "64", "--N", "256", "--K", "256", "-d", "fp16", "--bias", "-c", "2", net=lambda m: 0)


def world_2x2():
    small = ["--N", "256", "--K", "512", "-c", "2"]
    good(2, 2, [64, 128], "-b", "64", "-e", "128", *small, exchange="none", net=lambda m: m * 256 * 2)
    good(2, 2, [0, 1, 2], "-b", "0", "-e", "2", "-i", "1", *small, "--trans-b", net=lambda m: m * 256 * 2)
    good(2, 2, [77], "-b", "77", *small, "--out", "fp32", "--bias", "--alpha", "0.5", "--beta", "-2",
         net=lambda m: m * 256 * 4)  # fmt: skip


def world_3x2():
    small = ["--N", "264", "--K", "520", "-c", "2", "--chunk-tiles", "2"]
    good(3, 2, [96], "-b", "96", *small, net=lambda m: 2 * m * 264 * 2)
    good(3, 2, [33], "-b", "33", *small, "-d", "fp16", "--wire", "fp32", "--beta", "1", net=lambda m: 2 * m * 264 * 4)


def corrupt_element():
    row = caught(["--nodes", "2", "--corrupt", "element"])
    expect(row["wrong"] == 4, f"one element on each of 4 ranks, not {row['wrong']}")
    expect(not row["outOfBounds"] and not row["netError"], "nothing else is wrong")


def corrupt_guard():
    row = caught(["--nodes", "2", "--corrupt", "guard"])
    expect(row["outOfBounds"] == 4, f"on each of 4 ranks, not {row['outOfBounds']}")
    expect(row["wrong"] == 0 and not row["netError"], "nothing else is wrong")


def corrupt_bytes():
    row = caught(["--nodes", "2", "--corrupt", "bytes"])
    expect("the formula says" in row["netError"], f"bytes: {row['netError']!r}")
    expect(row["wrong"] == 0 and not row["outOfBounds"], "nothing else is wrong")


def usage():
    refused("--exchange: not an option of this program", "--exchange", "swap")
    refused("--window: not an option of this program", "--window", "1")
    refused("no two ranks have the same rows", "--corrupt", "rank")
    refused("--K 12", "--K", "12")
    refused("16 bytes", "--N", "3", status=3)  # the library's own words


cases = {name.replace("_", "-"): function for name, function in list(globals().items()) if callable(function)}
cases[sys.argv[3]]()
