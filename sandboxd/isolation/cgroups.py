# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups for the limits that rlimits cannot keep: processes of root, memory of anyone.

The first process of a box joins by itself, by writing "0" to a descriptor that the daemon opened (its own right to move
it counts: cgroups(7)), so nothing of the box ever runs outside.

Version 2: one group holds both limits, in a subtree that somebody delegated to this user (`Delegate=yes` of a systemd
unit): the daemon's own group must be writable, and it moves itself into a child of it, since a group with controllers for
its children may hold no processes. Version 1 needs root and a hierarchy mounted for each controller.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from sandboxd.model import Limits

ROOT = "/sys/fs/cgroup"
PREFIX = "sandboxd-"
FRESH = 60.0  # seconds in which another daemon may have made a group and not yet filled it
CONTROLLERS = ("pids", "memory")
# Where a process of one thread joins by writing "0". In `tasks` that moves a thread by itself, for which the kernel need not
# stop the coming and going of all the machine's threads (cgroup_procs_write_start, since Linux 5.5), for up to 10 ms.
_JOIN = {1: "tasks", 2: "cgroup.procs"}
_FILES = {1: {"pids": "pids.max", "memory": "memory.limit_in_bytes"}, 2: {"pids": "pids.max", "memory": "memory.max"}}
# (file, key) of the counters of refused processes and of processes killed for want of memory
_COUNTERS = {
    1: {"pids": ("pids.events", "max"), "memory": ("memory.oom_control", "oom_kill")},
    2: {"pids": ("pids.events", "max"), "memory": ("memory.events", "oom_kill")},
}
_unremoved: set[str] = set()


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups made for one box: `fds` for its first process to join, `paths` to remove afterwards."""

    fds: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Where groups can be made: the version of the interface, and for each controller the directory."""

    version: int
    places: dict[str, str]


@lru_cache(maxsize=1)
def found() -> Found:
    """What this process may use, tried by making a group in each place."""
    unified = _own_v2()
    if unified:
        return Found(2, dict.fromkeys(CONTROLLERS, unified))
    return Found(1, {name: path for name, path in _own_v1().items() if name in CONTROLLERS and _can_make(path)})


def available() -> dict[str, str]:
    """Controller -> the directory in which this process may make groups."""
    return found().places


@lru_cache(maxsize=1)
def rlimit_counts_per_box() -> bool:
    """Whether RLIMIT_NPROC counts per user namespace, as it does since Linux 5.14."""
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor) if minor.isdigit() else 0) >= (5, 14)


def join(limits: Limits, uid: int, take: Callable[[int], int]) -> Groups:
    """Make the groups that these limits need; `take` owns each descriptor opened.

    In version 1 each limit costs a group of its own, so one that an rlimit keeps as well gets none: the processes of
    everybody but root. Raises OSError; none is left then.
    """
    wanted = {"pids": limits.pids, "memory": limits.memory}
    if found().version == 1 and uid != 0 and rlimit_counts_per_box():
        wanted["pids"] = None
    fds: list[int] = []
    paths: dict[str, str] = {}
    for controller, value in wanted.items():
        parent = available().get(controller)
        if parent is None or value is None:
            continue
        path = paths.get(parent)
        try:
            if path is None:
                path = paths[parent] = f"{parent}/{PREFIX}{secrets.token_hex(6)}"
                os.mkdir(path, 0o755)
                fds.append(take(os.open(f"{path}/{_JOIN[found().version]}", os.O_WRONLY | os.O_CLOEXEC)))
            _write(f"{path}/{_FILES[found().version][controller]}", value)
        except OSError:
            remove(tuple(paths.values()))
            raise
    return Groups(tuple(fds), tuple(paths.values()))


