"""Runs mk_gemm_ar_perf in small emulated worlds and judges its exit status, its table and its JSON.

meson test calls it once per case: test_perf.py PROGRAM MPIRUN_SH CASE.  The cases "corrupt-..." are negative controls: the
program spoils its own result before the check and must notice.
"""

import sys

from runner import caught, expect, good, need_gpus, refused, timed


def world_1x1():
    good(1, 1, [0, 1, 2], "-b", "0", "-e", "2", "-i", "1", "--N", "64", "--K", "72", "-c", "2", net=lambda m: 0)


def world_1x2():
    good(1, 2, [64], "-b", "64", "--N", "256", "--K", "256", "-d", "fp16", "--bias", "-c", "2", net=lambda m: 0)


def world_2x2():
    small = ["--N", "256", "--K", "512", "-c", "2"]
    good(2, 2, [64, 128], "-b", "64", "-e", "128", *small, exchange="swap", net=lambda m: 2 * m * 256 * 2)
    good(2, 2, [1, 98], "-b", "1", "-e", "100", "-i", "97", *small, "--trans-b", "--window", "1",
         exchange="swap", net=lambda m: 2 * m * 256 * 2)  # fmt: skip
    good(2, 2, [77], "-b", "77", *small, "--exchange", "home", "--out", "fp32", "--bias",
         "--alpha", "0.5", "--beta", "-2", exchange="home", net=lambda m: m * 256 * (4 + 4))  # fmt: skip


def world_3x2():
    small = ["--N", "264", "--K", "520", "-c", "2"]
    good(3, 2, [96], "-b", "96", *small, "--window", "1", exchange="home", net=lambda m: 2 * m * 264 * (2 + 2))
    good(3, 2, [33], "-b", "33", *small, "-d", "fp16", "--wire", "fp32", "--beta", "1",
         exchange="home", net=lambda m: 2 * m * 264 * (4 + 2))  # fmt: skip
    good(3, 2, [50], "-b", "50", *small, "--exchange", "swap", exchange="swap", net=lambda m: 6 * m * 264 * 2)


def corrupt_element():
    row = caught(["--nodes", "2", "--corrupt", "element"])
    expect(row["wrong"] == 4, f"one element on each of 4 ranks, not {row['wrong']}")
    expect(row["identical"] and not row["outOfBounds"] and not row["netError"], "nothing else is wrong")


def corrupt_rank():
    row = caught(["--nodes", "2", "--corrupt", "rank"])
    expect(not row["identical"], "ranks differ")
    expect(not row["outOfBounds"] and not row["netError"], "nothing else is wrong")


def corrupt_guard():
    row = caught(["--nodes", "2", "--corrupt", "guard"])
    expect(row["outOfBounds"] == 4, f"on each of 4 ranks, not {row['outOfBounds']}")
    expect(row["wrong"] == 0 and row["identical"] and not row["netError"], "nothing else is wrong")


def corrupt_bytes():
    row = caught(["--nodes", "2", "--corrupt", "bytes"])
    expect("the formula says" in row["netError"], f"bytes: {row['netError']!r}")
    expect(row["wrong"] == 0 and row["identical"] and not row["outOfBounds"], "nothing else is wrong")


def corrupt_zero():
    row = caught(["--nodes", "2", "--corrupt", "zero"])
    expect(row["wrong"] > 4 * 65 * 128 * 0.9, f"zeros are wrong nearly everywhere, not {row['wrong']} times")


def usage():
    refused("--suite, --layers and -G time GPUs", "--suite", "--platform", "cpu")
    refused("-G 1 is legal", "-G", "2", "--beta", "1")
    refused("--K 12", "--K", "12")
    refused("-g 2", "-g", "2")
    refused("--nonsense: not an option", "--nonsense")
    refused("--nodes 3", "--nodes", "3")
    refused("16 bytes", "--N", "3", status=3)  # the library's own words
    refused("nosuchnet", "--transport", "nosuchnet", "--nodes", "2", status=3)


def gpu_1x1():
    timed(1, [300], "-b", "300", "--N", "264", "--K", "264", "--trans-b", "-G", "4", modes=("eager", "graph"))


def gpu_1x2():
    timed(2, [256, 512], "-b", "256", "-e", "512", "--N", "512", "--K", "512", "--trans-b", "-G", "4",
          modes=("eager", "graph"))  # fmt: skip
    timed(2, [1, 78], "-b", "1", "-e", "100", "-i", "77", "--N", "264", "--K", "264", "-d", "fp16", "--out", "fp32",
          "--bias", "--window", "0")  # fmt: skip


def gpu_2x1():
    timed(2, [300], "-b", "300", "--N", "512", "--K", "512", "-G", "1", nodes=2, modes=("eager", "graph"))


def gpu_corrupt():
    need_gpus(2)
    for how in ("element", "rank", "zero", "guard"):
        caught(["--platform", "cuda", "--rounds", "1", "--baseline", "0", "--corrupt", how], ranks=2)


cases = {name.replace("_", "-"): function for name, function in list(globals().items()) if callable(function)}
cases[sys.argv[3]]()
