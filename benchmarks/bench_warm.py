# SPDX-License-Identifier: GPL-3.0-or-later
"""Boxes of the native backend, ready and cold, against plain `bash -c true` and against bwrap with the same plan.

All from the daemon's side: from `start` to the collected status, as the daemon does it. The plan is that of a command under
the read-only promise in a git repository, with all masks of this machine; `write` cases have the guards of absent protected
paths too. docs/performance.md says what each figure is made of.
"""

from __future__ import annotations

import atexit
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.measure import Case, Measured, against, middle, percentile95
from sandboxd.isolation import backends, interpreter, profiles
from sandboxd.isolation.bwrap import Bwrap
from sandboxd.isolation.native import Native
from sandboxd.isolation.plan import plan
from sandboxd.isolation.pool import Caps
from sandboxd.model import Analysis, Backend, Box, Facts, Grant, GrantKind, LaunchPlan, PlanRequest, Session, Stdio
from sandboxd.observe import observe

PLAIN = ("bash", "-c", "true")
NOBODY = 65534
MB = 1 << 20


class Scene:
    """A repository, and backends with it; everything goes at the end of the process."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sandboxd-bench-", dir="/var/tmp"))
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)
        for name in ("ws/.git/hooks", "tmp"):
            (self.root / name).mkdir(parents=True)
        (self.root / "ws/.git/config").touch()
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.native = Native()
        self.templates = Native()
        self.templates.configure(Caps(per_template=0))
        self.sessions = Native()
        self.sessions.configure(Caps(session=True))
        self.bwrap = Bwrap()
        for backend in (self.native, self.templates, self.sessions, self.bwrap):
            probe = backend.probe()
            assert probe.works, probe.error

    def plan(self, text: str, *, writes: bool = False) -> LaunchPlan:
        entry = pwd.getpwuid(os.getuid())
        ws = str(self.root / "ws")
        session = Session(
            "bench", ws, entry.pw_dir, os.getuid(), os.getgid(), f"{self.root}/tmp", registry=f"{self.root}/registry"
        )
        facts = observe(Analysis(text, ws, ()), workspace=ws, home=entry.pw_dir, path_env="/usr/bin:/bin") if writes else Facts()
        grants = (Grant(GrantKind.WORKSPACE_WRITE),) if writes else ()
        profile = profiles.load("workspace", (profiles.SHIPPED_DIR,))
        asked = PlanRequest(text, ws, profile, session, grants, not writes, facts, git_reads=not writes)
        return plan(asked, backends.host_facts(session, asked))

    def boxed(self, backend: Backend, launch: LaunchPlan) -> float:
        """Seconds for one command in a box."""
        begun = perf_counter()
        box = backend.start(launch, Stdio(self.null, self.null, self.null))
        select.select([box.pidfd], [], [])
        _end(box)
        return perf_counter() - begun

    def plain(self) -> float:
        """Seconds for one plain command."""
        begun = perf_counter()
        process = subprocess.Popen(PLAIN, stdin=self.null, stdout=self.null, stderr=self.null)
        process.wait()
        return perf_counter() - begun


def _end(box: Box) -> None:
    box.kill()
    status = box.reap()
    assert status.code == 0, status


_scenes: list[Scene] = []


def scene() -> Scene:
    if not _scenes:
        _scenes.append(Scene())
    return _scenes[0]


def cases() -> list[Case]:
    """Built late: importing this module makes nothing."""
    return [
        Case("warm.true_vs_plain", "x", lambda seconds: _warm(scene(), seconds), 1.10),
        Case("warm.true_vs_plain_user", "x", _as_user, 1.10),
        Case("warm.true_write_vs_plain", "x", lambda seconds: _warm(scene(), seconds, writes=True)),
        Case("warm.cold_vs_plain", "x", _cold, 3.0),
        Case("warm.no_template_vs_plain", "x", _no_template),
        Case("warm.bwrap_vs_warm", "x", _bwrap, 4.0, higher=True),
        Case("warm.sustained_1_vs_plain", "x", lambda _: _sustained(1)),
        Case("warm.sustained_10_vs_plain", "x", lambda _: _sustained(10), 0.33, higher=True),
        Case("warm.sustained_100_vs_plain", "x", lambda _: _sustained(100)),
        Case("warm.sustained_1_vs_bwrap", "x", lambda _: _sustained(1, bwrap=True)),
        Case("warm.sustained_10_vs_bwrap", "x", lambda _: _sustained(10, bwrap=True), 1.7, higher=True),
        Case("warm.sustained_100_vs_bwrap", "x", lambda _: _sustained(100, bwrap=True)),
        Case("warm.session_1_vs_plain", "x", lambda _: _session(1), 0.85, higher=True),
        Case("warm.session_10_vs_plain", "x", lambda _: _session(10), 0.85, higher=True),
        Case("warm.idle_box", "MB", _idle, 2.0),
        Case("warm.first_box", "ms", _first, 100.0),
        Case("warm.kill_200_children", "ms", _kill, 50.0),
    ]


def _interleaved(seconds: float, prepare: Callable[[], object], *works: Callable[[], float]) -> list[list[float]]:
    """What `works` say they took, in turns; `prepare` before each round is not counted."""
    taken: list[list[float]] = [[] for _ in works]
    end = perf_counter() + seconds
    while len(taken[0]) < 10 or (perf_counter() < end and len(taken[0]) < 300):
        prepare()
        turn = list(zip(works, taken, strict=True))
        for work, out in turn if len(taken[0]) % 2 else reversed(turn):  # whoever comes second finds the caches filled
            out.append(work())
    return taken


def _ratio(ours: list[float], theirs: list[float]) -> Measured:
    return against(ours, theirs, note=f"of the fastest {min(ours) / min(theirs):.2f}")


def _warm(here: Scene, seconds: float, *, writes: bool = False) -> Measured:
    launch = here.plan("true", writes=writes)

    def ready() -> None:
        assert here.native.prepare(launch, 2, 30.0)

    ours, plain = _interleaved(seconds, ready, lambda: here.boxed(here.native, launch), here.plain)
    return _ratio(ours, plain)


def _as_user(seconds: float) -> Measured:
    """`warm.true_vs_plain` by the system's python3 as nobody, when this is root's run."""
    if os.getuid() != 0:
        return _warm(scene(), seconds)
    root = Path(__file__).resolve().parent.parent
    script = f"import json; from benchmarks import bench_warm as b; print(json.dumps(b.as_words(b._warm(b.scene(), {seconds}))))"
    done = subprocess.run(
        [interpreter.find(NOBODY), "-c", script],
        cwd=root,
        env={"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    return Measured(*json.loads(done.stdout))


def as_words(measured: Measured) -> tuple[float, int, str, float | None]:
    return measured.value, measured.n, measured.note, measured.p95


def _cold(seconds: float) -> Measured:
    here = scene()
    launch = here.plan("true")
    here.boxed(here.templates, launch)
    ours, plain = _interleaved(seconds, lambda: None, lambda: here.boxed(here.templates, launch), here.plain)
    figures = here.templates.figures()
    assert figures is not None
    assert figures.warm == 0
    assert figures.from_template >= len(ours) * 0.8  # where the host changed meanwhile, a template is made anew
    return _ratio(ours, plain)


def _no_template(seconds: float) -> Measured:
    here = scene()
    launch = here.plan("true")
    ours, plain = _interleaved(seconds, here.templates.drain, lambda: here.boxed(here.templates, launch), here.plain)
    return _ratio(ours, plain)


def _bwrap(seconds: float) -> Measured:
    here = scene()
    launch = here.plan("true")

    def ready() -> None:
        assert here.native.prepare(launch, 2, 30.0)

    works = (lambda: here.boxed(here.native, launch), lambda: here.boxed(here.bwrap, launch))
    ours, theirs = _interleaved(seconds, ready, *works)
    return _ratio(theirs, ours)


def _sustained(at_once: int, *, bwrap: bool = False) -> Measured:
    """Commands a second, over those of plain bash (or bwrap); the median of three turns. p95 is that of how long one command
    takes from its start to its end, theirs over ours, so that more is better there too."""
    here = scene()
    return _rates(here, here.native, here.bwrap if bwrap else None, at_once, max(40, 2 * at_once), 3)


def _session(at_once: int) -> Measured:
    """As `_sustained`, of commands of one session in boxes that they share; the median of seven turns."""
    here = scene()
    measured = _rates(here, here.sessions, None, at_once, 100, 7)
    figures = here.sessions.figures()
    assert figures is not None
    assert figures.reused >= 350
    return measured


def _rates(here: Scene, ours_by: Backend, theirs_by: Backend | None, at_once: int, count: int, turns: int) -> Measured:
    launch = here.plan("true")
    ours, theirs = [], []
    for _ in range(turns):
        ours.append(_rate(here, ours_by, launch, at_once, count))
        theirs.append(_rate(here, theirs_by, launch, at_once, count))
    rate, other = (median(rate for rate, _ in each) for each in (ours, theirs))
    slow, slow_other = (percentile95([one for _, taken in each for one in taken]) for each in (ours, theirs))
    note = f"{rate:.0f} a second against {other:.0f}; p95 of one {slow * 1e3:.1f} ms against {slow_other * 1e3:.1f}"
    return Measured(rate / other, turns, note, slow_other / slow)


def _rate(here: Scene, backend: Backend | None, launch: LaunchPlan, at_once: int, count: int) -> tuple[float, list[float]]:
    """Commands a second, and how many seconds each took."""
    stdio = Stdio(here.null, here.null, here.null)
    running: dict[int, tuple[float, Box | subprocess.Popen[bytes]]] = {}
    taken: list[float] = []
    poll = select.poll()
    begun = perf_counter()
    started = ended = 0
    while ended < count:
        while len(running) < at_once and started < count:
            at = perf_counter()
            if backend is not None:
                box = backend.start(launch, stdio)
                running[box.pidfd] = at, box
                poll.register(box.pidfd, select.POLLIN)
            else:
                process = subprocess.Popen(PLAIN, stdin=here.null, stdout=here.null, stderr=here.null)
                fd = os.pidfd_open(process.pid)
                running[fd] = at, process
                poll.register(fd, select.POLLIN)
            started += 1
        for fd, _ in poll.poll():
            poll.unregister(fd)
            at, one = running.pop(fd)
            if isinstance(one, subprocess.Popen):
                one.wait()
                os.close(fd)
            else:
                _end(one)
            taken.append(perf_counter() - at)
            ended += 1
    return count / (perf_counter() - begun), taken


def _idle(seconds: float) -> Measured:
    """PSS of a box that waits, when eight do."""
    here = scene()
    assert here.native.prepare(here.plan("true"), 8, 30.0)
    assert here.native.zygote_pid is not None
    boxes = [box for template in _children(here.native.zygote_pid) for box in _children(template)]
    sizes = [_pss(pid) for pid in boxes]
    return middle([size / MB for size in sizes], f"largest {max(sizes) / MB:.2f}; read as root")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _first(seconds: float) -> Measured:
    """From nothing, the interpreter's search and compilation included, to a box that waits."""
    here = scene()
    launch = here.plan("true")
    taken = []
    for _ in range(5):
        interpreter.find.cache_clear()
        interpreter.compiled.cache_clear()
        interpreter._magic.cache_clear()
        native = Native()
        native.trust()
        begun = perf_counter()
        assert native.prepare(launch, 1, 30.0)
        taken.append((perf_counter() - begun) * 1e3)
        native.close()
    return middle(taken, f"best {min(taken):.0f}")


def _kill(seconds: float) -> Measured:
    """From `kill` to the box's end, with 200 processes in sessions of their own that ignore TERM."""
    here = scene()
    text = "trap '' TERM; for i in $(seq 200); do setsid bash -c \"trap '' TERM; sleep 1000\" & done; echo up; wait"
    launch = here.plan(text)
    taken = []
    for _ in range(5):
        read, write = os.pipe2(os.O_CLOEXEC)
        box = here.native.start(launch, Stdio(here.null, write, here.null))
        os.close(write)
        assert os.read(read, 3) == b"up\n"
        begun = perf_counter()
        box.kill()
        select.select([box.pidfd], [], [])
        status = box.reap()
        taken.append((perf_counter() - begun) * 1e3)
        assert status.signal == signal.SIGKILL
        os.close(read)
    return middle(taken, f"best {min(taken):.1f}")
