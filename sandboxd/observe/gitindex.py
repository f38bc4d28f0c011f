# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of some names git tracks, out of the index file itself (gitformat-index(5)); git is never run."""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict

MAX_INDEX = 64 << 20  # bytes; a larger one counts as tracking nothing
MAX_KNOWN = 32
_EXTENDED, _LENGTH = 0x4000, 0x0FFF

_known: OrderedDict[str, tuple[tuple[int, int, int, int], frozenset[str]]] = OrderedDict()
_lock = threading.Lock()


def tracked_env_files(git_dir: str) -> frozenset[str]:
    """The tracked paths whose last part begins with `.env`, relative to the work tree. Empty when it cannot be read."""
    path = f"{git_dir}/index"
    try:
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        with _lock:
            found = _known.get(path)
            if found is not None and found[0] == identity:
                return found[1]
        if status.st_size > MAX_INDEX:
            return frozenset()
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, ValueError):
        return frozenset()
    # A version 4 index writes only what a name does not share with the one before.
    wanted = data[4:8] == b"\0\0\0\4" or b".env" in data
    names = frozenset(name for name in _names(data) if name.rpartition("/")[2].startswith(".env")) if wanted else frozenset()
    with _lock:
        _known[path] = (identity, names)
        if len(_known) > MAX_KNOWN:
            _known.popitem(last=False)
    return names


def _names(data: bytes) -> list[str]:
    """The paths of an index of version 2, 3 or 4; none when it is not one."""
    if data[:4] != b"DIRC" or len(data) < 12:
        return []
    version, count = struct.unpack(">II", data[4:12])
    if version not in (2, 3, 4):
        return []
    digest = 20
    out: list[bytes] = []
    at, before = 12, b""
    try:
        for _ in range(count):
            start = at
            flags = int.from_bytes(data[at + 40 + digest : at + 42 + digest], "big")
            at += 42 + digest + (2 if flags & _EXTENDED else 0)
            if version == 4:
                strip, at = _offset(data, at)
                end = data.index(0, at)
                before = before[: len(before) - strip] + data[at:end]
                at = end + 1
            else:
                end = data.index(0, at)
                before = data[at:end]
                at = start + ((end - start) // 8 + 1) * 8
            out.append(before)
    except (IndexError, ValueError):
        return []
    return [name.decode("utf-8", "surrogateescape") for name in out]


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """A number in the variable width that packs use for offsets (gitformat-pack(5)), and what follows it."""
    byte = data[at]
    at += 1
    value = byte & 0x7F
    while byte & 0x80:
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at
