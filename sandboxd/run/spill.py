# SPDX-License-Identifier: GPL-3.0-or-later
"""Results that are too long for a model, whole on disk: `<state>/spill/<session>/<execution>.txt`, mode 0600.

A quota over all of them and an age keep the directory bounded: what is too old goes first, then the oldest. The age of
what this daemon stored is counted on a clock that never jumps; of an earlier daemon's files only the date is known. A
session's directory goes with the session. All methods block; any thread may call them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """`complete` is False when the quota or the disk held less than all of it."""

    path: str
    size: int
    complete: bool


class Spills:
    """`quota` in bytes of all files, `max_age` in seconds; `clock` is monotonic."""

    def __init__(self, root: str, quota: int, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self.quota = quota
        self.max_age = max_age
        self._clock = clock
        self._since: dict[str, float] = {}  # when this daemon stored a path, on its clock
        self._lock = threading.Lock()

    def configure(self, quota: int, max_age: float) -> None:
        """New bounds; they hold from the next result that is stored."""
        with self._lock:
            self.quota, self.max_age = quota, max_age

    def open(self, session_id: str, uid: int, gid: int) -> str:
        """Make a session's directory; its path, or "" where the box's user cannot come (a daemon of root serves another
        user from a directory of root's own): what nobody there could read is not stored."""
        path = f"{self.root}/{session_id}"
        os.makedirs(path, mode=0o700, exist_ok=True)
        if uid == os.getuid():
            return path
        os.chmod(self.root, 0o711)  # noqa: S103  that user must pass through, and can list nothing
        if not _passable(self.root, uid):
            os.rmdir(path)
            return ""
        os.chown(path, uid, gid)
        return path

    def store(self, session_id: str, execution_id: str, chunks: Iterable[bytes], whole: str = "") -> Stored | None:
        """Store a result, making room first. None when nothing could be written; an existing file stays as it is.

        `whole`: a file that holds just those chunks and will not change; a link to it takes neither time nor disk.
        """
        with self._lock:
            self._sweep()
            path = f"{self.root}/{session_id}/{execution_id}.txt"
            try:
                folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                return None
            try:
                return self._link(folder, path, whole) or self._write(folder, path, chunks)
            finally:
                os.close(folder)

    def _link(self, folder: int, path: str, whole: str) -> Stored | None:
        """Give the file `whole` a second name; None where that cannot be, or the file is not for the session's user."""
        try:
            size = os.stat(whole, follow_symlinks=False).st_size
            if not 0 < size <= self.quota or os.fstat(folder).st_uid != os.getuid():
                return None
            os.link(whole, os.path.basename(path), dst_dir_fd=folder, follow_symlinks=False)
        except OSError:  # there is one, or it lies on another file system: both are for `_write`
            return None
        self._since[path] = self._clock()
        self._sweep(keep=path)
        return Stored(path, size, True)

    def _write(self, folder: int, path: str, chunks: Iterable[bytes]) -> Stored | None:
        name = os.path.basename(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            return Stored(path, size, True)
        except OSError:
            return None
        size, complete = 0, True
        try:
            owner = os.fstat(folder)
            if owner.st_uid != os.getuid():
                os.fchown(fd, owner.st_uid, owner.st_gid)
            for chunk in chunks:
                piece = memoryview(chunk)[: self.quota - size]
                complete = complete and len(piece) == len(chunk)
                while piece:
                    written = os.write(fd, piece)
                    size += written
                    piece = piece[written:]
                if not complete:
                    break
        except OSError:  # disk full, quota of the file system
            complete = False
        finally:
            os.close(fd)
        self._since[path] = self._clock()
        self._sweep(keep=path)
        return Stored(path, size, complete)

    def drop(self, session_id: str) -> None:
        """Remove a session's directory; idempotent."""
        with self._lock:
            shutil.rmtree(f"{self.root}/{session_id}", ignore_errors=True)

    def sweep(self, live: Iterable[str] = ()) -> None:
        """Remove what is too old or over the quota, and empty directories of sessions that are not in `live`."""
        with self._lock:
            self._sweep()
            known = frozenset(live)
            for name in _names(self.root):
                if name not in known:
                    with contextlib.suppress(OSError):
                        os.rmdir(f"{self.root}/{name}")

    def _sweep(self, keep: str = "") -> None:
        now, today = self._clock(), time.time()
        found: list[tuple[float, int, str]] = []  # age, size, path
        for session in _names(self.root):
            for name in _names(f"{self.root}/{session}"):
                path = f"{self.root}/{session}/{name}"
                try:
                    info = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(info.st_mode):
                    since = self._since.get(path)
                    found.append((today - info.st_mtime if since is None else now - since, info.st_size, path))
        self._since = {path: self._since[path] for _, _, path in found if path in self._since}
        total = sum(size for _, size, _ in found)
        # What an earlier daemon left goes before anything of ours: its age may be wrong.
        for age, size, path in sorted(found, key=lambda each: (each[2] in self._since, -each[0])):
            if path == keep or (age <= self.max_age and total <= self.quota):
                continue
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= size


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _passable(path: str, uid: int) -> bool:
    """Whether a user who is in no group of ours may pass through every directory from the root to `path`."""
    while True:
        info = os.stat(path)
        bit = stat.S_IXUSR if info.st_uid == uid else stat.S_IXOTH
        if not info.st_mode & bit:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)
