# SPDX-License-Identifier: GPL-3.0-or-later
"""A throw-away box that really runs a line: system directories read-only, no network, a work tree and a home to be changed.

Lines run as a user that `ulimit -u` holds (root is exempt from it), in process, network and mount namespaces of their own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOBODY = 65534
# Inside the box a line has this long, in seconds; what it started dies with it.
LIMIT = "1"
# What git reads are disarmed with when they run (isolation/environment.py); the last one stops what a read-only tree stops there.
_SETTINGS = (("core.checkStat", "minimal"), ("core.fsmonitor", "false"), ("diff.autoRefreshIndex", "false"))
_GIT = [
    word
    for name, value in (
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_CONFIG_COUNT", str(len(_SETTINGS))),
        *((f"GIT_CONFIG_KEY_{number}", key) for number, (key, _) in enumerate(_SETTINGS)),
        *((f"GIT_CONFIG_VALUE_{number}", value) for number, (_, value) in enumerate(_SETTINGS)),
    )
    for word in ("--setenv", name, value)
]


@dataclass(frozen=True)
class Box:
    """`base` holds the two trees; they appear as `cwd` and `home` inside."""

    base: Path
    cwd: str
    home: str

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def house(self) -> Path:
        return self.base / "home"

    def make(self) -> None:
        """Empty trees."""
        for path in (self.work, self.house):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        if self.cwd.startswith(f"{self.home}/"):
            (self.house / self.cwd.removeprefix(f"{self.home}/")).mkdir(parents=True)  # else bwrap makes the mount point

    def own(self) -> None:
        """Give all to the user that lines run as."""
        if os.geteuid() == 0:
            for path in (self.base, *self.base.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def run(self, lines: Sequence[str], *environments: Mapping[str, str], stdin: str = "") -> None:
        """Run each line in turn, and again with each environment. How they end does not matter. A line has LIMIT seconds."""
        user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        script = [f"ulimit -u 3000 -f 20000 -t 20; stdin={shlex.quote(stdin)}"]
        for line in lines:
            for environment in ({}, *environments) if "$" in line else ({},):
                values = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
                words = f"env {values} timeout -s KILL {LIMIT} bash --noprofile --norc -c {shlex.quote(line)}"
                script.append(f'cd {self.cwd}; {words} <<< "$stdin" >/dev/null 2>&1')
        subprocess.run(
            [*self._bwrap(), "bash", "--noprofile", "--norc", "-s"],
            input="\n".join(script).encode(),
            capture_output=True,
            timeout=30 + len(script),
            check=False,
            cwd="/",
            **user,
        )

    def works(self) -> bool:
        """Whether the box runs lines at all, and is read-only outside of its trees: without that nothing is tried in it."""
        self.run(["echo made > made; echo a > /usr/owned; echo a > /owned"])
        return (self.work / "made").exists() and not os.path.exists("/usr/owned") and not os.path.exists("/owned")

    def _bwrap(self) -> list[str]:
        argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            if os.path.islink(f"/{name}"):
                argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                argv += ["--ro-bind", f"/{name}", f"/{name}"]
        argv += ["--ro-bind", "/etc", "/etc", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--dir", "/var/tmp"]
        argv += ["--bind", str(self.house), self.home, "--bind", str(self.work), self.cwd, "--remount-ro", "/"]
        argv += ["--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "--setenv", "HOME", self.home]
        argv += ["--setenv", "LC_ALL", "C.UTF-8", *_GIT, "--chdir", self.cwd, "--cap-drop", "ALL"]
        return argv

    def seen(self) -> dict[str, tuple[int, ...] | str]:
        """All that a change would show in: names, kinds, contents by size and change time, links. Reading changes none of it."""
        found: dict[str, tuple[int, ...] | str] = {}
        for path in (self.work, self.house, *self.work.rglob("*"), *self.house.rglob("*")):
            status = path.lstat()
            name = str(path.relative_to(self.base))
            found[name] = (status.st_mode, status.st_ino, status.st_size, status.st_ctime_ns, status.st_nlink)
        return found
