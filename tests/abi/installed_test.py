#!/usr/bin/env python3
"""The library as installed: into a scratch folder, found by pkg-config, used by a C program, with its plugins beside it; and
the example of README.md, over MPI.  installed_test.py BUILD ROOT
"""

import os
import pathlib
import re
import shutil
import sys
import tempfile

from abi_tools import HEADERS, need, run

EXAMPLE = re.compile(r"```c\n(.*?)```", re.DOTALL)
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


class Installed:
    def __init__(self, build, root, folder):
        self.root, self.folder = root, folder
        self.destination = folder / "destination"
        self.passed, self.failed = 0, 0
        done = run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", self.destination])
        if done.returncode != 0:
            sys.exit(f"meson install failed: {done.stdout}{done.stderr}")
        found = list(self.destination.rglob("mkernel.pc"))
        if len(found) != 1:
            sys.exit(f"one mkernel.pc must be installed, found {found}")
        # What the caller has set for the build directory must not help the installed library.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("MKERNEL_", "LD_LIBRARY_PATH"))}
        self.environment.update(PKG_CONFIG_PATH=str(found[0].parent), PKG_CONFIG_SYSROOT_DIR=str(self.destination))
        self.libdir = self.destination / self.pkg_config("--variable=libdir").lstrip("/")
        self.environment["LD_LIBRARY_PATH"] = str(self.libdir)

    def pkg_config(self, *options):
        done = run(["pkg-config", *options, "mkernel"], env=self.environment)
        if done.returncode != 0:
            sys.exit(f"pkg-config {' '.join(options)}: {done.stderr}")
        # Some versions put the sysroot before the values of variables as well.
        return done.stdout.strip().replace(str(self.destination), "") if "--variable" in options[0] else done.stdout.strip()

    def check(self, title, good, detail=""):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        if not good:
            print(f"{title}: {detail}")

    def compile(self, compiler, source, out):
        flags = self.pkg_config("--cflags", "--libs").split()
        done = run([compiler, *STRICT, source, *flags, "-o", out], env=self.environment)
        self.check(f"compiling {source.name}", done.returncode == 0, done.stderr)
        return done.returncode == 0

    def files(self):
        headers = self.destination / self.pkg_config("--variable=includedir").lstrip("/")
        for header in HEADERS:
            self.check(header, (headers / header).read_bytes() == (self.root / "include" / header).read_bytes(), "differs")
        plugin = self.destination / self.pkg_config("--variable=plugindir").lstrip("/") / "libmkernel-loopback.so"
        self.check("plugin", plugin.is_file(), f"there is no {plugin}")
        self.check("version", self.pkg_config("--modversion").count(".") == 2)
        self.check("link flags", "-lmkernel" in self.pkg_config("--libs").split(), self.pkg_config("--libs"))

    def program(self):
        out = self.folder / "user"
        if not self.compile("cc", self.root / "tests" / "abi" / "installed_user.c", out):
            return
        done = run([out], env=self.environment)
        path = re.search(r"^transport loopback (\S+): usable$", done.stdout, re.MULTILINE)
        self.check("program", done.returncode == 0 and path, f"status {done.returncode}: {done.stdout}{done.stderr}")
        where = pathlib.Path(path.group(1)).resolve() if path else None
        self.check("plugin's place", where and where.is_relative_to(self.destination.resolve()), f"found at {where}")

    def readme(self):
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            print("SKIP: the example of README.md needs MPI (mpicc, mpirun)")
            return
        source = self.folder / "example.c"
        source.write_text(EXAMPLE.search((self.root / "README.md").read_text()).group(1))
        out = self.folder / "example"
        if not self.compile("mpicc", source, out):
            return
        self.environment.update(
            OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
            OMPI_MCA_plm="isolated", OMPI_MCA_btl="self,vader", OMPI_MCA_oob_tcp_if_include="lo")
        one_node = ["-np", "2", out]
        two_nodes = ["-np", "2", "-x", "MKERNEL_HOSTID=a", out, ":", "-np", "2", "-x", "MKERNEL_HOSTID=b", out]
        for title, ranks in (("one node", one_node), ("two nodes", two_nodes)):
            done = run(["mpirun", *ranks], env=self.environment, timeout=120)
            self.check(f"example on {title}", done.returncode == 0 and "c[0] = " in done.stdout,
                       f"status {done.returncode}: {done.stdout}{done.stderr}")


def main():
    build, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    need("meson", "pkg-config", "cc")
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(build, root, pathlib.Path(folder))
        installed.files()
        installed.program()
        installed.readme()
    print(f"CASES: {installed.passed} passed, {installed.failed} failed")
    return 1 if installed.failed else 0


if __name__ == "__main__":
    sys.exit(main())
