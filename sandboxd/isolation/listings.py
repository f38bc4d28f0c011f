# SPDX-License-Identifier: GPL-3.0-or-later
"""What directories hold, without reading them again while nothing in them can have changed.

Every look asks the kernel for the directory that the path leads to now, and for its change time, which no program can set
(inode(7), ctime). The names are taken from memory only when that is the directory, and the time, of a listing made at least
GRAIN after the same pair was first seen: file systems take times from a clock that stands still for some milliseconds, so that
a second change may leave the time of the first (current_time() in the kernel, fs/inode.c). By then the clock has moved on, and
whatever changes later shows. Our own clock measures that, so neither a jump of the wall clock nor a server's matters.

Where directories need not have such times (network file systems, FUSE) nothing is remembered.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

GRAIN = 0.05  # seconds; a tick of the kernel's clock is at most 10 ms
MOST = 4096  # directories remembered

# statfs(2), f_type: ext2 to 4, xfs, btrfs, f2fs, tmpfs, overlayfs.
_KNOWN = frozenset((0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994, 0x794C7630))

Identity = tuple[int, int, int, int]  # device, inode, change and modification time


class Listings:
    """May be used from any thread. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[Identity, float, frozenset[str] | None]] = {}  # None: not to be trusted yet
        self._timed: dict[int, bool] = {}  # by device
        self._lock = threading.Lock()

    def names(self, path: str) -> frozenset[str]:
        """The names in a directory. Raises OSError as `os.listdir`."""
        info = os.stat(path)
        identity = info.st_dev, info.st_ino, info.st_ctime_ns, info.st_mtime_ns
        known = self._seen.get(path)
        if known is not None and known[0] == identity:
            if known[2] is not None:
                return known[2]
            since = known[1]
        else:
            since = self._clock()
        trusted = self._clock() - since >= GRAIN and self._times(info.st_dev, path)
        names = frozenset(os.listdir(path))
        with self._lock:
            if len(self._seen) >= MOST and path not in self._seen:
                self._seen.clear()
            self._seen[path] = identity, since, names if trusted else None
        return names

    def _times(self, device: int, path: str) -> bool:
        """Whether the file system keeps the times of its directories itself."""
        known = self._timed.get(device)
        if known is None:
            known = _kind(path) in _KNOWN
            with self._lock:
                if len(self._timed) >= MOST:
                    self._timed.clear()
                self._timed[device] = known
        return known


def _kind(path: str) -> int:
    """statfs(2), f_type; -1 when it cannot be told."""
    out = (ctypes.c_long * 32)()  # larger than struct statfs, whose first field it is
    statfs = getattr(ctypes.CDLL(None), "statfs", None)
    if statfs is None or statfs(os.fsencode(path), ctypes.byref(out)) != 0:
        return -1
    return int(out[0])
