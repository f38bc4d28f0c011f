# SPDX-License-Identifier: GPL-3.0-or-later
"""The values a plan is made from: what was seen of the host, and one line of the tree of what holds where. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from sandboxd.model import Grant, GrantKind, PlanRequest
from sandboxd.paths import expand_home, is_within, join, normalize, parents

PROFILE = "profile"
SECRET = "secret"  # noqa: S105  a word for messages
OWN = "sandboxd's own"
PROTECTED = "protected by the killswitch"
NO_GRANT = "nothing in the decision allows it to be written"
PROMISE = "the command was judged read-only"
PINNED = "pinned: something below is protected"
ABSENT = "protected by the killswitch though it does not exist"


@dataclass(frozen=True, slots=True)
class HostPath:
    """An existing path as asked for, its real path (no symlinks), and whether that is a directory."""

    path: str
    real: str
    is_dir: bool


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a plan may assume of this host, seen at one time by `backends.host_facts`.

    `looked` are the names of `wanted(request)` that were looked at, `paths` those of them that exist; `secrets` are the
    secret paths that exist, `sockets` the pathname sockets somebody has bound, `git` what exists of the guarded names
    inside the repositories, `work_trees` the `.git` files of linked work trees that name their repository, `absent` the
    protected names to guard though nothing stands there, `twins` other names of protected files, `env` the values of the
    profile's `pass` names.
    """

    looked: frozenset[str] = frozenset()
    paths: Mapping[str, HostPath] = field(default_factory=dict)
    secrets: tuple[HostPath, ...] = ()
    sockets: tuple[str, ...] = ()
    git: tuple[str, ...] = ()
    work_trees: tuple[str, ...] = ()
    absent: tuple[HostPath, ...] = ()
    twins: tuple[str, ...] = ()
    resolver: tuple[str, ...] = ()  # files below /run that name resolution reads
    env: tuple[tuple[str, str], ...] = ()
    user: str = "user"


class Access(IntEnum):
    """What an entry gives, in the order in which a tie is settled: the later one wins."""

    READ = 0  # opens what a shorter path hides; takes nothing from what a shorter path lets be written
    NO_WRITE = 1
    WRITE = 2
    DENY_WRITE = 3
    HIDE = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the tree: what holds at `path` and below, until a longer path says otherwise."""

    path: str
    access: Access
    why: str
    is_dir: bool = True
    pin: bool = False  # a mount of its own even where it changes nothing, so that it cannot be renamed away


PATH_GRANTS = frozenset((GrantKind.READ, GrantKind.WRITE, GrantKind.PROTECTED))


def target_of(grant: Grant, request: PlanRequest) -> str:
    return join(request.cwd, expand_home(grant.target, request.session.home))


def strictest(entries: list[Entry]) -> list[Entry]:
    """One entry a path. A grant's opening outlives a workspace that is read-only; what denies outlives everything."""
    best: dict[str, Entry] = {}
    for entry in entries:
        path = normalize(entry.path)
        known = best.get(path)
        if known is None or entry.access > known.access or (entry.access is known.access and entry.pin):
            best[path] = entry
    return list(best.values())


def inside(path: str, roots: Iterable[str]) -> bool:
    return any(is_within(path, root) for root in roots)


def writable_at(path: str, by_path: Mapping[str, Entry]) -> bool:
    """Whether the nearest entry above `path` opens it for writing."""
    found = next((by_path[above] for above in parents(path) if above in by_path), None)
    return found is not None and found.access is Access.WRITE
