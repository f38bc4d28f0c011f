# SPDX-License-Identifier: GPL-3.0-or-later
"""What a box costs beside what it is made of.

The floor is bwrap with the same mounts, namespaces and filter, running bash itself, plus 1.3 starts of
`python3 -I -S -c 'import ctypes'` for the process that sets Landlock, reaps and reports: goal 1. The look at 11,000
directories after a command that could write: 50 ms. `git status` among 3,000 files, in the box against outside, both with
the start of a shell: 1.4. What guards absent names costs twice: their mount points are made and removed (`mount_points`), and
mounted, which bwrap does in some 0.25 ms each, since it reads the whole mount table for each (`guards_vs_none`).
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import pwd
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.measure import Case, Measured, compare, duration, percentile95, sample
from sandboxd.isolation import backends, bwrap, interpreter, mountpoints, profiles, protect
from sandboxd.isolation.box import system_call_filter
from sandboxd.isolation.ends import Opened
from sandboxd.isolation.look import Look
from sandboxd.isolation.plan import plan
from sandboxd.model import Analysis, Box, Facts, Grant, GrantKind, LaunchPlan, PlanRequest, Session, Stdio
from sandboxd.observe import aftermath, observe

DIRECTORIES = 11_000
FILES = 3_000
GIT = ("git", "-c", "user.name=b", "-c", "user.email=b@example.org")


class Scene:
    """A repository and the plans of commands in it, in a directory of its own that is removed at the end."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sandboxd-bench-", dir="/var/tmp"))
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)
        self.workspace = self.root / "ws"
        for number in range(FILES):
            path = self.workspace / f"d{number % 60}" / f"f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number}\n", encoding="utf-8")
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "x")):
            subprocess.run([*GIT, *words], cwd=self.workspace, check=True)
        (self.root / "tmp").mkdir()
        self.backend = next(each for each in backends.BACKENDS if each.name == "bwrap")
        self.null = os.open(os.devnull, os.O_RDWR)

    def request(self, text: str, *, writes: bool, facts: Facts) -> PlanRequest:
        home = pwd.getpwuid(os.getuid()).pw_dir
        session = Session(
            "bench", str(self.workspace), home, os.getuid(), os.getgid(), str(self.root / "tmp"), registry=f"{self.root}/registry"
        )
        grants = (Grant(GrantKind.WORKSPACE_WRITE),) if writes else ()
        profile = profiles.load("workspace", (profiles.SHIPPED_DIR,))
        return PlanRequest(text, session.workspace, profile, session, grants, not writes, facts, git_reads=not writes)

    def facts(self, text: str) -> Facts:
        analysis = Analysis(text, str(self.workspace), ())
        return observe(analysis, workspace=str(self.workspace), home="/nonexistent", path_env="/usr/bin:/bin")

    def plan(self, text: str, *, writes: bool) -> LaunchPlan:
        asked = self.request(text, writes=writes, facts=self.facts(text))
        return plan(asked, backends.host_facts(asked.session, asked))

    def ours(self, launch: LaunchPlan) -> None:
        """A box, from the plan to its end."""
        box: Box = self.backend.start(launch, Stdio(self.null, self.null, self.null))
        select.select([box.pidfd], [], [])
        box.kill()
        status = box.reap()
        assert status.code == 0, status

    def floor(self, launch: LaunchPlan) -> None:
        """bwrap with the same options, running bash itself."""
        ready, lease = protect.prepare(launch, Look())
        try:
            host = bwrap.Host(shutil.which("bwrap") or "bwrap", True, 0)
            with Opened() as fds:
                args = [*bwrap.bwrap_args(ready, host, fds.data), "--seccomp", str(fds.data(system_call_filter(ready)))]
                listed = fds.data(b"".join(each.encode() + b"\0" for each in args))
                argv = [host.bwrap, "--args", str(listed), "--", *launch.argv]
                done = subprocess.run(argv, pass_fds=fds.given, env={"PATH": "/usr/bin:/bin"}, stdin=self.null, check=False)
            assert done.returncode == 0
        finally:
            if lease is not None:
                lease.release()


