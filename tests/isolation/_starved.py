# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken away from the pool of boxes while it works; test_isolation_starved.py runs each in a process of its own.

As a script: `_starved.py SCENARIO DIRECTORY`, in which it may make what it likes. It says `kept` when every promise was.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandboxd.errors import IsolationError
from sandboxd.isolation import backends, cgroups
from sandboxd.isolation.bwrap import Bwrap
from sandboxd.isolation.native import Native
from sandboxd.isolation.plan import plan
from sandboxd.isolation.shelf import Figures
from sandboxd.isolation.unboxed import Unboxed
from sandboxd.model import ExitStatus, LaunchPlan, Limits, PlanRequest, Stdio
from tests.isolation import _drive

PATIENCE = 30  # seconds
# Says whether it was confined: whoever runs bare can write the directory beside the workspace.
TEXT = "echo x > ../outside && echo bare; echo x > inside && echo fine"
CONFINED = "fine\n"
MADE: set[str] = set()  # every control group that was made


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "os.mkdir" and str(args[0]).startswith(cgroups.ROOT):
        MADE.add(str(args[0]))


sys.addaudithook(_heard)


class Place:
    """A workspace, a native backend of its own, and how much there was of everything before."""

    def __init__(self, root: Path) -> None:
        self.root, self.ws = root, root / "ws"
        for name in ("ws/.claude", "ws/.git", "home/.ssh", "tmp", "registry"):
            (root / name).mkdir(parents=True, exist_ok=True)
        backends.NATIVE.close()  # that of the driver
        self.native = Native()
        self.fine(self.plan())  # what is made once is there from now on
        self.native.close()
        self.before = self.levels()

    def levels(self) -> dict[str, object]:
        """What must be as much afterwards as before."""
        return {
            "descriptors": sorted(map(_described, os.listdir("/proc/self/fd"))),
            "mounts": Path("/proc/self/mounts").read_text().count(str(self.root)),
            "groups": sorted(path for path in MADE if os.path.isdir(path)),
            "children": len(children(os.getpid())),
            "names": sorted(os.listdir(self.ws)),
            "registry": sorted(os.listdir(self.root / "registry")),
        }

    def close(self) -> None:
        self.native.close()
        assert not (self.root / "outside").exists(), "a command ran unconfined"
        after = self.levels()
        assert after == self.before, (self.before, after)

    def plan(self, text: str = TEXT, **spec: Any) -> LaunchPlan:
        asked = self.request(text, **spec)
        return plan(asked, backends.host_facts(asked.session, asked))

    def request(self, text: str = TEXT, **spec: Any) -> PlanRequest:
        names = [f"{self.ws}/{name}" for name in (".claude", ".git") if (self.ws / name).exists()]
        return _drive.request(
            {
                "text": text, "workspace": str(self.ws), "home": f"{self.root}/home", "tmp": f"{self.root}/tmp",
                "protected": names, "registry": f"{self.root}/registry", **spec,
            }
        )  # fmt: skip

    def run(self, launch: LaunchPlan) -> tuple[str, ExitStatus]:
        """What a command says and how it ends. Raises IsolationError."""
        read, write = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self.started(launch, read, write, null)
        finally:
            os.close(read)
            os.close(null)

    def started(self, launch: LaunchPlan, read: int, write: int, null: int) -> tuple[str, ExitStatus]:
        try:
            box = self.native.start(launch, Stdio(null, write, null))
        finally:
            os.close(write)
        said = b""
        while part := os.read(read, 65536):
            said += part
        assert select.select([box.pidfd], [], [], PATIENCE)[0], "the box does not end"
        box.kill()
        return said.decode(), box.reap()

    def refused(self, launch: LaunchPlan) -> str:
        """The complaint of a start that must fail."""
        said, status, complaint = tried(self.run, launch)
        assert complaint, (said, status)
        return complaint

    def fine(self, launch: LaunchPlan) -> None:
        said, status = self.run(launch)
        assert (said, status.code) == (CONFINED, 0), (said, status)

    def fine_or_refused(self, launch: LaunchPlan) -> bool:
        """Whether it ran; if not, it was refused in words, or ended with its box, and its status says so."""
        said, status, complaint = tried(self.run, launch)
        assert said in ("", CONFINED), said
        assert complaint or status.code == 0 or status.signal == signal.SIGKILL, status
        return status.code == 0

    def figures(self) -> Figures:
        found = self.native.figures()
        assert found is not None
        return found

    def recovers(self, launch: LaunchPlan) -> None:
        """Commands run again, and by their use alone boxes get ready again."""

        def used() -> bool:
            for _ in range(2):
                self.fine(launch)
            before = self.figures().warm
            ready = self.native.ready(launch, 1, 5.0)
            self.fine(launch)
            return ready and self.figures().warm == before + 1

        undisturbed(used)

    @property
    def zygote(self) -> int:
        pid = self.native.zygote_pid
        assert pid is not None
        return pid

    def template(self) -> int:
        """Of the only one that has boxes."""
        (pid,) = (each for each in children(self.zygote) if children(each))
        return pid


