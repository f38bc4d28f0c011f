# SPDX-License-Identifier: GPL-3.0-or-later
"""Seeing the host for a plan: what exists, where it really is, who could reach it, what must be guarded though it is absent."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from sandboxd.errors import tells_of_path
from sandboxd.isolation.gitmounts import GUARDED_NAMES
from sandboxd.isolation.listings import Listings
from sandboxd.isolation.plan import HostFacts, HostPath, wanted
from sandboxd.isolation.stubs import is_placeholder
from sandboxd.killswitch import ABSENT_DIRS, ABSENT_FILES
from sandboxd.model import PlanRequest, Session
from sandboxd.paths import is_within, parents
from sandboxd.sensitive import secret_masks

RESOLVER = "/etc/resolv.conf"
MAX_GIT_DIRS = 2000  # directories looked at below one git directory for submodules and worktrees
MAX_ABSENT_ROOTS = 4  # repository roots whose absent protected names are guarded; a mount each costs 0.3 ms
MAX_LINKED = 400  # protected files looked at for a second name
MAX_TWIN_DIRECTORIES = 20_000
_DELETED = " (deleted)"

listings = Listings()


def host_facts(session: Session, request: PlanRequest | None = None) -> HostFacts:
    """Look at the host for one plan: what exists, where it really is. Blocking, some 200 microseconds.

    Without a request only the session's own paths and the secrets are known, which is enough for a plan whose profile and
    grants name no paths and whose facts hold no repository; `plan` refuses others.
    """
    names = wanted(request) if request is not None else (session.workspace, *session.additional, *session.own, session.spill)
    paths = {name: found for name in names if name and (found := _look(name)) is not None}
    open_to: dict[str, bool] = {}
    secrets = [
        found for name in _existing_secrets(session.home) if (found := _look(name)) and _at_stake(found.real, session, open_to)
    ]
    profile = request.profile if request is not None else None
    repositories = request.facts.repositories if request is not None else ()
    return HostFacts(
        looked=frozenset(names),
        paths=paths,
        secrets=tuple(secrets),
        sockets=tuple(path for path in _sockets() if _reachable(path, session, open_to))
        if profile is not None and profile.unix_allow
        else (),
        git=tuple(path for repository in repositories for path in _git_guards(repository)),
        work_trees=_work_trees(repositories),
        resolver=_resolver(),
        absent=_absent(session, request),
        twins=_twins(request),
        env=tuple((name, os.environ[name]) for name in (profile.env_pass if profile else ()) if name in os.environ),
        user=_user(session.uid),
    )


class _Names(NamedTuple):
    """Names of secrets in a directory, plain ones and globs; `way`: its first name below `above`, another such directory."""

    directory: str
    above: str
    way: str
    plain: frozenset[str]
    globs: tuple[str, ...]


@lru_cache(maxsize=16)
def _secret_names(home: str) -> tuple[_Names, ...]:
    """The secret paths by directory, the highest first; a home may hold characters that look like a glob."""
    names: dict[str, list[str]] = {}
    for pattern in secret_masks(home):
        directory, _, name = pattern.rpartition("/")
        names.setdefault(directory, []).append(name)
    out = []
    for directory, found in sorted(names.items(), key=lambda each: each[0].count("/")):
        above = next((each for each in parents(directory) if each in names), "")
        way = directory[len(above) + 1 :].partition("/")[0] if above else ""
        plain = frozenset(name for name in found if "*" not in name)
        out.append(_Names(directory, above, way.casefold(), plain, tuple(name for name in found if "*" in name)))
    return tuple(out)


def _existing_secrets(home: str) -> Iterator[str]:
    """One look a directory instead of a look at each path, and none where the listing of one above shows that there is
    nothing: most of the hundred do not exist."""
    listed: dict[str, frozenset[str]] = {}
    for directory, above, way, plain, globs in _secret_names(home):
        if above in listed and way not in _folded(listed[above]):
            listed[directory] = frozenset()
            continue
        try:
            present = listed[directory] = listings.names(directory)
        except PermissionError:
            yield from (f"{directory}/{name}" for name in plain)  # not listed, but perhaps reachable by name
            continue
        except (FileNotFoundError, NotADirectoryError):
            listed[directory] = frozenset()
            continue
        except OSError as error:
            tells_of_path(error)
            continue
        yield from (f"{directory}/{name}" for name in plain & present)
        if globs:
            yield from (f"{directory}/{name}" for name in _matching(present, globs))


@lru_cache(maxsize=64)
def _folded(present: frozenset[str]) -> frozenset[str]:
    """For a directory whose file system takes upper for lower case."""
    return frozenset(name.casefold() for name in present)


@lru_cache(maxsize=64)
def _matching(present: frozenset[str], globs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for glob in globs for name in present if fnmatchcase(name, glob))


def _look(path: str) -> HostPath | None:
    """Where a path leads, as the kernel resolves it in one go (proc(5), /proc/PID/fd); None when that is nowhere."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        tells_of_path(error)
        return None
    try:
        is_dir = stat.S_ISDIR(os.fstat(fd).st_mode)
        real = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        real = ""
    finally:
        os.close(fd)
    if not real.startswith("/") or real.endswith(_DELETED):  # without /proc, outside our root, or gone meanwhile, if not so named
        try:
            real = os.path.realpath(path, strict=True)
            is_dir = os.path.isdir(real)
        except OSError:
            return None
    return HostPath(path, real, is_dir)


