# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes that stand where a protected path does not exist: an empty directory, or a socket node; git shows neither.

Making a name is cheap, making an inode is not, and removing a directory costs the file system most of all. So the nodes
come from a pool beside the registry: a directory is moved out of it and back, a socket node is one more name of the same
inode. Where the pool lies on another file system than the workspace they are made and removed in place.

Callers hold the registry's lock. Nothing is followed through a link: all names are seen from opened directories.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

from sandboxd.errors import SHORT
from sandboxd.isolation.kernel import rename_new
from sandboxd.model.launch import PLACEHOLDER_MODE

NODE_MODE = 0o600
MAX_SPARE = 64  # directories kept
_NODE = "node"
_ELSEWHERE = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EMLINK))


def is_placeholder(status: os.stat_result) -> bool:
    """Whether a path looks like one of ours; for a directory its being empty has to be seen too."""
    if stat.S_ISSOCK(status.st_mode):
        return True
    # A umask of the daemon may have taken rights away.
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o7700 == PLACEHOLDER_MODE & 0o7700


class Pool:
    """The spare nodes of one user. Use it in a `with`, under the lock."""

    def __init__(self, registry: str, uid: int, gid: int) -> None:
        self._owner = None if uid == os.geteuid() else (uid, gid)
        path = f"{registry}/spare-{uid}-{gid}"
        try:
            self._at = _open(path)
        except FileNotFoundError:
            os.mkdir(path, 0o700)
            self._at = _open(path)
        try:
            names = os.listdir(self._at)
        except OSError:
            os.close(self._at)
            raise
        self._spare = [name for name in names if name != _NODE]
        self._node = (self._at, _NODE)  # what further socket nodes are names of
        if _NODE not in names:
            with contextlib.suppress(OSError):
                self._make_node(self._at, _NODE)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._at)

    def put(self, at: int, name: str, *, is_dir: bool) -> None:
        """Let a node stand at `name` in the directory `at`. Raises OSError, FileExistsError where something stands."""
        if is_dir:
            self._put_directory(at, name)
            return
        source, node = self._node
        try:
            os.link(node, name, src_dir_fd=source, dst_dir_fd=at, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (*_ELSEWHERE, errno.ENOENT):
                raise
            try:
                self._make_node(at, name)
            except OSError as refused:
                if refused.errno not in _ELSEWHERE:
                    raise
                self._put_directory(at, name)  # a file system without socket nodes
                return
            self._node = (at, name)

    def _put_directory(self, at: int, name: str) -> None:
        if self._spare:
            try:
                rename_new(self._at, self._spare[-1], at, name)
                self._spare.pop()
                return
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    raise
                self._spare.clear()
        os.mkdir(name, PLACEHOLDER_MODE, dir_fd=at)
        self._give(at, name)

    def _make_node(self, at: int, name: str) -> None:
        os.mknod(name, stat.S_IFSOCK | NODE_MODE, dir_fd=at)
        self._give(at, name)

    def _give(self, at: int, name: str) -> None:
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=at, follow_symlinks=False)

    def forget(self, at: int) -> None:
        """The directory `at` is about to be closed."""
        if self._node[0] == at:
            self._node = (self._at, _NODE)

    def take(self, at: int, name: str) -> None:
        """Remove the directory `name`. Raises OSError, ENOTEMPTY when something is in it, which then stays in its place."""
        if len(self._spare) >= MAX_SPARE:
            os.rmdir(name, dir_fd=at)
            return
        spare = secrets.token_hex(6)
        try:
            rename_new(at, name, self._at, spare)
        except OSError as error:
            if error.errno not in _ELSEWHERE:
                raise
            os.rmdir(name, dir_fd=at)
            return
        # Looked at only now, when nobody can put anything into it by its name any more.
        try:
            if not is_placeholder(os.stat(spare, dir_fd=self._at, follow_symlinks=False)) or not _empty(self._at, spare):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        except OSError:
            rename_new(self._at, spare, at, name)
            raise
        self._spare.append(spare)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _empty(at: int, name: str) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return False
    try:
        return not os.listdir(fd)
    finally:
        os.close(fd)
