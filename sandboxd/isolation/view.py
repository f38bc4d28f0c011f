# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch plan lets a command do at a path, and which line says so. Pure; for messages, profile tests, explain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from sandboxd.model import LaunchPlan, Mount, MountKind
from sandboxd.paths import is_within


@unique
class Reach(Enum):
    WRITE = "write"
    READ = "read"
    PRIVATE = "private"  # writable, gone afterwards
    NONE = "none"


@dataclass(frozen=True, slots=True)
class View:
    """What a path is inside, and why."""

    reach: Reach
    why: str
    mount: Mount


_REACH = {
    MountKind.READ_ONLY: Reach.READ,
    MountKind.WRITABLE: Reach.WRITE,
    MountKind.TMPFS: Reach.PRIVATE,
    MountKind.PROC: Reach.READ,
    MountKind.DEV: Reach.READ,
    MountKind.HIDE_DIR: Reach.NONE,
    MountKind.HIDE_FILE: Reach.NONE,
}


def at(plan: LaunchPlan, path: str) -> View:
    """What the plan says of an absolute, normalized path: the last mount that contains it decides."""
    mount = next(each for each in reversed(plan.mounts) if each.kind is not MountKind.SEAL and is_within(path, each.target))
    sealed = any(each.kind is MountKind.SEAL and each.target == mount.target for each in plan.mounts)
    if mount.kind is MountKind.TMPFS and sealed:
        return View(Reach.NONE, mount.why, mount)
    return View(_REACH[mount.kind], mount.why, mount)
