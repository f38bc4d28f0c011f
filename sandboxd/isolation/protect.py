# SPDX-License-Identifier: GPL-3.0-or-later
"""Before a start: no mount point is made or followed through a symlink that a command can plant. After the end: `settle`.

bwrap 0.8 follows symlinks when it makes a mount point, also out of the box (`evil -> /oldroot/etc` made it create files
on the host). So every target that lies in a writable tree must be reached through real directories only, and the
directories that a session's /tmp needs as mount points are made here.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import stat
from functools import lru_cache

from sandboxd.errors import IsolationError
from sandboxd.isolation import mountpoints
from sandboxd.isolation.kernel import open_real
from sandboxd.isolation.look import NOTHING, Look
from sandboxd.isolation.mountpoints import Lease
from sandboxd.model import LaunchPlan, Mount, MountKind
from sandboxd.paths import is_within, is_within_any

_HIDES = (MountKind.HIDE_DIR, MountKind.HIDE_FILE)
_BINDS = (MountKind.READ_ONLY, MountKind.WRITABLE)
_TREE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(plan: LaunchPlan, look: Look) -> tuple[LaunchPlan, Lease | None]:
    """Make the mount points that a plan needs and check every target; the plan as it can be mounted, and who holds them.

    What was to be hidden and has gone since is left out: a mount point for it would be made on the host. So is the guard
    of an absent path where nothing can be made.
    Raises IsolationError for a protected path (or any mount target) reached through a symlink.
    """
    lease = mountpoints.acquire(plan.registry, plan.absent, plan.uid, plan.gid) if plan.registry else None
    try:
        return _checked(plan, frozenset(lease.paths if lease is not None else ()), look), lease
    except BaseException:
        if lease is not None:
            lease.release()
        raise


def _checked(plan: LaunchPlan, made: frozenset[str], look: Look) -> LaunchPlan:
    """`made` were just made, in directories that were reached without a link."""
    needed, reachable = _needs(plan.mounts, plan.absent)
    if not reachable and all(path in made or look.at(path) != NOTHING for path in needed):
        return plan
    done: list[Mount] = []
    gone: set[str] = set()
    absent = frozenset(path for path, _ in plan.absent)
    swappable: list[Mount] = []
    for mount in plan.mounts:
        if mount.target in made:
            done.append(mount)
            continue
        if (mount.kind in _HIDES or mount.target in absent) and look.at(mount.target) == NOTHING:
            gone.add(mount.target)
            continue
        if mount.kind is MountKind.SEAL and mount.target in gone:
            continue
        if mount.kind is not MountKind.SEAL:
            if any(is_within(mount.target, each.target) for each in swappable):
                _check(mount, next(each for each in reversed(done) if _holds(each, mount)), plan)
            if _swappable(mount):
                swappable.append(mount)
        done.append(mount)
    return dataclasses.replace(plan, mounts=tuple(done)) if gone else plan


@lru_cache(maxsize=64)
def _needs(mounts: tuple[Mount, ...], absent: tuple[tuple[str, bool], ...]) -> tuple[tuple[str, ...], bool]:
    """The targets that are left out where nothing is there, and whether a command could put a link in the way to any target."""
    guarded = frozenset(path for path, _ in absent)
    swappable: tuple[str, ...] = ()
    needed, reachable = [], False
    for mount in mounts:
        if mount.kind in _HIDES or mount.target in guarded:
            needed.append(mount.target)
        if mount.kind is not MountKind.SEAL:
            reachable = reachable or is_within_any(mount.target, swappable)
            if _swappable(mount):
                swappable = (*swappable, mount.target)
    return tuple(needed), reachable


def _swappable(mount: Mount) -> bool:
    """Whether a command can put a link in the place of a directory in what it shows."""
    return mount.kind in _BINDS and (mount.kind is MountKind.WRITABLE or mount.source != mount.target)


def _holds(outer: Mount, mount: Mount) -> bool:
    return outer.kind is not MountKind.SEAL and is_within(mount.target, outer.target)


def _check(mount: Mount, below: Mount, plan: LaunchPlan) -> None:
    """Check the way to a mount's target through `below`, the mount that it lies in."""
    if below.kind not in _BINDS:
        return
    rest = mount.target[len(below.target) :].strip("/")
    if below.source != below.target:
        _make_way(below.source, rest, mount, plan)
    elif rest and below.kind is MountKind.WRITABLE:
        _check_way(below.source, rest, mount)


def settle(plan: LaunchPlan) -> tuple[str, ...]:
    """Remove what a command planted where no mount could guard; the paths. Blocking; call it when the box has ended.

    A `commondir` or a hook in a git directory would lead the next git command outside the box to foreign code. Git
    porcelain, for which that directory was writable, makes none of them by itself; what it starts might.
    """
    planted = tuple(path for path in plan.must_stay_absent if os.path.lexists(path))
    for path in planted:
        remove(path)
    return planted


def remove(path: str) -> None:
    """Remove whatever stands at an absolute path, a directory with all it holds; nothing is followed through a link.

    Raises OSError.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _check_way(base: str, rest: str, mount: Mount) -> None:
    """Make sure that `rest` below `base` exists and that no part of it is a link."""
    at = os.open(base, _TREE | os.O_DIRECTORY)
    try:
        os.close(open_real(at, rest))
    except FileNotFoundError:
        if not mount.optional:
            raise IsolationError(f"`{mount.target}` vanished before the sandbox was built", fix="run the command again") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EXDEV):
            raise IsolationError(f"`{mount.target}` cannot be guarded: {error.strerror}") from error
        raise _linked(mount) from None
    finally:
        os.close(at)


def _make_way(base: str, rest: str, mount: Mount, plan: LaunchPlan) -> None:
    """Follow `rest` below a session's /tmp without following links, and make the directories that are missing."""
    if not rest:
        return
    at = os.open(base, _TREE | os.O_DIRECTORY)
    try:
        for name in rest.split("/"):
            try:
                down = os.open(name, _TREE, dir_fd=at)
            except FileNotFoundError:
                os.mkdir(name, 0o755, dir_fd=at)
                if plan.uid != os.geteuid():
                    os.chown(name, plan.uid, plan.gid, dir_fd=at, follow_symlinks=False)
                down = os.open(name, _TREE, dir_fd=at)
            os.close(at)
            at = down
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise _linked(mount)
    finally:
        os.close(at)


def _linked(mount: Mount) -> IsolationError:
    return IsolationError(
        f"`{mount.target}` ({mount.why}) is reached through a symbolic link, which a command could swap",
        fix="replace the link by what it points to",
    )