def _reachable(path: str, session: Session, open_to: dict[str, bool]) -> bool:
    """Whether the box's user can get at `path` at all: what lies behind a closed directory needs no cover, nor can have one.
    `open_to`: the directories that were looked at in this one look.

    Root in a box has no capabilities, so the directories of others are closed to it too. One with an access list counts
    as open.
    """
    if session.uid == os.geteuid() != 0:
        return True  # this process could see it, and so can the box
    try:
        for directory in parents(path):
            known = open_to.get(directory)
            if known is None:
                known = open_to[directory] = _searchable(directory, session)
            if not known:
                return False
        return True
    except OSError:
        return False


def _at_stake(path: str, session: Session, open_to: dict[str, bool]) -> bool:
    """Whether the box's user could read `path`, or make it readable: what its permissions keep closed needs no cover."""
    if not _reachable(path, session, open_to):
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
    found = _look(RESOLVER)
    return (found.real,) if found is not None and is_within(found.real, "/run") and os.path.isfile(found.real) else ()


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


def _work_trees(repositories: Iterable[str]) -> tuple[str, ...]:
    """The `.git` files that the git directories of linked work trees name; who they belong to was agreed before."""
    out = []
    for repository in repositories:
        if repository.rpartition("/")[0].endswith("/worktrees"):
            try:
                with open(f"{repository}/gitdir", encoding="utf-8", errors="surrogateescape") as file:
                    out.append(os.path.normpath(os.path.join(repository, file.read(4096).strip())))
            except (OSError, ValueError):
                continue
    return tuple(out)


def _directories(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        tells_of_path(error)
        return []


def _sockets() -> tuple[str, ...]:
    """Pathname sockets that are bound on this machine, as far as its /proc tells."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
            names = [fields[7] for line in lines if len(fields := line.rstrip("\n").split(None, 7)) == 8]
    except OSError as error:
        tells_of_path(error)
        return ()
    return tuple(dict.fromkeys(name for name in names if name.startswith("/") and os.path.exists(name)))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _absent(session: Session, request: PlanRequest | None) -> tuple[HostPath, ...]:
    """The protected names that do not exist in the workspace root and the repository roots, nearest first."""
    if request is None or request.promise or request.git_porcelain or not session.registry:
        return ()
    out = []
    for root in _roots(session, request)[:MAX_ABSENT_ROOTS]:
        try:
            present = os.listdir(root)
        except OSError as error:
            tells_of_path(error)
            continue
        lower = {name.lower(): name for name in present}
        for names, is_dir in ((ABSENT_DIRS, True), (ABSENT_FILES, False)):
            for name in names:
                path = f"{root}/{lower.get(name, name)}"
                if name not in lower or _ours(path):
                    out.append(HostPath(path, path, is_dir))
    return tuple(out)


def _roots(session: Session, request: PlanRequest) -> tuple[str, ...]:
    """The directories whose absent names are guarded; never a home."""
    found = [session.workspace, *(path.rpartition("/")[0] for path in request.facts.protected if path.endswith("/.git"))]
    return tuple(root for root in dict.fromkeys(found) if root != session.home)


def _ours(path: str) -> bool:
    """Whether a mount point of sandboxd stands at `path`: another box's, or one that a killed daemon left."""
    try:
        status = os.lstat(path)
        return is_placeholder(status) and (not stat.S_ISDIR(status.st_mode) or not os.listdir(path))
    except OSError as error:
        tells_of_path(error)
        return False


def _twins(request: PlanRequest | None) -> tuple[str, ...]:
    """Other names, in the writable roots, of protected files that have more than one link.

    A walk only where there is such a file; `.git` and what lies on another file system cannot hold one that is meant.
    """
    if request is None or request.promise:
        return ()
    linked: dict[tuple[int, int], int] = {}
    known: set[str] = set()
    for path in _files_of((*request.facts.protected, *request.facts.hooks_paths), MAX_LINKED):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            linked[status.st_dev, status.st_ino] = status.st_nlink
            known.add(path)
    if not linked:
        return ()
    inodes = frozenset(inode for _, inode in linked)
    out = []
    for path, inode in _entries((request.session.workspace, *request.session.additional)):
        if inode in inodes and path not in known:
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) in linked and stat.S_ISREG(status.st_mode):
                out.append(path)
    return tuple(out)


def _files_of(paths: Iterable[str], limit: int) -> Iterator[str]:
    """The files that `paths` are or hold; of a git directory only what git takes orders from. Bounded by `limit`."""
    pending = list(reversed(tuple(paths)))
    count = 0
    while pending and count < limit:
        path = pending.pop()
        count += 1
        if path.endswith("/.git") and os.path.isdir(path) and not os.path.islink(path):
            pending += [f"{path}/{name}" for name in ("config", "config.worktree", "hooks", "info")]
            continue
        try:
            with os.scandir(path) as entries:
                pending += [entry.path for entry in entries]
        except NotADirectoryError:
            yield path
        except OSError as error:
            tells_of_path(error)


def _entries(roots: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Every file below the roots with its inode number, which a listing tells without a look at each."""
    pending = list(roots)
    count = 0
    while pending and count < MAX_TWIN_DIRECTORIES:
        count += 1
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry.path, entry.inode()
                    elif entry.name != ".git":
                        pending.append(entry.path)
        except OSError as error:
            tells_of_path(error)
