# SPDX-License-Identifier: GPL-3.0-or-later
"""Before a start: no mount point is made or followed through a symlink that a command can plant. After the end: `settle`.

bwrap 0.8 follows symlinks when it makes a mount point, also out of the box (`evil -> /oldroot/etc` made it create files
on the host). So every target that lies in a writable tree must be reached through real directories only, and the
directories that a session's /tmp needs as mount points are made here.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat

from sandboxd.errors import IsolationError
from sandboxd.model import LaunchPlan, Mount, MountKind
from sandboxd.paths import is_within

_HIDES = (MountKind.HIDE_DIR, MountKind.HIDE_FILE)
_BINDS = (MountKind.READ_ONLY, MountKind.WRITABLE)
_TREE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(plan: LaunchPlan) -> LaunchPlan:
    """Check every mount target of a plan and make the missing mount points in a session's /tmp.

    What was to be hidden and has gone since is left out: a mount point for it would be made on the host.
    Raises IsolationError for a protected path (or any mount target) reached through a symlink.
    """
    done: list[Mount] = []
    gone: set[str] = set()
    for mount in plan.mounts:
        if mount.kind in _HIDES and not os.path.lexists(mount.target):
            gone.add(mount.target)
            continue
        if mount.kind is MountKind.SEAL and mount.target in gone:
            continue
        if mount.kind is not MountKind.SEAL and mount.target != "/":
            below = next(
                each for each in reversed(done) if each.kind is not MountKind.SEAL and is_within(mount.target, each.target)
            )
            if below.kind in _BINDS and (below.kind is MountKind.WRITABLE or below.source != below.target):
                foreign = below.source != below.target
                _walk(below.source, mount.target[len(below.target) :].strip("/"), mount, make=foreign, plan=plan)
        done.append(mount)
    return dataclasses.replace(plan, mounts=tuple(done)) if gone else plan


def settle(plan: LaunchPlan) -> tuple[str, ...]:
    """Remove what a command planted where no mount could guard; the paths. Blocking; call it when the box has ended.

    A `commondir` or a hook in a git directory would lead the next git command outside the box to foreign code. Git
    porcelain, for which that directory was writable, makes none of them by itself; what it starts might.
    """
    planted = tuple(path for path in plan.must_stay_absent if os.path.lexists(path))
    for path in planted:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    return planted


def _walk(base: str, rest: str, mount: Mount, *, make: bool, plan: LaunchPlan) -> None:
    """Follow `rest` below `base` without following links."""
    if not rest:
        return
    at = os.open(base, _TREE | os.O_DIRECTORY)
    try:
        for name in rest.split("/"):
            try:
                down = os.open(name, _TREE, dir_fd=at)
            except FileNotFoundError:
                if not make:
                    if mount.optional:
                        return
                    raise IsolationError(
                        f"`{mount.target}` vanished before the sandbox was built", fix="run the command again"
                    ) from None
                os.mkdir(name, 0o755, dir_fd=at)
                if plan.uid != os.geteuid():
                    os.chown(name, plan.uid, plan.gid, dir_fd=at, follow_symlinks=False)
                down = os.open(name, _TREE, dir_fd=at)
            os.close(at)
            at = down
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise IsolationError(
                    f"`{mount.target}` ({mount.why}) is reached through a symbolic link, which a command could swap",
                    fix="replace the link by what it points to",
                )
    finally:
        os.close(at)
