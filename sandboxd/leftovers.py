# SPDX-License-Identifier: GPL-3.0-or-later
"""Temporary directories of a sandboxd that was killed: each is claimed by a lock, which the kernel drops with its owner."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time

PREFIX = "sandboxd-"
LOCK = "lock"
_UNCLAIMED = 3600.0  # seconds; between making a directory and claiming it there are microseconds


def claim(directory: str) -> int:
    """Say that this process uses the directory; the descriptor holds the claim until it is closed."""
    fd = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def sweep() -> None:
    """Remove this user's directories in the temporary directory that nobody holds any more. Blocking."""
    root = tempfile.gettempdir()
    for name in os.listdir(root):
        if name.startswith(PREFIX) and _abandoned(path := f"{root}/{name}"):
            shutil.rmtree(path, ignore_errors=True)


def _abandoned(path: str) -> bool:
    try:
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            return False
        fd = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.path.lexists(path) and time.time() - info.st_mtime > _UNCLAIMED
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
