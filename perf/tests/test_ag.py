"""Runs mk_ag_gemm_perf in small emulated worlds and judges its exit status, its table and its JSON.

meson test calls it once per case: test_ag.py PROGRAM MPIRUN_SH CASE.  The cases "corrupt-..." are negative controls: the
program spoils its own result before the check and must notice.
"""

import sys

from runner import caught, expect, good, need_gpus, refused, timed


def world_1x2():
    good(1, 2, [64], "-b", "64", "--N", "256", "--K", "256", "-d", "fp16", "--bias", "-c", "2", net=lambda m: 0)


def world_2x2():
    small = ["--N", "136", "--K", "264", "-c", "2"]
    good(2, 2, [0, 65], "-b", "0", "-e", "65", "-i", "65", *small, exchange="direct", net=lambda m: m * 264 * 2)
    good(2, 2, [1, 98], "-b", "1", "-e", "100", "-i", "97", *small, "--trans-b", "--gathered", "window",
         exchange="direct", net=lambda m: m * 264 * 2)  # fmt: skip


def world_3x2():
    small = ["--N", "72", "--K", "136", "-c", "2", "--chunk-rows", "5"]
    good(3, 2, [77], "-b", "77", *small, "--gathered", "memory", exchange="direct", net=lambda m: 2 * m * 136 * 2)
    good(3, 2, [77], "-b", "77", *small, "--exchange", "ring", "--out", "fp32", "--alpha", "0.5", "--beta", "-2",
         "--gathered", "window", exchange="ring", net=lambda m: 2 * m * 136 * 2)  # fmt: skip


def corrupt_element():
    row = caught(["--nodes", "2", "--corrupt", "element"])
    expect(row["wrong"] == 4, f"one element on each of 4 ranks, not {row['wrong']}")
    expect(row["identical"] and not row["outOfBounds"] and not row["netError"], "nothing else is wrong")


def corrupt_rank():
    row = caught(["--nodes", "2", "--corrupt", "rank", "--gathered", "memory"])
    expect(row["wrong"] == 1 and not row["identical"], f"one element of one rank's whole A, not {row['wrong']}")
    expect(not row["outOfBounds"] and not row["netError"], "nothing else is wrong")


def corrupt_bytes():
    row = caught(["--nodes", "2", "--corrupt", "bytes"])
    expect("the formula says" in row["netError"], f"bytes: {row['netError']!r}")
    expect(row["wrong"] == 0 and row["identical"] and not row["outOfBounds"], "nothing else is wrong")


def usage():
    refused("--wire: not an option of this program", "--wire", "fp32")
    refused("legal are direct, ring", "--exchange", "swap")
    refused("legal are none, memory, window", "--gathered", "yes")
    refused("--K 12", "--K", "12")
    refused("16 bytes", "--N", "3", status=3)  # the library's own words


def gpu_1x1():
    timed(1, [300], "-b", "300", "--N", "264", "--K", "264", "--trans-b", "-G", "4", modes=("eager", "graph"))


def gpu_1x2():
    timed(2, [256, 512], "-b", "256", "-e", "512", "--N", "512", "--K", "512", "--trans-b", "-G", "4", "--gathered", "window",
          modes=("eager", "graph"))  # fmt: skip
    timed(2, [1, 78], "-b", "1", "-e", "100", "-i", "77", "--N", "264", "--K", "264", "-d", "fp16", "--out", "fp32",
          "--bias")  # fmt: skip


def gpu_2x1():
    timed(2, [300], "-b", "300", "--N", "512", "--K", "512", "-G", "1", "--gathered", "window", nodes=2, modes=("eager", "graph"))


def gpu_corrupt():
    need_gpus(2)
    for how in ("element", "rank", "zero", "guard"):
        caught(["--platform", "cuda", "--rounds", "1", "--baseline", "0", "--corrupt", how, "--gathered", "memory"], ranks=2)


cases = {name.replace("_", "-"): function for name, function in list(globals().items()) if callable(function)}
cases[sys.argv[3]]()
