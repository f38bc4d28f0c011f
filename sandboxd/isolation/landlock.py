# SPDX-License-Identifier: GPL-3.0-or-later
"""Landlock as the second mechanism inside a box: what it must forbid is computed here, `child` only makes the calls.

Read-only mounts do not stop a write into a FIFO of the tree or through a reopened descriptor; Landlock does. It is set
after all mounts, since a ruleset forbids mounting. Constants and ABI history: linux/landlock.h.
ABI 1 writes (Linux 5.13) · 2 rename between directories · 3 truncate · 4 TCP ports · 5 ioctl on devices · 6 abstract
sockets and signals stay inside · 7 audit.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from dataclasses import dataclass
from functools import lru_cache

from sandboxd.model import LaunchPlan

CREATE_RULESET = 444  # the same numbers on every architecture
MIN_ABI = 3  # below, truncate(2) of anything is open
FULL_ABI = 6  # from here on signals and abstract sockets are confined too
_VERSION_FLAG = 1

WRITE_FILE, READ_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 2, 1 << 4, 1 << 5
MAKE = sum(1 << bit for bit in range(6, 13))  # char, dir, regular, socket, fifo, block, symbolic link
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
SCOPE_ABSTRACT, SCOPE_SIGNAL = 1, 2

_SINCE = {REFER: 2, TRUNCATE: 3, IOCTL_DEV: 5}
_FILE = WRITE_FILE | TRUNCATE | IOCTL_DEV  # the rights that a rule on a file may hold


@dataclass(frozen=True, slots=True)
class Ruleset:
    """`attr` is a `struct landlock_ruleset_attr`; `rules` are (path inside the box, rights of a directory, of a file)."""

    attr: bytes
    rules: tuple[tuple[str, int, int], ...]


@lru_cache(maxsize=1)
def abi() -> int:
    """The kernel's Landlock ABI, 0 when it has none or it is off."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG))
    if version < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return 0
    return max(version, 0)


def missing(version: int) -> tuple[str, ...]:
    """What a kernel of this ABI leaves open, in words; empty when nothing."""
    if version < MIN_ABI:
        return ("Landlock (Linux 6.2 or later)",)
    out = [] if version >= 5 else ["device ioctl (Linux 6.10)"]
    return (*out, *(() if version >= FULL_ABI else ("signal and abstract socket scope (Linux 6.12)",)))


def ruleset(plan: LaunchPlan, version: int, readable: tuple[str, ...] | None = None) -> Ruleset:
    """The ruleset of a plan: only `plan.writable` and the devices may be written, only `readable` read (None = anything)."""
    handled = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    handled |= sum(right for right, since in _SINCE.items() if version >= since)
    reads = READ_FILE if readable is not None else 0
    attr = struct.pack("<Q", handled | reads)
    if version >= 4:
        attr += struct.pack("<Q", 0)  # TCP: the network namespace decides
    if version >= 6:
        attr += struct.pack("<Q", SCOPE_ABSTRACT | SCOPE_SIGNAL)
    file = handled & _FILE
    rules = [(path, reads, reads) for path in readable or ()]
    rules += [(path, handled | reads, file | reads) for path in plan.writable]
    return Ruleset(attr, (*rules, ("/dev", file | reads, file | reads)))