def _described(fd: str) -> str:
    """What a descriptor is; two sockets are alike."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition("[")[0]
    except FileNotFoundError:
        return "/proc"  # that of the listing itself


def undisturbed(work: Callable[[], bool]) -> None:
    """Again where it says no: another test may make a user meanwhile, which replaces files that every box hides, and that
    empties the pool too."""
    assert any(work() for _ in range(6)), "six times"


def tried(run: Callable[..., tuple[str, ExitStatus]], *args: Any) -> tuple[str, ExitStatus, str]:
    """What was said, how it ended, and why it was refused; whoever is refused is told something that helps."""
    try:
        return *run(*args), ""
    except IsolationError as error:
        complaint = str(error)
    assert "sandbox" in complaint or "`" in complaint, complaint
    return "", ExitStatus(None, None), complaint


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def family(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *family(child))]


@contextmanager
def watched(pids: list[int]) -> Iterator[None]:
    """All of these have ended, soon after the body has."""
    fds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for pid, fd in zip(pids, fds, strict=True):
            assert select.select([fd], [], [], PATIENCE)[0], f"process {pid} stays"
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def limited(pid: int, what: int, value: int) -> Iterator[None]:
    """A process with a lower limit meanwhile."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (value, before[1]))
    try:
        yield
    finally:
        try:
            resource.prlimit(pid, what, before)
        except ProcessLookupError:
            pass  # it was given up


# -- the scenarios -----------------------------------------------------------------------------------------------------


def template_cannot_fork(place: Place) -> None:
    """A box that is to be made beforehand gets no process: all that waits is given up, and the next command starts anew."""
    launch = place.plan()

    def refill_fails() -> bool:
        assert place.native.prepare(launch, 2, PATIENCE)
        warm, cold = place.figures().warm, place.figures().cold
        with limited(place.template(), resource.RLIMIT_NPROC, 0), watched(family(place.zygote)):
            place.fine(launch)  # in a box that was there; the pool wants another one for it
            if place.figures().warm == warm:
                place.native.drain()
                return False
        assert (place.figures().boxes, place.figures().templates) == (0, 0), place.figures()
        place.fine(launch)
        return place.figures().cold == cold + 1

    undisturbed(refill_fails)
    place.recovers(launch)


