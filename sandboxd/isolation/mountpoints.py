# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount points where a protected path does not exist: made for the time of a box, and gone with the last box that needs them.

Each box writes what it needs into a file of the registry, before it makes anything, and keeps that file locked. The lock
ends with the daemon however that ends, so a file that can be locked belongs to nobody: what it names is removed, unless
another box names it too. Only what still is as it was made is removed: an empty directory of that mode, or a socket node.

All changes are made under one lock of the registry, which holds across processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from sandboxd.errors import SHORT
from sandboxd.isolation.kernel import open_real
from sandboxd.isolation.stubs import Pool, is_placeholder

_LOCK = "lock"
_SUFFIX = ".box"
_MAX_FILE = 1 << 20

_late: list[Lease] = []
_ours: dict[str, frozenset[str]] = {}  # files of registries that this process wrote, and what they name


class Lease:
    """The mount points of one box. `paths` are those that stand now; `release` once, when the box has ended.

    Where descriptors or memory are too short for that, it is done with the next one that is made or released.
    """

    def __init__(self, registry: str, name: str, fd: int, owner: tuple[int, int], paths: tuple[str, ...]) -> None:
        self._registry, self._name, self._fd, self._owner = registry, name, fd, owner
        self.paths = paths

    def release(self) -> tuple[str, ...]:
        """Remove what no other box needs. The paths that a command made into something else, and that therefore stay."""
        try:
            other = self._release()
        except OSError:
            _late.append(self)
            return ()
        _release_late()
        return other

    def _release(self) -> tuple[str, ...]:
        with _locked(self._registry), Pool(self._registry, *self._owner) as pool:
            needed = _needed(self._registry, but=self._name)
            other = _remove((path for path in self.paths if path not in needed), pool)
            os.unlink(f"{self._registry}/{self._name}")  # last: killed before, the next start finds what it names
            _ours.pop(f"{self._registry}/{self._name}", None)
            os.close(self._fd)
        return tuple(other)


def acquire(registry: str, wanted: Sequence[tuple[str, bool]], uid: int, gid: int) -> Lease | None:
    """Make the mount points for `wanted` (absolute path, whether a directory). None when there is nothing to make.

    What exists by now, lies on a file system that cannot be written, or is reached through a link gets none.
    Raises OSError, ENFILE for one, with nothing made: what this process cannot make a command may.
    """
    if not wanted:
        return None
    _release_late()
    os.makedirs(registry, mode=0o700, exist_ok=True)
    name = f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}"
    kinds = dict(wanted)
    lease = None
    try:
        with _locked(registry), Pool(registry, uid, gid) as pool:
            shared = _needed(registry)
            fd = os.open(f"{registry}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            lease = Lease(registry, name, fd, (uid, gid), tuple(kinds))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, json.dumps(list(kinds)).encode())
            _ours[f"{registry}/{name}"] = frozenset(kinds)
            made: list[str] = []
            for directory, paths in _by_directory(kinds).items():
                made += _make(paths, directory, kinds, pool, shared)
            lease.paths = tuple(made)
            return lease
    except BaseException:
        if lease is not None:
            lease.release()
        raise


def _release_late() -> None:
    for _ in range(len(_late)):
        try:
            lease = _late.pop()
        except IndexError:  # another thread has it
            return
        lease.release()


def recover(registry: str) -> tuple[str, ...]:
    """Remove what daemons that were killed left; the paths. Boxes of daemons that live keep theirs."""
    if not os.path.isdir(registry):
        return ()
    gone: dict[str, None] = {}
    with _locked(registry):
        for name in _files(registry):
            paths = _abandoned(f"{registry}/{name}")
            if paths is not None:
                os.unlink(f"{registry}/{name}")
                gone.update(dict.fromkeys(paths))
        needed = _needed(registry)
        kept = frozenset(_remove((path for path in gone if path not in needed), None))
    return tuple(path for path in gone if path not in kept and path not in needed)


@contextlib.contextmanager
def _locked(registry: str) -> Iterator[None]:
    fd = os.open(f"{registry}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _files(registry: str) -> list[str]:
    return [name for name in os.listdir(registry) if name.endswith(_SUFFIX)]


def _abandoned(path: str) -> list[str] | None:
    """What a registry file names when nobody holds it, else None."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _named(fd)
    except BlockingIOError:
        return None
    finally:
        os.close(fd)


def _named(fd: int) -> list[str]:
    try:
        content = json.loads(os.pread(fd, _MAX_FILE, 0) or b"[]")
    except ValueError:
        return []  # cut short: its daemon was killed before it made anything
    return [each for each in content if isinstance(each, str) and each.startswith("/")] if isinstance(content, list) else []


def _needed(registry: str, but: str = "") -> frozenset[str]:
    """What boxes name, `but` one."""
    out: set[str] = set()
    for name in _files(registry):
        if name == but:
            continue
        path = f"{registry}/{name}"
        known = _ours.get(path)
        out.update(_read(path) if known is None else known)
    return frozenset(out)


def _read(path: str) -> list[str]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _named(fd)
    finally:
        os.close(fd)


def _by_directory(paths: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path.rpartition("/")[0], []).append(path)
    return groups


def _make(paths: list[str], directory: str, kinds: dict[str, bool], pool: Pool, shared: frozenset[str]) -> list[str]:
    """Make the nodes in one directory; those that stand there as ours now. `shared` are those of other boxes."""
    try:
        at = open_real(_root(), directory.lstrip("/"), directory=True)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return []
    made = []
    try:
        for path in paths:
            name = path[len(directory) + 1 :]
            try:
                if path not in shared or not _stands(at, name):
                    pool.put(at, name, is_dir=kinds[path])
            except FileExistsError:
                continue  # not ours
            except OSError as error:
                if error.errno in SHORT:
                    raise
                continue  # nothing can be made here, by the command neither
            made.append(path)
    finally:
        pool.forget(at)
        os.close(at)
    return made


def _stands(at: int, name: str) -> bool:
    """Whether another box's mount point does. Raises OSError."""
    try:
        return is_placeholder(os.stat(name, dir_fd=at, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove(paths: Iterable[str], pool: Pool | None) -> list[str]:
    """Remove those of `paths` that are still as they were made; those that something else stands at."""
    other = []
    for directory, group in _by_directory(paths).items():
        try:
            at = open_real(_root(), directory.lstrip("/"), directory=True)
        except OSError as error:
            if error.errno in SHORT:
                raise
            continue
        for path in group:
            name = path[len(directory) + 1 :]
            try:
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
                if not is_placeholder(status):
                    other.append(path)
                elif not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=at)
                elif pool is not None:
                    pool.take(at, name)
                else:
                    os.rmdir(name, dir_fd=at)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in SHORT:
                    os.close(at)
                    raise
                other.append(path)
        os.close(at)
    return other


@lru_cache(maxsize=1)
def _root() -> int:
    return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