def cases() -> list[Case]:
    """Built late: importing this module makes nothing."""
    made: list[Scene] = []

    def scene() -> Scene:
        if not made:
            made.append(Scene())
        return made[0]

    return [
        _overhead("isolation.true_read_vs_floor", scene, writes=False),
        _overhead("isolation.true_write_vs_floor", scene, writes=True),
        _late("isolation.guards_vs_none", lambda: _guards(scene())),
        _late("isolation.git_status_vs_direct", lambda: _git_status(scene())),
        _late("isolation.scan_11000", lambda: _scan(scene())),
        _late("isolation.plan", lambda: _plan(scene())),
        _late("isolation.mount_points", lambda: _mount_points(scene())),
    ]


def _late(name: str, make: Callable[[], Case]) -> Case:
    """A case that is built when it is measured."""
    unit, goal = {
        "isolation.scan_11000": ("ms", 50.0), "isolation.plan": ("us", None), "isolation.mount_points": ("ms", None),
        "isolation.guards_vs_none": ("x", None)
    }.get(name, ("x", 1.4))  # fmt: skip
    return Case(name, unit, lambda seconds: make().run(seconds), goal)


def _overhead(name: str, scene: Callable[[], Scene], *, writes: bool) -> Case:
    def run(seconds: float) -> Measured:
        here = scene()
        launch = here.plan("true", writes=writes)
        python = [interpreter.find(os.getuid()), "-I", "-S", "-c", "import ctypes"]
        works = (
            lambda: here.ours(launch),
            lambda: here.floor(launch),
            lambda: subprocess.run(python, env={}, check=True),
        )
        samples = sample(*works, seconds=seconds, rounds=60)
        ours, floor, start = (median(each) * 1e3 for each in samples)
        mounts = len(launch.mounts)
        note = f"{ours:.1f} ms against {floor:.1f} + 1.3 x {start:.1f} ms; {mounts} mounts"
        slow, slow_floor, slow_start = (percentile95(each) * 1e3 for each in samples)
        return Measured(ours / (floor + 1.3 * start), len(samples[0]), note, slow / (slow_floor + 1.3 * slow_start))

    return Case(name, "x", run, 1.0)


def _git_status(here: Scene) -> Case:
    launch = here.plan("git status --porcelain", writes=False)
    empty = here.plan("true", writes=False)

    def direct() -> None:
        subprocess.run(["bash", "-c", "git status --porcelain"], cwd=here.workspace, stdout=subprocess.DEVNULL, check=True)

    def run(seconds: float) -> Measured:
        works = (lambda: here.ours(launch), lambda: here.ours(empty), direct)
        samples = sample(*works, seconds=seconds, rounds=60)
        status, start, outside = (median(each) * 1e3 for each in samples)
        note = f"{status:.1f} ms, of which the box {start:.1f}, against {outside:.1f} ms"
        slow, slow_start, slow_outside = (percentile95(each) * 1e3 for each in samples)
        return Measured((status - start) / outside, len(samples[0]), note, (slow - slow_start) / slow_outside)

    return Case("", "x", run)


def _scan(here: Scene) -> Case:
    tree = here.root / "large"
    for top in range(DIRECTORIES // 100):
        for below in range(99):
            (tree / f"d{top}/e{below}").mkdir(parents=True)
    session = Session("bench", str(tree), "/nonexistent", os.getuid(), os.getgid(), "")
    profile = profiles.load("workspace", (profiles.SHIPPED_DIR,))
    asked = PlanRequest("true", str(tree), profile, session, (Grant(GrantKind.WORKSPACE_WRITE),), False, Facts())
    launch = plan(asked, backends.host_facts(session, asked))
    watch = aftermath.begin(asked, launch)
    assert watch is not None
    return duration("", lambda: aftermath.settle(watch, asked, launch), unit="ms")


def _plan(here: Scene) -> Case:
    asked = here.request("true", writes=True, facts=here.facts("true"))
    return duration("", lambda: plan(asked, backends.host_facts(asked.session, asked)))


def _mount_points(here: Scene) -> Case:
    launch = here.plan("true", writes=True)

    def work() -> None:
        lease = mountpoints.acquire(launch.registry, launch.absent, launch.uid, launch.gid)
        assert lease is not None
        lease.release()

    return duration("", work, unit="ms")


def _guards(here: Scene) -> Case:
    """A box that may write, with the guards of absent names and without."""
    asked = here.request("true", writes=True, facts=here.facts("true"))
    bare = dataclasses.replace(asked, session=dataclasses.replace(asked.session, registry=""))
    with_them, without = (plan(each, backends.host_facts(each.session, each)) for each in (asked, bare))
    return compare("", lambda: here.ours(with_them), lambda: here.ours(without), rounds=60)