def template_cannot_fork_for_a_command(place: Place) -> None:
    """The same, met by a command: it runs in a box that is made from the ground up."""
    launch = place.plan()
    assert place.native.prepare(launch, 1, PATIENCE)
    (stdin, feed), (out, write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    box = place.native.start(place.plan("read -r line; echo $line"), Stdio(stdin, write, write))
    with limited(place.template(), resource.RLIMIT_NPROC, 0):
        place.fine(launch)
    os.write(feed, b"alive\n")  # and what ran already is not touched
    assert os.read(out, 10) == b"alive\n"
    for fd in (stdin, feed, out, write):
        os.close(fd)
    assert select.select([box.pidfd], [], [], PATIENCE)[0]
    assert box.reap().code == 0
    place.recovers(launch)


def zygote_cannot_fork(place: Place) -> None:
    """No template can be made: the command is refused and says why; what waits for others is still good."""
    other, launch = place.plan(), place.plan(promise=True, text="echo fine")

    def another_is_refused() -> bool:
        assert place.native.prepare(other, 2, PATIENCE)
        with limited(place.zygote, resource.RLIMIT_NPROC, 0):
            for _ in range(3):
                said = place.refused(launch)
            assert "no process for a template" in said, said
            return place.fine_or_refused(other)

    undisturbed(another_is_refused)
    place.recovers(launch)
    place.recovers(other)


def killed_meanwhile(place: Place) -> None:
    """The zygote or a template is killed, and nobody has noticed when the next command comes."""
    launch = place.plan()
    ran = 0
    for number in range(12):
        place.native.prepare(launch, 1 + number % 2, PATIENCE)
        pids = children(place.zygote)
        with watched(family(place.zygote)):
            for pid in [place.zygote] if number % 2 else pids:
                os.kill(pid, signal.SIGKILL)
            ran += place.fine_or_refused(launch)
    assert ran, "no command ran"
    place.recovers(launch)


def source_removed(place: Place) -> None:
    """What a plan mounts is gone when it starts: refused, with the path, and as before once it is back."""
    launch = place.plan()
    assert place.native.prepare(launch, 1, PATIENCE)
    tmp = place.root / "tmp"
    for _ in range(2):
        tmp.rename(tmp.with_name("away"))
        assert str(tmp) in place.refused(launch)
        tmp.with_name("away").rename(tmp)
        place.recovers(launch)
    shutil.rmtree(place.ws / ".claude")
    assert ".claude" in place.refused(launch)
    (place.ws / ".claude").mkdir()
    place.recovers(launch)


def _limit_of(kind: str) -> Path:
    """The number of namespaces of that kind; of the user namespace of whoever opens it, which must be the test's own."""
    assert "4294967295" not in Path("/proc/self/uid_map").read_text(encoding="ascii"), "this is the host's user namespace"
    return Path(f"/proc/sys/user/max_{kind}_namespaces")


def namespaces_used_up(place: Place) -> None:
    """The kernel refuses another user namespace."""
    launch, limit = place.plan(), _limit_of("user")
    before = limit.read_text(encoding="ascii")
    assert place.native.prepare(launch, 2, PATIENCE)
    with watched(family(place.zygote)):
        limit.write_text("0", encoding="ascii")
        place.fine(launch)
    assert (place.figures().boxes, place.figures().templates) == (0, 0), place.figures()
    for _ in range(3):
        assert "namespace" in place.refused(launch)
    limit.write_text(before, encoding="ascii")
    place.recovers(launch)


def networks_used_up(place: Place) -> None:
    """The kernel refuses another network namespace: no box shares that of another, nor the host's."""
    launch, limit = place.plan(text="readlink /proc/self/ns/net"), _limit_of("net")
    before = limit.read_text(encoding="ascii")
    assert place.native.prepare(launch, 2, PATIENCE)
    limit.write_text("0", encoding="ascii")
    seen = [os.readlink("/proc/self/ns/net")]
    refused = 0
    while refused < 3:
        assert len(seen) < 20, "boxes are made without end"
        said, _, complaint = tried(place.run, launch)
        if complaint:
            assert "network namespace" in complaint, complaint
            refused += 1
        else:
            assert said.strip() not in seen, "two had the same network"
            seen.append(said.strip())
    assert len(seen) > 2, "what was ready is used"
    limit.write_text(before, encoding="ascii")
    place.recovers(place.plan())


def descriptors_used_up(place: Place) -> None:
    """Whichever descriptor cannot be opened, the start is refused in words, or does without it."""
    launch = place.plan()
    place.recovers(launch)
    ran = []
    for room in range(24):
        for ready in (True, False):
            place.native.drain()
            if ready:
                assert place.native.prepare(launch, 1, PATIENCE)
            ran += [room] if _ran_short(place, launch, room) else []
    assert 0 not in ran, "descriptors were not short"
    assert ran, "no command ran"
    place.recovers(launch)


def descriptors_of_a_look(place: Place) -> None:
    """Without descriptors the host is not looked at, and no plan made: what is there would count as absent and not be hidden."""
    for name in (".ssh", ".gnupg"):
        (place.root / "home" / name).mkdir(parents=True, exist_ok=True)
    for asked in (place.request(promise=False), place.request(promise=True)):
        whole, _ = _mounted(asked)
        assert f"{place.root}/home/.ssh" in whole
        for limit in (3, _limit(0), _limit(1)):  # the first leaves none, the others one and two
            with limited(os.getpid(), resource.RLIMIT_NOFILE, limit):
                made, complaint = _mounted(asked)
            assert "cannot be looked at" in complaint if complaint else made == whole, (made, complaint)
            assert complaint or limit > 3, "descriptors were not short"


def _mounted(asked: PlanRequest) -> tuple[set[str], str]:
    """What a plan mounts over, and why there is none."""
    try:
        return {mount.target for mount in plan(asked, backends.host_facts(asked.session, asked)).mounts}, ""
    except IsolationError as error:
        return set(), str(error)


def descriptors_of_other_backends(place: Place) -> None:
    """The same where bwrap or `child` alone start the command."""
    native = place.native
    for backend in (Bwrap(), Unboxed("landlock", confines=True)):
        assert backend.probe().works
        place.native = backend  # type: ignore[assignment]  # of it only `start` is used here
        launch = place.plan(text="echo fine")
        place.run(launch)
        ran = []
        for room in range(24):
            ran += [room] if _ran_short(place, launch, room) else []
        assert 0 not in ran, "descriptors were not short"
        assert ran, "no command ran"
        place.run(launch)
    place.native = native


def _ran_short(place: Place, launch: LaunchPlan, room: int) -> bool:
    """Whether a command ran, confined, where only so many descriptors were left; else it was refused."""
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    with limited(os.getpid(), resource.RLIMIT_NOFILE, _limit(room)):
        said, status, complaint = tried(place.started, launch, read, write, null)
    os.close(read)
    os.close(null)
    assert complaint or (said, status.code) == (CONFINED, 0), (said, status)
    return not complaint


def _limit(room: int) -> int:
    """The limit below which so many numbers are free."""
    taken, limit = set(map(int, os.listdir("/proc/self/fd"))), 0
    while room or limit in taken:
        room -= limit not in taken
        limit += 1
    return limit


def memory_used_up(place: Place) -> None:
    """A box for which the limit of memory is too low is killed; no command of another plan notices."""
    other = place.plan()
    assert place.native.prepare(other, 1, PATIENCE)
    tight = dataclasses.replace(place.plan(text="echo fine"), limits=Limits(pids=100, memory=256 << 10))
    for _ in range(3):
        said, status, complaint = tried(place.run, tight)
        assert said == "", said
        assert complaint or status.oom_kills, status
        place.fine(other)
    place.recovers(other)


SCENARIOS: dict[str, Callable[[Place], None]] = {
    each.__name__: each
    for each in (
        template_cannot_fork,
        template_cannot_fork_for_a_command,
        zygote_cannot_fork,
        killed_meanwhile,
        source_removed,
        namespaces_used_up,
        networks_used_up,
        descriptors_used_up,
        descriptors_of_a_look,
        descriptors_of_other_backends,
        memory_used_up,
    )
}

if __name__ == "__main__":
    here = Place(Path(sys.argv[2]))
    SCENARIOS[sys.argv[1]](here)
    here.close()
    print("kept")
