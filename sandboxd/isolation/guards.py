# SPDX-License-Identifier: GPL-3.0-or-later
"""The killswitch's second line in the tree of entries: what is protected is read-only, whatever the profile says. Pure."""

from __future__ import annotations

from sandboxd.isolation.entries import (
    ABSENT,
    PINNED,
    PROTECTED,
    Access,
    Entry,
    HostFacts,
    inside,
    strictest,
    target_of,
    writable_at,
)
from sandboxd.isolation.gitmounts import git_entries, moves_work_trees, must_stay_absent, unmounted
from sandboxd.model import GrantKind, PlanRequest
from sandboxd.paths import is_within, parents

Absent = tuple[tuple[str, bool], ...]


def guarded(entries: list[Entry], request: PlanRequest, host: HostFacts) -> tuple[list[Entry], Absent, tuple[str, ...]]:
    """The entries with those that guard; the mount points to make for them; the paths that must not come into being.

    A longer path does not open a guarded one again. The directories on the way to it are pinned: renaming one would put
    another tree in the protected one's place.
    """
    if request.promise:
        return entries, (), ()
    facts = request.facts
    granted = [target_of(grant, request) for grant in request.grants if grant.kind is GrantKind.PROTECTED]
    opened, guards = git_entries(request, host.git, granted)
    kept = {*facts.hooks_paths, *facts.repositories}
    hooks = [path for path in facts.hooks_paths if path in host.paths]
    left_free = host.work_trees if moves_work_trees(request) else ()
    for path in (*facts.protected, *hooks, *host.twins):
        if path in opened or any(is_within(path, target) or is_within(target, path) for target in granted):
            continue
        # A checkout against read-only files would leave a wrong tree and say nothing: porcelain may write what it tracks.
        if request.git_porcelain and path not in kept and not path.endswith("/.git") and not inside(path, opened):
            continue
        if path in left_free:
            continue
        guards.append(path)
    out = [entry for entry in entries if entry.access is not Access.WRITE or not inside(entry.path, guards)]
    out += [Entry(path, Access.WRITE, "git's own, for git alone", pin=True) for path in opened if not inside(path, guards)]
    out += [Entry(path, Access.DENY_WRITE, PROTECTED) for path in dict.fromkeys(guards)]
    by_path = {entry.path: entry for entry in strictest(out)}
    absent = []
    for found in host.absent:
        if found.path in by_path or not writable_at(found.path, by_path):
            continue
        if any(is_within(found.path, target) or is_within(target, found.path) for target in granted):
            continue
        absent.append((found.path, found.is_dir))
        by_path[found.path] = Entry(found.path, Access.DENY_WRITE, ABSENT, found.is_dir)
    for guard in (*dict.fromkeys(guards), *(path for path, _ in absent)):
        for above in parents(guard):
            if above not in by_path and writable_at(above, by_path):
                by_path[above] = Entry(above, Access.WRITE, PINNED, pin=True)
    return list(by_path.values()), tuple(absent), must_stay_absent((*opened, *unmounted(request, host.git)), host.git, granted)
