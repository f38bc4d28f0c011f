# SPDX-License-Identifier: GPL-3.0-or-later
"""Long output shall not fill the machine's page cache.

Nobody reads most of what a long output holds again. Left alone it drives out of the cache what others work with, and every
page of it is one that the kernel must find first; in a virtual machine that has given its free memory back (virtio-balloon,
free page reporting) the host must find it too, which costs ten times what the copy does. So what lies further back than KEEP
is written to the disk, STEP bytes at a time, and dropped from the cache, on a thread of its own. A disk that does not keep
up is left to the kernel: while a step is not done, no other one begins.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import Future, ThreadPoolExecutor

STEP = 8 << 20  # bytes
KEEP = 32 << 20  # bytes

_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start writing what is dirty, and do not wait for the end (sync_file_range(2))
_sync_file_range = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_thread = ThreadPoolExecutor(1, "sandboxd-pagecache")


class Trim:
    """The part of one file that grows at its end."""

    __slots__ = ("_begun", "_step")

    def __init__(self) -> None:
        self._begun = 0  # bytes that are on their way to the disk, or there
        self._step: Future[None] | None = None

    def grown(self, fd: int, size: int) -> None:
        """The file has `size` bytes now. Never blocks."""
        if size < KEEP or size - self._begun < STEP or _sync_file_range is None:
            return
        if self._step is not None and not self._step.done():
            return
        start, self._begun = self._begun, size
        own = os.dup(fd)  # the file may be closed before the thread comes to it
        try:
            self._step = _thread.submit(_trim, own, start, size)
        except RuntimeError:  # the interpreter ends
            os.close(own)


def _trim(fd: int, start: int, end: int) -> None:
    try:
        assert _sync_file_range is not None
        _sync_file_range(fd, start, end - start, _WRITE)
        if end > KEEP:
            os.posix_fadvise(fd, 0, end - KEEP, os.POSIX_FADV_DONTNEED)  # what is written by now
    except OSError:
        pass
    finally:
        os.close(fd)
