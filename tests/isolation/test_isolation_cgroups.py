# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups of version 2 on a real hierarchy, mounted where nobody else sees it.

Where version 1 holds the controllers, version 2 can be mounted without any. Making, joining, counting, killing, removing
and sweeping groups need none, so they are tried there, with two of version 2's own files in the place of the limits. What
a limit does to a process needs controllers: `test_isolation_life` tries that with whichever version this machine has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests._require import require
from tests.isolation.conftest import HERE

LIFE = """
import json, os, select, sys, time
from sandboxd.isolation import cgroups
from sandboxd.isolation.cgroups import Found
from sandboxd.model import Limits

root = sys.argv[1]
base = f"{root}/sandboxd-test-{os.getpid()}"
os.mkdir(base)
cgroups.found = lambda: Found(2, {"pids": base, "memory": base})
cgroups._FILES[2] = {"pids": "cgroup.max.descendants", "memory": "cgroup.max.depth"}
taken, out = [], {}
def take(fd):
    taken.append(fd)
    return fd
def member(fd):
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(fd, b"0")
        os.close(go[1])
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    return pid, go[1]
def read(path):
    with open(path) as file:
        return file.read().strip()
def until_gone(path):
    deadline = time.monotonic() + 20
    while os.path.exists(path) and time.monotonic() < deadline:
        cgroups.remove(())
        os.sched_yield()
    return not os.path.exists(path)

groups = cgroups.join(Limits(pids=50, memory=7), 0, take)
(path,) = groups.paths
out["fds"] = len(groups.fds)
out["name"] = os.path.dirname(path) == base and os.path.basename(path).startswith(cgroups.PREFIX)
out["limits"] = [read(f"{path}/cgroup.max.descendants"), read(f"{path}/cgroup.max.depth")]
pid, _ = member(groups.fds[0])
out["joined"] = read(f"{path}/cgroup.procs") == str(pid)
out["events"] = cgroups.events(groups.paths)
cgroups.remove(groups.paths)
out["killed"] = os.waitpid(pid, 0)[1] == 9
out["removed"] = until_gone(path)

none = cgroups.join(Limits(), 0, take)
out["without limits"] = none.paths == ()

used = cgroups.join(Limits(pids=1), 0, take)
pid, go = member(used.fds[0])
os.mkdir(f"{base}/{cgroups.PREFIX}left")
os.mkdir(f"{base}/other")
out["fresh stay"] = cgroups.sweep()
cgroups.FRESH = -1.0
out["swept"] = cgroups.sweep()
names = sorted(each.name for each in os.scandir(base) if each.is_dir())
out["stay"] = names == sorted([os.path.basename(used.paths[0]), "other"])
os.write(go, b"x")
out["ended by itself"] = os.waitpid(pid, 0)[1] == 0
cgroups.remove(used.paths)
until_gone(used.paths[0])
os.rmdir(f"{base}/other")
for fd in taken:
    os.close(fd)

pid = os.fork()  # a daemon in a group that is delegated to it
if pid == 0:
    with open(f"{base}/cgroup.procs", "w") as file:
        file.write("0")
    cgroups.ROOT, cgroups._own = root, lambda: [("", "/" + os.path.basename(base))]
    without = cgroups._own_v2()
    cgroups.CONTROLLERS = ()
    moved = cgroups._own_v2() == base and read("/proc/self/cgroup").splitlines()[-1].endswith(f"/{cgroups.PREFIX}daemon")
    os._exit(0 if without == "" and moved else 1)
out["daemon moves"] = os.waitpid(pid, 0)[1] == 0
out["its group is left to it"] = os.path.isdir(f"{base}/{cgroups.PREFIX}daemon")
os.rmdir(f"{base}/{cgroups.PREFIX}daemon")
os.rmdir(base)
print(json.dumps(out))
"""


def test_the_life_of_groups_of_version_2(tmp_path: Path) -> None:
    """One group for both limits, joined through a descriptor, emptied by `cgroup.kill`, removed; a sweep takes only what is
    neither fresh nor used; a hierarchy without controllers is not taken for one with, and the daemon moves itself aside."""
    require("userns")
    if os.geteuid() != 0:
        pytest.skip("only root can mount a hierarchy and make groups in it")
    place = tmp_path / "unified"
    place.mkdir()
    script = tmp_path / "life.py"
    script.write_text(LIFE, encoding="utf-8")
    mounted = f'mount -t cgroup2 none {place} || exit 77; exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh", sys.executable, str(script), str(place)],
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(f"no control groups of version 2: {done.stderr}")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert (answers.pop("fds"), answers.pop("limits"), answers.pop("events")) == (1, ["50", "7"], [0, 0])
    assert (answers.pop("fresh stay"), answers.pop("swept")) == (0, 1)
    assert [name for name, right in answers.items() if right is not True] == []
