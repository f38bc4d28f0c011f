# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan's mounts as steps for the zygote's children: what boxes can share, and what each has for itself. Pure.

Shared, in the template: every bind, every cover, and each tmpfs that ends up read-only. For each box alone: /proc (its own
processes), the pseudo terminals, and each tmpfs that a command can write. A plan that mounts something below such a tmpfs
cannot be shared: there the tmpfs is the template's, and the template has one box.

A guard of an absent path stands on a mount point that exists only while a command runs, so it is part of no template: the
box sets it up when its command comes, before it gives up the right to mount. Every start makes and looks at those mount
points anew (`protect.prepare`), so a box never runs with those of an earlier command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.model import LaunchPlan, Mount, MountKind
from sandboxd.paths import is_within

Step = tuple[object, ...]
_MADE = (MountKind.TMPFS, MountKind.DEV, MountKind.HIDE_DIR)  # in these mount points can be made


@dataclass(frozen=True, slots=True)
class Steps:
    """`template` and `fresh` are methods of `zygote_mounts` with their arguments, `watched` the host's paths they rely on."""

    template: tuple[Step, ...]
    fresh: tuple[Step, ...]
    late: bool  # whether boxes may have to mount guards when their command comes
    shared: bool  # whether a template may have more than one box
    watched: tuple[str, ...]


def guards(plan: LaunchPlan) -> tuple[str, ...]:
    """The absent paths that a box makes read-only when its command comes."""
    absent = frozenset(path for path, _ in plan.absent)
    return tuple(mount.target for mount in plan.mounts if _guards(mount, absent)) if absent else ()


def shared_mounts(plan: LaunchPlan) -> tuple[Mount, ...]:
    """All mounts but those of `guards`."""
    absent = frozenset(path for path, _ in plan.absent)
    return tuple(mount for mount in plan.mounts if not _guards(mount, absent)) if absent else plan.mounts


def _guards(mount: Mount, absent: frozenset[str]) -> bool:
    return mount.target in absent and mount.kind is MountKind.READ_ONLY and mount.source == mount.target


def steps(plan: LaunchPlan) -> Steps:
    """What to mount for a plan that `protect.prepare` has looked at."""
    mounts = shared_mounts(plan)
    sealed = frozenset(mount.target for mount in mounts if mount.kind is MountKind.SEAL)
    private = [mount.target for mount in mounts if mount.kind is MountKind.TMPFS and mount.target not in sealed]
    shared = not any(
        mount.target != target and is_within(mount.target, target)
        for target in private
        for mount in mounts
        if mount.kind is not MountKind.SEAL
    )
    template: list[Step] = []
    fresh: list[Step] = []
    watched: list[str] = []
    done: list[Mount] = []
    files = list(plan.files)
    for number, mount in enumerate(mounts):
        makes = _below(mount, done)
        match mount.kind:
            case MountKind.READ_ONLY | MountKind.WRITABLE if mount.target == "/":
                assert mount.source == "/", "the root of a box is the host's, read-only"
                assert mount.kind is MountKind.READ_ONLY, "the root of a box is the host's, read-only"
            case MountKind.READ_ONLY | MountKind.WRITABLE:
                writable = mount.kind is MountKind.WRITABLE
                template.append(("bind", mount.source, mount.target, writable, mount.optional, makes))
                watched.append(mount.source)
            case MountKind.PROC:
                fresh.append(("proc", mount.target))
            case MountKind.DEV:
                template.append(("dev", mount.target))
                fresh.append(("pts", f"{mount.target}/pts"))
            case MountKind.TMPFS if mount.target in sealed or not shared:
                template.append(("tmpfs", mount.target, mount.size, _mode(mount), makes))
            case MountKind.TMPFS:
                if makes:
                    template.append(("mkdir", mount.target))
                fresh.append(("tmpfs", mount.target, mount.size, _mode(mount)))
            case MountKind.HIDE_DIR if _passes(mount, mounts[number + 1 :]):
                template.append(("hide_around", mount.target))
                watched.append(mount.target)
            case MountKind.HIDE_DIR | MountKind.HIDE_FILE:
                template.append(("hide", mount.target, mount.kind is MountKind.HIDE_DIR))
                watched.append(mount.target)
            case MountKind.SEAL:
                for path, content in [each for each in files if is_within(each[0], mount.target)]:
                    template.append(("file", path, content))
                    files.remove((path, content))
                if any(each.target == mount.target and each.kind in (MountKind.TMPFS, MountKind.DEV) for each in done) or (
                    ("hide_around", mount.target) in template
                ):
                    template.append(("seal", mount.target))
        done.append(mount)
    assert not files, "a plan's files lie below something that is sealed"
    return Steps(tuple(template), tuple(fresh), bool(plan.absent), shared, tuple(watched))


def _mode(mount: Mount) -> int:
    return 0o1777 if mount.target in ("/tmp", "/dev/shm") else 0o755  # noqa: S108  inside the box


def _below(mount: Mount, done: Sequence[Mount]) -> bool:
    """Whether what a mount lies in was made for the box, so that its mount point can be made too."""
    above = (each for each in reversed(done) if each.kind is not MountKind.SEAL and is_within(mount.target, each.target))
    nearest = next(above, None)
    return nearest is not None and nearest.kind in _MADE


def _passes(mount: Mount, later: Sequence[Mount]) -> bool:
    return any(each.kind is not MountKind.SEAL and is_within(each.target, mount.target) for each in later)
