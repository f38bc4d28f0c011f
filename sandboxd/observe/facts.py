# SPDX-License-Identifier: GPL-3.0-or-later
"""All the facts of one moment as one value."""

from __future__ import annotations

import hashlib
import os
import stat

from sandboxd.model import Analysis, Facts, PathFact
from sandboxd.observe.gitindex import tracked_env_files
from sandboxd.observe.paths import Resolver
from sandboxd.observe.repositories import MAX_LINK, Findings, Repositories, below, read_text
from sandboxd.observe.tree import Forest
from sandboxd.paths import expand_home, is_within, parents

MAX_WANTED = 512  # paths; what is asked beyond stays unresolved
MAX_PROGRAMS = 128
MAX_REPOSITORIES = 64
PARTIAL = "scan_partial"  # note: there may be more protected paths than were found
# Writable by every user of the machine: a program there is nobody's.
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  compared with, not written to

forest = Forest()
_repositories = Repositories()


def observe(analysis: Analysis, *, workspace: str, home: str, additional: tuple[str, ...] = (), path_env: str) -> Facts:
    """Look once and answer. `path_env` is the PATH inside the box. Blocking; may be called from any thread.

    Well under a millisecond for a small workspace that was looked at before, one lstat for each directory else.
    """
    resolver = Resolver()
    roots = tuple(dict.fromkeys((workspace, *additional)))
    found = Findings()
    gits: list[str] = []
    env_files: list[str] = []
    for root in roots:
        seen = forest.look(root)
        found.protected.update(dict.fromkeys(seen.protected))
        gits += seen.gits
        env_files += seen.env_files
        if seen.partial:
            found.notes[f"{PARTIAL}:{root}"] = None
    if not any(is_within(home, root) for root in roots):
        found.protected.update(dict.fromkeys(_in_home(home)))
    above = _above(workspace)
    for dot_git in (*above, *gits[:MAX_REPOSITORIES]):
        _repositories.examine(dot_git, _owner(workspace), home, resolver, found)
    for dot_git in gits[MAX_REPOSITORIES:]:
        found.notes[f"{PARTIAL}:{dot_git}"] = None
    paths = [resolver.fact(path) for path in analysis.wanted[:MAX_WANTED]]
    paths += [PathFact(path, None) for path in analysis.wanted[MAX_WANTED:]]
    paths += _linked(found, resolver)
    untrusted = _untrusted(analysis, home, (*roots, *SHARED), path_env, resolver)
    untracked = tuple(path for path in env_files if not _tracked(path, (*gits, *above)))
    values = (
        tuple(paths),
        tuple(found.repositories),
        tuple(found.protected),
        tuple(found.hooks_paths),
        untrusted,
        tuple(found.armed_git),
        tuple(found.notes),
        untracked,
    )
    fingerprint = hashlib.blake2b(repr(values).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return Facts(True, *values[:6], fingerprint=fingerprint, notes=values[6], env_files=untracked)


def _in_home(home: str) -> tuple[str, ...]:
    """The protected paths right in a home directory and in its .config."""
    seen = forest.look(home, 0).protected
    return (*seen, *forest.look(f"{home}/.config", 0).protected)


def _above(workspace: str) -> tuple[str, ...]:
    """The repository that a workspace lies in, when it is not the root of one."""
    if os.path.lexists(f"{workspace}/.git"):
        return ()
    for directory in parents(workspace):
        dot_git = f"{directory.rstrip('/')}/.git"
        if os.path.lexists(dot_git):
            return (dot_git,)
    return ()


def _tracked(path: str, gits: tuple[str, ...]) -> bool:
    """Whether git tracks a file of the workspace, as the index of the nearest repository around it says."""
    for directory in parents(path):
        dot_git = f"{directory.rstrip('/')}/.git"
        if dot_git in gits:
            text = "" if os.path.isdir(dot_git) else read_text(dot_git, MAX_LINK) or ""
            git_dir = below(directory, text[8:].strip()) if text.startswith("gitdir: ") else dot_git
            return os.path.relpath(path, directory) in tracked_env_files(git_dir)
    return False


def _owner(workspace: str) -> int:
    """The uid that the workspace belongs to; -1 when that cannot be seen, which no git directory belongs to."""
    try:
        return os.stat(workspace).st_uid
    except OSError:
        return -1


def _linked(found: Findings, resolver: Resolver) -> list[PathFact]:
    """Protected paths that are symlinks, with where they lead."""
    out = []
    for path in found.protected:
        try:
            linked = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            continue
        if linked:
            out.append(resolver.fact(path))
    return out


def _untrusted(analysis: Analysis, home: str, writable: tuple[str, ...], path_env: str, resolver: Resolver) -> tuple[str, ...]:
    """The command names that lead into a writable tree, or to where cannot be told. A name that is nowhere is neither."""
    out = []
    for name in analysis.programs[:MAX_PROGRAMS]:
        real: str | None = ""
        if "/" in name:
            real = resolver.real(below(analysis.cwd, expand_home(name, home)))
        else:
            for directory in path_env.split(":"):
                candidate = f"{below(analysis.cwd, directory)}/{name}"
                if _is_program(candidate):
                    real = resolver.real(candidate)
                    break
        if real is None or any(is_within(real, root) for root in writable):
            out.append(name)
    return (*out, *analysis.programs[MAX_PROGRAMS:])


def _is_program(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)
