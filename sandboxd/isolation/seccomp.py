# SPDX-License-Identifier: GPL-3.0-or-later
"""The system call filter: a classic BPF program over `struct seccomp_data`, assembled here.

Everything is allowed but what is listed. Denied calls fail with EPERM, so that programs go on; `clone3` and the x32 calls
fail with ENOSYS, since libraries then fall back to calls whose arguments a filter can see; a foreign architecture kills
(its numbers mean other calls). Layouts and constants: linux/seccomp.h, linux/filter.h, linux/audit.h.

To add a call: its numbers for both architectures to DENIED, and a row in tests/isolation/test_isolation_seccomp.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sandboxd.errors import IsolationError

LOAD, JEQ, JGE, JSET, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
EPERM, ENOSYS = 1, 38
NR, ARCH, ARGS = 0, 4, 16  # offsets in struct seccomp_data; arguments are 64 bits each, the low half first
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_SEQPACKET, SOCK_TYPE_MASK = 1, 5, 0xF
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
CLONE_NEW = 0x7E020000  # every CLONE_NEW* flag that clone(2) takes: NS CGROUP UTS IPC USER PID NET
X32_BIT = 0x40000000

# name -> (x86_64, aarch64); None where the architecture has no such call
DENIED: Mapping[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
TRACING = frozenset(("ptrace", "process_vm_readv", "process_vm_writev"))
# What changes mode, owner, times and attributes of a file, for boxes where nothing else forbids it (fs/open.c, fs/xattr.c).
METADATA: Mapping[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
# Allowed by default; a profile may name them in `[seccomp] extra_deny`, beside those above.
OPTIONAL: Mapping[str, tuple[int | None, int | None]] = {
    **METADATA,
    "execveat": (322, 281),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mlock": (149, 228),
    "mlockall": (151, 230),
    "name_to_handle_at": (303, 264),
    "personality": (135, 92),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "setpriority": (141, 140),
    "syslog": (103, 116),
    "vmsplice": (278, 75),
}


@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture: its AUDIT_ARCH value, its column in the tables, and the calls whose arguments are looked at."""

    audit: int
    column: int
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    x32: bool = False


ARCHES: Mapping[str, Arch] = {
    "x86_64": Arch(0xC000003E, 0, clone=56, clone3=435, socket=41, socketpair=53, ioctl=16, x32=True),
    "aarch64": Arch(0xC00000B7, 1, clone=220, clone3=435, socket=198, socketpair=199, ioctl=29),
}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def known(name: str) -> bool:
    """Whether a profile may name this call in `extra_deny`."""
    return name in DENIED or name in OPTIONAL


@lru_cache(maxsize=64)
def program(machine: str, *, unix: bool = False, ptrace: bool = False, extra: tuple[str, ...] = (), inet: bool = True) -> bytes:
    """The filter for `os.uname().machine`, as an array of `struct sock_filter`.

    `unix`: sockets of AF_UNIX are allowed; `ptrace`: tracing is; `extra`: more calls to deny, by name; `inet`:
    network sockets are, which only a box with a network namespace of its own can have while it is offline.
    Raises IsolationError on an architecture without a table, or for an unknown name.
    """
    arch = ARCHES.get(machine)
    if arch is None:
        known_machines = ", ".join(ARCHES)
        raise IsolationError(f"no system call table for `{machine}`", fix=f"run sandboxd on one of {known_machines}")
    return b"".join(struct.pack("<HBBI", *each) for each in assemble(arch, unix=unix, ptrace=ptrace, extra=extra, inet=inet))


def assemble(arch: Arch, *, unix: bool, ptrace: bool, extra: Sequence[str], inet: bool = True) -> list[Instruction]:
    """The program as instructions; every jump goes forward by less than 256."""
    out: list[Instruction] = [
        (LOAD, 0, 0, ARCH),
        (JEQ, 1, 0, arch.audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NR),
    ]
    if arch.x32:
        out += [(JGE, 0, 1, X32_BIT), (RETURN, 0, 0, ERRNO | ENOSYS)]
    out += _when(arch.clone3, [(RETURN, 0, 0, ERRNO | ENOSYS)])
    for name in sorted({*DENIED, *extra}):
        if ptrace and name in TRACING and name not in extra:
            continue
        numbers = DENIED.get(name) or OPTIONAL.get(name)
        if numbers is None:
            raise IsolationError(f"no system call `{name}` in the table", fix=f"use one of {', '.join((*DENIED, *OPTIONAL))}")
        number = numbers[arch.column]
        if number is not None:
            out += _when(number, [(RETURN, 0, 0, ERRNO | EPERM)])
    out += _when(arch.clone, [_argument(0), (JSET, 0, 1, CLONE_NEW), _deny(), _allow()])
    out += _when(arch.ioctl, [_argument(1), (JEQ, 1, 0, TIOCSTI), (JEQ, 0, 1, TIOCLINUX), _deny(), _allow()])
    out += _when(arch.socket, _socket(unix, inet))
    if not unix:
        out += _when(arch.socketpair, _socketpair())
    return [*out, _allow()]


def _socket(unix: bool, inet: bool) -> list[Instruction]:
    families = [*((AF_INET, AF_INET6) if inet else ()), *((AF_UNIX,) if unix else ())]
    body = [_argument(0)]
    for family in families:
        body += [(JEQ, 0, 1, family), _allow()]
    # Netlink protocol 0 is routing: how programs learn addresses and interfaces. Others reach audit, firewall, SELinux.
    return [*body, (JEQ, 1, 0, AF_NETLINK), _deny(), _argument(2), (JEQ, 1, 0, 0), _deny(), _allow()]


def _socketpair() -> list[Instruction]:
    """A datagram pair could `sendto` any socket of the host by its path; stream pairs cannot."""
    return [
        _argument(0),
        (JEQ, 1, 0, AF_UNIX),
        _deny(),
        _argument(1),
        (AND, 0, 0, SOCK_TYPE_MASK),
        (JEQ, 1, 0, SOCK_STREAM),
        (JEQ, 0, 1, SOCK_SEQPACKET),
        _allow(),
        _deny(),
    ]


def _when(number: int, body: list[Instruction]) -> list[Instruction]:
    """`body` for the call `number`; the accumulator holds the number before and after."""
    return [(JEQ, 0, len(body), number), *body]


def _argument(index: int) -> Instruction:
    return (LOAD, 0, 0, ARGS + 8 * index)


def _deny() -> Instruction:
    return (RETURN, 0, 0, ERRNO | EPERM)


def _allow() -> Instruction:
    return (RETURN, 0, 0, ALLOW)
