"""Runs mk_gemm_rs_perf in small emulated worlds and judges its exit status, its table and its JSON.

meson test calls it once per case: test_rs.py PROGRAM MPIRUN_SH CASE.  The cases "corrupt-..." are negative controls: the
program spoils its own result before the check and must notice.
"""

import sys

from runner import caught, expect, good, need_gpus, refused, timed


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
    refused("--suite, --layers and -G time GPUs", "--layers", "--platform", "cpu")
    refused("one of them is legal", "--layers", "--suite")
    refused("no two ranks have the same rows", "--corrupt", "rank")
    refused("--K 12", "--K", "12")
    refused("16 bytes", "--N", "3", status=3)  # the library's own words


def gpu_1x1():
    timed(1, [300], "-b", "300", "--N", "264", "--K", "264", "--trans-b", "-G", "4", modes=("eager", "graph"))


def gpu_1x2():
    timed(2, [256, 512], "-b", "256", "-e", "512", "--N", "512", "--K", "512", "--trans-b", "-G", "4",
          modes=("eager", "graph"))  # fmt: skip
    timed(2, [1, 78], "-b", "1", "-e", "100", "-i", "77", "--N", "264", "--K", "264", "-d", "fp16", "--out", "fp32",
          "--bias")  # fmt: skip


def gpu_2x1():
    timed(2, [300], "-b", "300", "--N", "512", "--K", "512", "-G", "1", nodes=2, modes=("eager", "graph"))


def gpu_corrupt():
    need_gpus(2)
    for how in ("element", "zero", "guard"):
        caught(["--platform", "cuda", "--rounds", "1", "--baseline", "0", "--corrupt", how], ranks=2)


cases = {name.replace("_", "-"): function for name, function in list(globals().items()) if callable(function)}
cases[sys.argv[3]]()
