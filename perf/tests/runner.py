"""Runs a perf program under mpirun and returns what it said.  Called by the tests beside it, whose arguments begin with
PROGRAM MPIRUN_SH."""

import json
import os
import signal
import subprocess
import sys
import tempfile

TIMEOUT = 100


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


def refused(text, *arguments, ranks=2, status=2):
    actual, out, err, _ = run(ranks, *arguments)
    expect(actual == status, f"exit status {actual}, not {status}")
    expect(text in err, f"standard error does not say {text!r}")
    expect("PASSED" not in out, "no verdict")
