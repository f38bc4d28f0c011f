# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount points where a protected path does not exist: made for the time of a box, and gone with the last box that needs them.

For a directory an empty directory, for a file a socket node: git shows neither, and opening the node fails at once.
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
from collections.abc import Iterator, Sequence
from functools import lru_cache

from sandboxd.isolation.kernel import open_real
from sandboxd.model.launch import PLACEHOLDER_MODE

NODE_MODE = 0o600
_LOCK = "lock"
_SUFFIX = ".box"
_MAX_FILE = 1 << 20


class Lease:
    """The mount points of one box. `paths` are those that stand now; `release` once, when the box has ended."""

    def __init__(self, registry: str, name: str, fd: int, paths: tuple[str, ...]) -> None:
        self._registry, self._name, self._fd = registry, name, fd
        self.paths = paths

    def release(self) -> tuple[str, ...]:
        """Remove what no other box needs. The paths that a command made into something else, and that therefore stay."""
        with _locked(self._registry):
            os.unlink(f"{self._registry}/{self._name}")
            os.close(self._fd)
            return _remove(self.paths, _needed(self._registry))


def acquire(registry: str, wanted: Sequence[tuple[str, bool]], uid: int, gid: int) -> Lease | None:
    """Make the mount points for `wanted` (absolute path, whether a directory). None when there is nothing to make.

    What exists by now, lies on a file system that cannot be written, or is reached through a link gets none.
    """
    if not wanted:
        return None
    os.makedirs(registry, mode=0o700, exist_ok=True)
    name = f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}"
    with _locked(registry):
        shared = _needed(registry)
        fd = os.open(f"{registry}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, json.dumps([path for path, _ in wanted]).encode())
        made = tuple(path for directory, group in _by_directory(wanted) for path in _make(directory, group, uid, gid, shared))
        return Lease(registry, name, fd, made)


def recover(registry: str) -> tuple[str, ...]:
    """Remove what daemons that were killed left; the paths. Boxes of daemons that live keep theirs."""
    if not os.path.isdir(registry):
        return ()
    gone: list[str] = []
    with _locked(registry):
        for name in _files(registry):
            paths = _abandoned(f"{registry}/{name}")
            if paths is not None:
                os.unlink(f"{registry}/{name}")
                gone += paths
        kept = _remove(gone, _needed(registry))
    return tuple(path for path in dict.fromkeys(gone) if path not in kept)


def is_placeholder(status: os.stat_result) -> bool:
    """Whether a path looks like one of ours; for a directory its being empty has to be seen too."""
    if stat.S_ISSOCK(status.st_mode):
        return True
    # A umask of the daemon may have taken rights away.
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o7700 == PLACEHOLDER_MODE & 0o7700


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


def _needed(registry: str) -> frozenset[str]:
    """What other boxes name."""
    out: set[str] = set()
    for name in _files(registry):
        fd = os.open(f"{registry}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            out.update(_named(fd))
        finally:
            os.close(fd)
    return frozenset(out)


def _by_directory(wanted: Sequence[tuple[str, bool]]) -> list[tuple[str, list[tuple[str, bool]]]]:
    groups: dict[str, list[tuple[str, bool]]] = {}
    for path, is_dir in wanted:
        groups.setdefault(path.rpartition("/")[0], []).append((path, is_dir))
    return list(groups.items())


def _make(directory: str, group: list[tuple[str, bool]], uid: int, gid: int, shared: frozenset[str]) -> list[str]:
    """Make the nodes in one directory; those that stand there as ours now. `shared` are those of other boxes."""
    try:
        at = open_real(_root(), directory.lstrip("/"), directory=True)
    except OSError:
        return []
    made = []
    node = ""  # the others are links to it: making an inode costs much more than making a name
    try:
        for path, is_dir in group:
            name = path.rpartition("/")[2]
            try:
                if is_dir:
                    os.mkdir(name, PLACEHOLDER_MODE, dir_fd=at)
                elif node:
                    os.link(node, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
                else:
                    os.mknod(name, stat.S_IFSOCK | NODE_MODE, dir_fd=at)
                    node = name
                if uid != os.geteuid():
                    os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)
            except FileExistsError:
                if path not in shared or not is_placeholder(os.stat(name, dir_fd=at, follow_symlinks=False)):
                    continue  # not ours
            except OSError:
                continue  # nothing can be made here, by the command neither
            made.append(path)
    finally:
        os.close(at)
    return made


def _remove(paths: Sequence[str], needed: frozenset[str]) -> tuple[str, ...]:
    """Remove those of `paths` that are still as they were made and that nobody needs; those that something else stands at."""
    other = []
    for path in dict.fromkeys(paths):
        if path in needed:
            continue
        directory, _, name = path.rpartition("/")
        try:
            at = open_real(_root(), directory.lstrip("/"), directory=True)
        except OSError:
            continue
        try:
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
            if not is_placeholder(status):
                other.append(path)
            elif stat.S_ISDIR(status.st_mode):
                os.rmdir(name, dir_fd=at)
            else:
                os.unlink(name, dir_fd=at)
        except FileNotFoundError:
            pass
        except OSError:
            other.append(path)
        finally:
            os.close(at)
    return tuple(other)


@lru_cache(maxsize=1)
def _root() -> int:
    return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
