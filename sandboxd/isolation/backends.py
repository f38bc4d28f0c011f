# SPDX-License-Identifier: GPL-3.0-or-later
"""The backends in order of strength, probing them, choosing one, and seeing the host for the plan.

To add a backend: a class with the methods of `model.Backend`, its name here, the contract suite in
tests/isolation/test_isolation_contract.py for it. `probe` must run a real trial; `start` must never run anything bare.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache

from sandboxd.errors import IsolationError
from sandboxd.isolation.bwrap import FIX_INSTALL, Bwrap
from sandboxd.isolation.gitmounts import GUARDED_NAMES
from sandboxd.isolation.plan import HostFacts, HostPath, wanted
from sandboxd.model import Backend, Enforcement, Layer, NetworkMode, PlanRequest, Probe, Profile, Require, Session, Strength
from sandboxd.paths import is_within, parents
from sandboxd.sensitive import secret_masks

BACKENDS: tuple[Backend, ...] = (Bwrap(),)
RESOLVER = "/etc/resolv.conf"
MAX_GIT_DIRS = 2000  # directories looked at below one git directory for submodules and worktrees


def probe_all() -> tuple[Probe, ...]:
    """Run the trial of every backend. Blocking: tens of milliseconds each."""
    return tuple(backend.probe() for backend in BACKENDS)


def choose(profile: Profile, probes: tuple[Probe, ...]) -> Backend:
    """The first backend that works and is as strong as the profile requires.

    Raises IsolationError with the fix when there is none; nothing then runs.
    """
    by_name = {probe.backend: probe for probe in probes}
    reasons, fix = [], FIX_INSTALL
    for backend in BACKENDS:
        probe = by_name.get(backend.name)
        if probe is None:
            continue
        if not probe.works or probe.enforcement is None:
            reasons.append(f"{backend.name}: {probe.error}")
            fix = probe.fix or fix
            continue
        lacking = shortfall(profile, probe.enforcement)
        if not lacking:
            return backend
        reasons.append(f"{backend.name}: {lacking}")
        fix = 'repair that, or let the profile say `[isolation] require = "fs"`'
    said = "; ".join(reasons) or "no backend was tried"
    raise IsolationError(f"no sandbox for profile `{profile.name}` ({said})", fix=fix)


def shortfall(profile: Profile, enforcement: Enforcement) -> str:
    """What an enforcement lacks for a profile's `require`, "" when nothing.

    A layer that the profile itself opens (the host's network) is no shortfall.
    """
    if profile.require is Require.NONE:
        return ""
    needed = set(Layer) if profile.require is Require.FULL else {Layer.FILESYSTEM, Layer.PRIVILEGES}
    if profile.network is NetworkMode.HOST:
        needed.discard(Layer.NETWORK)
    least = {Strength.FULL} if profile.require is Require.FULL else {Strength.FULL, Strength.PARTIAL}
    for state in enforcement.layers:
        if state.layer in needed and state.strength not in least:
            return f"{state.layer.value} is {state.strength.value} ({', '.join(state.missing)})"
    return ""


def host_facts(session: Session, request: PlanRequest | None = None) -> HostFacts:
    """Look at the host for one plan: what exists, where it really is. Blocking, some 200 microseconds.

    Without a request only the session's own paths and the secrets are known, which is enough for a plan whose profile and
    grants name no paths and whose facts hold no repository; `plan` refuses others.
    """
    names = wanted(request) if request is not None else (session.workspace, *session.additional, *session.own, session.spill)
    paths = {name: found for name in names if name and (found := _look(name)) is not None}
    secrets = [found for name in _existing_secrets(session.home) if (found := _look(name)) and _at_stake(found.real, session)]
    profile = request.profile if request is not None else None
    repositories = request.facts.repositories if request is not None else ()
    return HostFacts(
        looked=frozenset(names),
        paths=paths,
        secrets=tuple(secrets),
        sockets=tuple(path for path in _sockets() if _reachable(path, session))
        if profile is not None and profile.unix_allow
        else (),
        git=tuple(path for repository in repositories for path in _git_guards(repository)),
        resolver=_resolver(),
        env=tuple((name, os.environ[name]) for name in (profile.env_pass if profile else ()) if name in os.environ),
        user=_user(session.uid),
    )


@lru_cache(maxsize=16)
def _secret_names(home: str) -> tuple[tuple[str, frozenset[str], tuple[str, ...]], ...]:
    """The secret paths by directory: plain names, and globs; a home may hold characters that look like one."""
    names: dict[str, list[str]] = {}
    for pattern in secret_masks(home):
        directory, _, name = pattern.rpartition("/")
        names.setdefault(directory, []).append(name)
    return tuple(
        (directory, frozenset(name for name in found if "*" not in name), tuple(name for name in found if "*" in name))
        for directory, found in names.items()
    )


def _existing_secrets(home: str) -> Iterator[str]:
    """One listing a directory instead of a look at each path: most of the hundred do not exist."""
    for directory, plain, globs in _secret_names(home):
        try:
            present = os.listdir(directory)
        except PermissionError:
            yield from (f"{directory}/{name}" for name in plain)  # not listed, but perhaps reachable by name
            continue
        except OSError:
            continue
        yield from (f"{directory}/{name}" for name in plain.intersection(present))
        for glob in globs:
            yield from (f"{directory}/{name}" for name in present if fnmatchcase(name, glob))


def _look(path: str) -> HostPath | None:
    try:
        mode = os.lstat(path).st_mode
        if mode & 0o170000 == 0o040000:
            return HostPath(path, os.path.realpath(path), is_dir=True)
        real = os.path.realpath(path, strict=True)
        return HostPath(path, real, is_dir=os.path.isdir(real))
    except OSError:
        return None


def _reachable(path: str, session: Session) -> bool:
    """Whether the box's user can get at `path` at all: what lies behind a closed directory needs no cover, nor can have one.

    Root in a box has no capabilities, so the directories of others are closed to it too. One with an access list counts
    as open.
    """
    if session.uid == os.geteuid() != 0:
        return True  # this process could see it, and so can the box
    try:
        return all(_searchable(directory, session) for directory in parents(path))
    except OSError:
        return False


def _at_stake(path: str, session: Session) -> bool:
    """Whether the box's user could read `path`, or make it readable: what its permissions keep closed needs no cover."""
    if not _reachable(path, session):
        return False
    try:
        info = os.stat(path)
        if info.st_uid == session.uid or "system.posix_acl_access" in os.listxattr(path):
            return True
        if session.uid == os.geteuid() != 0:
            return os.access(path, os.R_OK) or os.access(path, os.X_OK)
        mine = info.st_mode >> 3 if info.st_gid == session.gid else info.st_mode
        return bool(mine & 0o5)
    except OSError:
        return True


def _searchable(directory: str, session: Session) -> bool:
    info = os.stat(directory)
    if info.st_uid == session.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == session.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH) or "system.posix_acl_access" in os.listxattr(directory)


