"""What the tests beside it may take for a refusal: runner.refused() against a stand-in for mpirun that crashes, or not.

meson test calls it without arguments.
"""

import os
import sys
import tempfile

import runner

# Does what the line of the file `plan` says whose number is that of the run.
STAND_IN = """\
echo run >> {folder}/runs
what=$(sed -n "$(wc -l < {folder}/runs)p" {folder}/plan)
case "$what" in
  silent*) ;;
  *) echo "program: --K 12 is not legal" >&2 ;;
esac
case "$what" in
  passed*) echo PASSED ;;
esac
case "$what" in
  *crash) kill -SEGV $$ ;;
  passed) exit 2 ;;
  *) exit "${{what#silent }}" ;;
esac
"""


def accepted(*plan):
    """Whether refused() takes runs that end as planned; every one of them must happen, and no more."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "mpirun.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write(STAND_IN.format(folder=folder))
        with open(os.path.join(folder, "plan"), "w", encoding="utf-8") as file:
            file.write("".join(what + "\n" for what in plan))
        sys.argv[1:] = ["program", script]
        try:
            runner.refused("--K 12", "--K", "12")
            result = True
        except SystemExit as refusal:
            print(refusal)
            result = False
        with open(os.path.join(folder, "runs"), encoding="utf-8") as file:
            runs = len(file.readlines())
        runner.expect(runs == len(plan), f"{plan}: {runs} runs")
        return result


for good in (["2"], ["crash", "2"], ["silent crash", "crash", "2"], ["139", "2"]):
    runner.expect(accepted(*good), f"{good} is a refusal")
for bad in (["0"], ["3"], ["1"], ["silent 2"], ["passed"], ["passed crash"], ["crash", "0"], ["crash", "3"], ["crash", "silent 2"],
            ["crash", "crash", "crash"], ["139", "139", "139"]):  # fmt: skip
    runner.expect(not accepted(*bad), f"{bad} is no refusal")
