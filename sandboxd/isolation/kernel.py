# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of the kernel that Python does not offer: openat2(2), which opens a path of which no part may be a symbolic link in
one step that nothing can swap in between, and renameat2(2), which does not replace what stands at the new name."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import lru_cache

_RENAME_NOREPLACE = 1
_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08


def open_real(base: int, path: str, *, directory: bool = False) -> int:
    """An O_PATH descriptor of the relative `path` below the directory `base`, without following any link.

    Raises OSError: ELOOP for a link on the way or at the end, ENOENT, EXDEV for a way out, ENOSYS before Linux 5.6.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (os.O_DIRECTORY if directory else 0)
    how = struct.pack("<QQQ", flags, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS | _RESOLVE_BENEATH)
    return _syscall(base, os.fsencode(path), how)


def rename_new(source: int, old: str, target: int, new: str) -> None:
    """Rename `old` in the directory `source` to `new` in `target`. Raises OSError: EEXIST when something stands there, EXDEV
    for another mount, EINVAL where the file system cannot do that, ENOSYS where the C library cannot."""
    call = getattr(_libc(), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), old)
    if call(source, os.fsencode(old), target, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), old, None, new)


def _syscall(base: int, path: bytes, how: bytes) -> int:
    fd = int(_libc().syscall(_OPENAT2, base, path, how, ctypes.c_size_t(len(how))))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(path))
    return fd


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
