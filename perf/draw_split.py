#!/usr/bin/env python3
"""Draws what --sweep-split of the perf programs wrote with --json, or judges the automatic splits.

draw_split.py FILE... [-o PICTURE] [--y relative|tflops] [--check PERCENT]

A panel per operation, world and mode, a line per shape: over the SMs of each split, the time as a multiple of the shape's best
or the rate of one GPU.  Dots are the splits that ran, a star is the automatic one.  PICTURE ends in .svg, .png or whatever else
matplotlib writes.  --check needs no matplotlib: it lists every shape, and the exit status is 1 where an automatic split is more
than so many percent behind the best, or where a row's result was wrong.  Exit status 2: nothing there that was timed, or wrong
arguments.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass, field

OPERATIONS = {
    "mk_gemm_ar_perf": "GEMM+AllReduce",
    "mk_gemm_rs_perf": "GEMM+ReduceScatter",
    "mk_ag_gemm_perf": "AllGather+GEMM",
}
WHAT = {
    "receive": "SMs that receive from other nodes",
    "move": "SMs that copy rows of A, beside computing",
    "idle": "SMs left out of the product",
}


class Unusable(Exception):
    pass


@dataclass
class Point:
    """One split of one shape."""

    sms: int
    asked: int  # 0: automatic
    us: float
    tflops: float


@dataclass
class Shape:
    """One line."""

    name: str
    what: str
    points: list = field(default_factory=list)

    @property
    def best(self):
        return min(self.points, key=lambda point: point.us)

    @property
    def automatic(self):
        return next((point for point in self.points if not point.asked), None)

    @property
    def behind(self):
        """How much longer the automatic split takes than the best, in percent."""
        return 100 * (self.automatic.us / self.best.us - 1)


def panel_name(header, mode):
    operation = OPERATIONS.get(header["program"], header["program"])
    return f"{operation}, {header['nodes']} x {header['ranksPerNode']}, {mode}"


def read(path, panels, wrong):
    """Adds the file's rows to panels[title][(M, N, K)], and to `wrong` the names of those whose result was."""
    header, ended = None, False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
                if record["record"] == "header":
                    header = record
                ended = ended or record["record"] == "summary"
                if record["record"] != "row" or "split" not in record or "skipped" in record:
                    continue
                if header is None:
                    raise Unusable(f"{where}: a row before any header")
                size = (record["M"], record["N"], record["K"])
                split = record["split"]
                timing = record.get("timing")
                name = "M {}, N {}, K {}".format(*size)
                title = panel_name(header, timing["mode"] if timing else "not timed")
                asked = 0 if split["automatic"] else split["asked"]
                if not record["passed"]:
                    wrong.append(f"{title}, {name}, split {asked or 'auto'}")
                if timing is None:
                    continue
                us = float(timing["fusedUs"])
                if not (math.isfinite(us) and us > 0):
                    raise Unusable(f"{where}: a time of {us} us")
                shape = panels.setdefault(title, {}).setdefault(size, Shape(name, split["what"]))
                if not asked and shape.automatic:
                    raise Unusable(f"{where}: {title}, {name}: an automatic split has been read already; rows of two runs")
                shape.points.append(Point(split["communicate"], asked, us, timing["tflops"]))
            except (ValueError, KeyError, TypeError) as error:
                raise Unusable(f"{where}: not a line that --json writes ({type(error).__name__}: {error})") from error
    if not ended:
        raise Unusable(f"{path}: no summary: the run did not come to its end")


def check(panels, wrong, percent):
    """Prints every shape; returns whether all are good."""
    good = not wrong
    for text in wrong:
        print(f"WRONG RESULT: {text}")
    for title, shapes in panels.items():
        for shape in shapes.values():
            if shape.automatic is None:
                print(f"FAR   {title}, {shape.name}: the automatic split was not timed")
                good = False
                continue
            near = shape.behind <= percent
            good = good and near
            best = shape.best
            print(
                f"{'near ' if near else 'FAR  '} {title}, {shape.name}: automatic ({shape.automatic.sms} {shape.what}) "
                f"{shape.automatic.us:.2f} us, {shape.behind:.2f}% behind split {best.asked or 'auto'} ({best.sms}), "
                f"{best.us:.2f} us, of {len(shape.points)}"
            )
    print(f"{'PASSED' if good else 'FAILED'}: automatic splits within {percent:g}% of the best")
    return good


def draw(panels, path, y):
    import matplotlib  # pylint: disable=import-outside-toplevel

    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 5), squeeze=False, layout="constrained")
    for axis, (title, shapes) in zip(axes[0], panels.items()):
        ticks = set()
        for shape in shapes.values():
            points = sorted(shape.points, key=lambda point: point.sms)
            value = (lambda p: p.tflops) if y == "tflops" else lambda p, best=shape.best.us: p.us / best
            ticks.update(point.sms for point in points)
            (line,) = axis.plot([p.sms for p in points], [value(p) for p in points], marker=".", label=shape.name)
            if shape.automatic:
                axis.plot(shape.automatic.sms, value(shape.automatic), marker="*", markersize=13, color=line.get_color())
        axis.set_title(title)
        axis.set_xscale("symlog", base=2, linthresh=1)
        axis.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)])
        axis.set_xlabel(" / ".join(sorted({WHAT.get(shape.what, shape.what) for shape in shapes.values()})))
        axis.set_ylabel("TFLOP/s of one GPU" if y == "tflops" else "time / best time of the shape")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small", title="star: the automatic split")
    figure.savefig(path)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", "--output", metavar="PICTURE")
    parser.add_argument("--y", choices=["relative", "tflops"], default="relative")
    parser.add_argument("--check", type=float, metavar="PERCENT")
    arguments = parser.parse_args()
    if arguments.output is None and arguments.check is None:
        parser.error("nothing to do: -o PICTURE, --check PERCENT or both are legal")
    panels, wrong = {}, []
    try:
        for path in arguments.files:
            before = sum(len(shape.points) for shapes in panels.values() for shape in shapes.values()) + len(wrong)
            read(path, panels, wrong)
            if sum(len(shape.points) for shapes in panels.values() for shape in shapes.values()) + len(wrong) == before:
                raise Unusable(f"{path}: no split in it was timed (--sweep-split on GPUs writes such)")
    except (Unusable, OSError) as error:
        print(f"draw_split.py: {error}", file=sys.stderr)
        return 2
    if arguments.output is not None and not panels:
        print("draw_split.py: nothing was timed, so there is nothing to draw", file=sys.stderr)
        return 2
    if arguments.output is not None:
        draw(panels, arguments.output, arguments.y)
    if arguments.check is not None and not check(panels, wrong, arguments.check):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
