#!/usr/bin/env python3
"""The layer rule, read from the #include lines: sched <- protocol <- {kernels, emu} <- host <- api; perf sees
include/ alone, plugins plugins/common too.  `layers.py ROOT` checks a tree; `layers.py --control` proves that each kind of
breach is caught.
"""

import pathlib
import re
import sys
import tempfile

# What both a CUDA device compiler and any freestanding implementation have.
FREESTANDING = {"cstdint", "cstddef", "climits", "limits", "type_traits", "concepts", "compare", "version", "bit", "cfloat"}

# For each layer: which layers it may include beside itself, what of include/, and which system headers (None: any).
PUBLIC = "include"
QUEUE = "include/mkernel/queue.h"
RULES = {
    "src/sched": (set(), FREESTANDING),
    "src/protocol": ({"src/sched", QUEUE}, FREESTANDING),
    "src/kernels": ({"src/sched", "src/protocol", PUBLIC}, None),
    "src/emu": ({"src/sched", "src/protocol", PUBLIC}, None),
    "src/host": ({"src/sched", "src/protocol", "src/kernels", "src/emu", PUBLIC}, None),
    "src/api": ({"src/sched", "src/protocol", "src/kernels", "src/emu", "src/host", PUBLIC}, None),
    "include": (set(), None),
    "perf": ({PUBLIC}, None),
    "plugins/common": ({PUBLIC}, None),
}
PLUGIN = ({PUBLIC, "plugins/common"}, None)  # of plugins/NAME, each a layer of its own
GENERATED = {"src/api": {"revision.h"}}
SUFFIXES = {".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu", ".def", ".in"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(.*?)[ \t]*(?://.*|/\*.*)?$', re.MULTILINE)
QUOTED = re.compile(r'^"([^"]+)"$')
ANGLED = re.compile(r"^<([^>]+)>$")


def layer_of(path):
    """The layer a path relative to the root belongs to, or None."""
    parts = pathlib.PurePosixPath(path).parts
    if len(parts) >= 3 and parts[0] in ("src", "plugins"):
        return "/".join(parts[:2])
    if len(parts) >= 2 and parts[0] in ("include", "perf"):
        return parts[0]
    return None


def rule_of(layer):
    return RULES.get(layer, PLUGIN if layer.startswith("plugins/") else None)


def resolve(root, includer, name):
    """The included file relative to the root, or None if it is not one of the project's."""
    bases = [(root / includer).parent, root / "src", root / "include"]
    if includer.startswith("perf/"):
        bases.append(root / "perf")
    if includer.startswith("plugins/"):
        bases.append(root / "plugins")
    for base in bases:
        candidate = (base / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def breach(root, includer, target):
    """Why this include is not allowed, or None."""
    layer = layer_of(includer)
    others, system = rule_of(layer)
    quoted, angled = QUOTED.match(target), ANGLED.match(target)
    if not quoted and not angled:
        return "is neither a quoted nor an angled name"
    name = (quoted or angled).group(1)
    if ".." in pathlib.PurePosixPath(name).parts:
        return "climbs out of its folder; name it from src/ or include/"
    if quoted and name in GENERATED.get(layer, ()):
        return None
    found = resolve(root, includer, name)
    if found is None:
        if quoted:
            return "is not a file of this project"
        if system is not None and name not in system:
            return f"is not one of the headers {layer} may use: {' '.join(sorted(system))}"
        return None
    owner = layer_of(found)
    if owner == layer or owner in others or found in others:
        return None
    return f"lies in {owner}, which {layer} may not include; it may include itself and: {' '.join(sorted(others)) or 'nothing'}"


def check(root):
    """(number of includes seen, list of breaches)"""
    root = root.resolve()
    seen, problems = 0, []
    for top in ("src", "plugins", "include", "perf"):
        for path in sorted((root / top).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in SUFFIXES or not path.is_file() or layer_of(name) is None:
                continue
            if rule_of(layer_of(name)) is None:
                problems.append(f"{name}: {layer_of(name)} is a layer without a rule")
                continue
            text = path.read_text()
            for match in INCLUDE.finditer(text):
                seen += 1
                why = breach(root, name, match.group(1))
                if why:
                    line = text.count("\n", 0, match.start()) + 1
                    problems.append(f"{name}:{line}: #include {match.group(1)} {why}")
    return seen, problems


GOOD_TREE = {
    "include/mkernel.h": "#include <stdint.h>\n",
    "include/mkernel/queue.h": "#include <stdint.h>\n",
    "include/mkernel/transport.h": "#include <stdint.h>\n",
    "src/sched/tiles.h": "#include <cstdint>\n",
    "src/protocol/ring.h": '#include <cstdint>  // words\n#include "mkernel/queue.h"\n#include "sched/tiles.h"\n',
    "src/emu/platform.h": '#include <thread>\n#include "mkernel.h"\n#include "protocol/ring.h"\n',
    "src/kernels/ring.cuh": '#include <cuda.h>\n#include "protocol/ring.h"\n',
    "src/host/comm.h": '#include "emu/platform.h"\n#include "host/comm.h"\n',
    "src/api/comm.cc": '#include "host/comm.h"\n#include "revision.h"\n',
    "plugins/common/z.h": '#include "mkernel/transport.h"\n',
    "plugins/loopback/a.cc": '#include "b.h"\n#include "common/z.h"\n#include "mkernel/transport.h"\n#include <vector>\n',
    "plugins/loopback/b.h": "",
    "plugins/efa/c.h": "",
    "perf/x.cc": '#include <mpi.h>\n#include "common/y.h"\n#include "mkernel.h"\n',
    "perf/common/y.h": "",
}
# Each of these lines, added to the file, must be caught.
BREACHES = [
    ("src/sched/tiles.h", "#include <vector>"),
    ("src/sched/tiles.h", "#include <atomic>"),
    ("src/sched/tiles.h", '#include "mkernel/queue.h"'),
    ("src/sched/tiles.h", '#include "protocol/ring.h"'),
    ("src/protocol/ring.h", "#include <string>"),
    ("src/protocol/ring.h", '#include "mkernel.h"'),
    ("src/protocol/ring.h", '#include "emu/platform.h"'),
    ("src/protocol/ring.h", '  #  include "host/comm.h"'),
    ("src/emu/platform.h", '#include "host/comm.h"'),
    ("src/emu/platform.h", '#include "kernels/ring.cuh"'),
    ("src/emu/platform.h", '#include "../host/comm.h"'),
    ("src/kernels/ring.cuh", '#include "host/comm.h"  // only this once'),
    ("src/kernels/ring.cuh", "#include <host/comm.h>"),
    ("src/host/comm.h", '#include "api/guard.h"'),
    ("src/host/comm.h", "#include COMM_HEADER"),
    ("plugins/loopback/a.cc", '#include "host/comm.h"'),
    ("plugins/loopback/a.cc", '#include "../efa/c.h"'),
    ("plugins/loopback/a.cc", '#include "efa/c.h"'),
    ("plugins/common/z.h", '#include "efa/c.h"'),
    ("include/mkernel.h", '#include "sched/tiles.h"'),
    ("perf/x.cc", '#include "sched/tiles.h"'),
    ("src/new/x.h", "#include <cstdint>"),
]


def control():
    failures = []
    for name, line in [(None, None)] + BREACHES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            tree = dict(GOOD_TREE, **{"src/api/guard.h": ""})
            if name:
                tree[name] = tree.get(name, "") + line + "\n"
            for path, text in tree.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            _, problems = check(root)
        wanted = 1 if name else 0
        if len(problems) != wanted:
            failures.append(f"{name}: {line}: {wanted} breach expected, reported: {problems}")
    print("\n".join(failures))
    print(f"CASES: {1 + len(BREACHES) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--control"]:
        return control()
    seen, problems = check(pathlib.Path(sys.argv[1]))
    print("\n".join(problems))
    print(f"{seen} includes, {len(problems)} breaches")
    if seen == 0:
        print("no include was found: is this the project's root?")
    return 1 if problems or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
