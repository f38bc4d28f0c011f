# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a repository's git directory is writable for one command, and what in it never is. Pure.

A line made only of known git porcelain that may write gets the git directory writable with its core read-only: hooks,
configuration, and the files that lead git elsewhere (`commondir`, `alternates`). Everything else gets it read-only.
git replaces `config` by a rename, which fails on a mount (often with exit 0). For porcelain it therefore stays writable, and
what was changed there is put right afterwards but for the record of which branch follows which.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.killswitch import GIT_CORE
from sandboxd.model import PlanRequest
from sandboxd.paths import is_within

# State of an operation under way holds commands (`exec` lines) that the next step runs: only its own commands write it.
STEPS: dict[str, frozenset[str]] = {
    "rebase-merge": frozenset(("rebase", "pull", "commit", "am")),
    "rebase-apply": frozenset(("rebase", "pull", "am", "commit")),
    "sequencer": frozenset(("cherry-pick", "revert", "commit", "rebase", "reset", "merge", "checkout", "switch", "pull")),
}
GUARDED_NAMES: tuple[str, ...] = (*GIT_CORE, *STEPS)
WORK_TREES = "worktree"  # the git command that moves and removes linked work trees, which no mount in them would let it do


def moves_work_trees(request: PlanRequest) -> bool:
    """Whether linked work trees are left without mounts, and put right afterwards: git itself may take them away."""
    return not request.promise and request.git_porcelain and request.profile.git_commit and WORK_TREES in request.git_names


def in_work_trees(path: str, repositories: Sequence[str]) -> bool:
    """Whether a path is, or lies in, the git directory of a linked work tree."""
    return any(is_within(path, f"{repository}/worktrees") for repository in repositories)


def git_links(request: PlanRequest, existing: Sequence[str], dot_gits: Sequence[str]) -> tuple[str, ...]:
    """The files by which linked work trees lead to their repository, where `moves_work_trees` leaves them writable."""
    if not moves_work_trees(request):
        return ()
    inside = (path for path in existing if in_work_trees(path, request.facts.repositories))
    return tuple(dict.fromkeys((*(path for path in inside if path.endswith(("/commondir", "/config.worktree"))), *dot_gits)))


def unmounted(request: PlanRequest, existing: Sequence[str]) -> tuple[str, ...]:
    """The git directories of linked work trees that have no mounts of their own."""
    return tuple(path.rpartition("/")[0] for path in git_links(request, existing, ()) if path.endswith("/commondir"))


def must_stay_absent(opened: Sequence[str], existing: Sequence[str], granted: Sequence[str]) -> tuple[str, ...]:
    """The guarded names that do not exist in the opened git directories: no mount can stand over them."""
    names = (f"{repository}/{name}" for repository in opened for name in GIT_CORE)
    return tuple(path for path in names if path not in existing and not any(is_within(path, target) for target in granted))


def git_entries(request: PlanRequest, existing: Sequence[str], granted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The git directories to open, and the paths in them (out of `existing`) to keep read-only.

    A git directory is opened for porcelain, and for a grant that names something in it (tools write a lock file beside
    and rename).
    """
    porcelain = request.git_porcelain and request.profile.git_commit
    repositories = request.facts.repositories
    free = moves_work_trees(request)
    if free:
        repositories = tuple(each for each in repositories if not in_work_trees(each, request.facts.repositories))
    opened = [repository for repository in repositories if porcelain or any(is_within(target, repository) for target in granted)]
    names = frozenset(request.git_names)
    guarded = [repository for repository in repositories if repository not in opened]
    for path in existing:
        owner = path.rpartition("/")[2]
        if free and in_work_trees(path, repositories):
            continue
        if not any(is_within(path, repository) for repository in opened):
            continue
        if any(is_within(path, target) or path == target for target in granted):
            continue
        if porcelain and owner in STEPS and names & STEPS[owner]:
            continue
        if porcelain and owner == "config" and path.rpartition("/")[0] in opened:
            continue
        guarded.append(path)
    return opened, guarded


def git_configs(request: PlanRequest, existing: Sequence[str], granted: Sequence[str]) -> tuple[str, ...]:
    """The configurations that `git_entries` leaves writable for porcelain though nobody granted them."""
    if request.promise or not request.git_porcelain or not request.profile.git_commit:
        return ()
    names = (f"{repository}/config" for repository in request.facts.repositories)
    return tuple(path for path in names if path in existing and not any(is_within(path, target) for target in granted))