class Counters:
    """What the groups of one box count. Open beforehand: a look then takes a tenth of the time, and a command waits for it."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._open: dict[str, tuple[int, bytes]] = {}  # controller -> descriptor, and what its line begins with
        for controller, parent in available().items():
            file, key = _COUNTERS[found().version][controller]
            for path in paths:
                if os.path.dirname(path) == parent:
                    with contextlib.suppress(OSError):
                        self._open[controller] = os.open(f"{path}/{file}", os.O_RDONLY | os.O_CLOEXEC), f"{key} ".encode()

    def read(self) -> tuple[int, int]:
        """(processes killed at the memory limit, processes refused at their limit) so far."""
        return self._count("memory"), self._count("pids")

    def _count(self, controller: str) -> int:
        if controller not in self._open:
            return 0
        fd, key = self._open[controller]
        try:
            lines = os.pread(fd, 4096, 0).split(b"\n")
        except OSError:
            return 0
        return next((int(line[len(key) :]) for line in lines if line.startswith(key)), 0)

    def close(self) -> None:
        for fd, _ in self._open.values():
            os.close(fd)
        self._open = {}


def events(paths: tuple[str, ...]) -> tuple[int, int]:
    """As `Counters.read`, once."""
    counters = Counters(paths)
    try:
        return counters.read()
    finally:
        counters.close()


def remove(paths: tuple[str, ...]) -> None:
    """Remove the groups of a box that has ended, and those whose last process was still being torn down before.

    A process that is left in one (there is none where a box has a pid namespace) is killed: version 2 can do that at once
    for all of them, however they fork (`cgroup.kill`, Linux 5.14).
    """
    for path in (*_unremoved, *paths):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            _unremoved.discard(path)
        except OSError:
            _unremoved.add(path)
            with contextlib.suppress(OSError):
                _write(f"{path}/cgroup.kill", 1)
        else:
            _unremoved.discard(path)


def settle(patience: float = 1.0) -> None:
    """Remove the groups of boxes that were let go just now; for who makes no more. Blocking: until the kernel has torn them
    down, at most `patience` seconds."""
    end = time.monotonic() + patience
    remove(())
    while _unremoved and time.monotonic() < end:
        time.sleep(0.005)
        remove(())


def sweep() -> int:
    """Remove what daemons that were killed left behind; how many. Groups in use stay, and so do fresh ones."""
    removed = 0
    for parent in set(available().values()):
        for entry in os.scandir(parent):
            if not entry.name.startswith(PREFIX):
                continue
            try:
                if time.time() - entry.stat().st_ctime > FRESH:
                    os.rmdir(entry.path)
                    removed += 1
            except OSError:
                pass  # another daemon's, in use or just gone
    return removed


def _write(path: str, value: int | str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _own() -> list[tuple[str, str]]:
    """(controllers, path) of this process's groups, as /proc tells; "" as controllers is version 2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            fields = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return []
    return [(each[1], each[2]) for each in fields if len(each) == 3]


def _own_v1() -> dict[str, str]:
    """Controller -> this process's group in the version 1 hierarchies, as a path."""
    out = {}
    for names, path in _own():
        for name in names.split(","):
            if name and "=" not in name:
                out[name] = f"{ROOT}/{name}{path}".rstrip("/")
    return out


def _own_v2() -> str:
    """This process's group of version 2 when it can make groups with both controllers in it, else ""."""
    path = next((f"{ROOT}{path}".rstrip("/") for names, path in _own() if not names), "")
    try:
        with open(f"{path}/cgroup.controllers", encoding="ascii") as file:
            if not set(CONTROLLERS) <= set(file.read().split()):
                return ""
        os.makedirs(f"{path}/{PREFIX}daemon", exist_ok=True)
        _write(f"{path}/{PREFIX}daemon/cgroup.procs", "0")
        _write(f"{path}/cgroup.subtree_control", " ".join(f"+{name}" for name in CONTROLLERS))
    except OSError:
        return ""
    return path


def _can_make(path: str) -> bool:
    probe = f"{path}/{PREFIX}probe-{os.getpid()}"
    try:
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError:
        return False
    return True