def _resolver() -> tuple[str, ...]:
    """The file behind /etc/resolv.conf when it lies in /run, which every box covers."""
    real = os.path.realpath(RESOLVER)
    return (real,) if is_within(real, "/run") and os.path.isfile(real) else ()


def _git_guards(repository: str) -> list[str]:
    """The guarded names that exist in a git directory and in the git directories of its submodules and worktrees."""
    out: list[str] = []
    pending = [repository]
    looked = 0
    while pending and looked < MAX_GIT_DIRS:
        directory = pending.pop()
        looked += 1
        out += [path for name in GUARDED_NAMES if os.path.lexists(path := f"{directory}/{name}")]
        for below in ("worktrees", "modules"):
            pending += _directories(f"{directory}/{below}")
        if not os.path.lexists(f"{directory}/HEAD") and directory != repository:
            pending += _directories(directory)  # a submodule's name may hold slashes
    return out


def _directories(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _sockets() -> tuple[str, ...]:
    """Pathname sockets that are bound on this machine, as far as its /proc tells."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
            names = [fields[7] for line in lines if len(fields := line.rstrip("\n").split(None, 7)) == 8]
    except OSError:
        return ()
    return tuple(dict.fromkeys(name for name in names if name.startswith("/") and os.path.exists(name)))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
