# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount points, checked right before a start: none is made or followed through a symlink that a command can plant.

bwrap 0.8 follows symlinks when it makes a mount point, also out of the box (`evil -> /oldroot/etc` made it create files
on the host). So every target that lies in a writable tree must be reached through real directories only, and the
directories that a session's /tmp needs as mount points are made here.
"""

from __future__ import annotations

import os
import stat

from sandboxd.errors import IsolationError
from sandboxd.model import LaunchPlan, Mount, MountKind
from sandboxd.paths import is_within

_BINDS = (MountKind.READ_ONLY, MountKind.WRITABLE)
_TREE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(plan: LaunchPlan) -> None:
    """Check every mount target of a plan; make the missing mount points in a session's /tmp.

    Raises IsolationError for a protected path (or any mount target) reached through a symlink.
    """
    done: list[Mount] = []
    for mount in plan.mounts:
        if mount.kind is MountKind.SEAL or mount.target == "/":
            done.append(mount)
            continue
        below = next(each for each in reversed(done) if is_within(mount.target, each.target) and each.kind is not MountKind.SEAL)
        if below.kind in _BINDS and (below.kind is MountKind.WRITABLE or below.source != below.target):
            foreign = below.source != below.target
            _walk(below.source, mount.target[len(below.target) :].strip("/"), mount, make=foreign, plan=plan)
        done.append(mount)


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
