# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups for the limits that rlimits cannot keep: processes of root, memory of anyone.

Version 1 needs root and a mounted hierarchy per controller; the first process of a box joins by itself, by writing "0" to
a descriptor that the daemon opened (its own right to move it counts: cgroups(7)), so nothing of the box ever runs outside.
"""

from __future__ import annotations

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
_unremoved: set[str] = set()


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups made for one box: `fds` for its first process to join, `paths` to remove afterwards."""

    fds: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def available() -> dict[str, str]:
    """Controller -> the directory in which this process may make groups; tried by making one."""
    return {name: path for name, path in _own_v1().items() if name in ("pids", "memory") and _can_make(path)}


@lru_cache(maxsize=1)
def rlimit_counts_per_box() -> bool:
    """Whether RLIMIT_NPROC counts per user namespace, as it does since Linux 5.14."""
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor) if minor.isdigit() else 0) >= (5, 14)


def join(limits: Limits, take: Callable[[int], int]) -> Groups:
    """Make the groups that these limits need; `take` owns each descriptor opened."""
    wanted = {"pids": ("pids.max", limits.pids), "memory": ("memory.limit_in_bytes", limits.memory)}
    fds, paths = [], []
    for controller, (file, value) in wanted.items():
        parent = available().get(controller)
        if parent is None or value is None:
            continue
        path = f"{parent}/{PREFIX}{secrets.token_hex(6)}"
        os.mkdir(path, 0o755)
        paths.append(path)
        _write(f"{path}/{file}", value)
        fds.append(take(os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)))
    return Groups(tuple(fds), tuple(paths))


def remove(paths: tuple[str, ...]) -> None:
    """Remove the groups of a box that has ended, and those whose last process was still being torn down before."""
    for path in (*_unremoved, *paths):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            _unremoved.discard(path)
        except OSError:
            _unremoved.add(path)
        else:
            _unremoved.discard(path)


def sweep() -> int:
    """Remove what daemons that were killed left behind; how many. Groups in use stay, and so do fresh ones."""
    removed = 0
    for parent in available().values():
        for entry in os.scandir(parent):
            if entry.name.startswith(PREFIX) and time.time() - entry.stat().st_ctime > FRESH:
                try:
                    os.rmdir(entry.path)
                    removed += 1
                except OSError:
                    pass  # another daemon's, in use
    return removed


def _write(path: str, value: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _own_v1() -> dict[str, str]:
    """Controller -> this process's group in the version 1 hierarchies, as a path."""
    out = {}
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            for line in lines:
                _, names, path = line.rstrip("\n").split(":", 2)
                for name in names.split(","):
                    if name and "=" not in name:
                        out[name] = f"{ROOT}/{name}{path}".rstrip("/")
    except OSError:
        return {}
    return out


def _can_make(path: str) -> bool:
    probe = f"{path}/{PREFIX}probe-{os.getpid()}"
    try:
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError:
        return False
    return True
