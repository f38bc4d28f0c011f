# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter, row by row: a small interpreter of classic BPF runs the program on made-up calls.

The kernel's own answers are in test_isolation_probes.py. Numbers: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h of Linux.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandboxd.errors import IsolationError
from sandboxd.isolation import seccomp
from sandboxd.isolation.seccomp import ALLOW, ARCHES, DENIED, ENOSYS, EPERM, ERRNO, KILL, OPTIONAL, Instruction, assemble

NO = ERRNO | EPERM
X86, ARM = ARCHES["x86_64"], ARCHES["aarch64"]


def judge(program: list[Instruction], audit: int, number: int, *args: int) -> int:
    """What the kernel would answer: linux/filter.h, as far as seccomp allows it."""
    words = {0: number, 4: audit}
    for index in range(6):
        value = args[index] if index < len(args) else 0
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = value >> 32
    at, accumulator = 0, 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        match code:
            case seccomp.LOAD:
                accumulator = words[operand]
            case seccomp.JEQ:
                at += yes if accumulator == operand else no
            case seccomp.JGE:
                at += yes if accumulator >= operand else no
            case seccomp.JSET:
                at += yes if accumulator & operand else no
            case seccomp.AND:
                accumulator &= operand
            case seccomp.RETURN:
                return operand
            case _:
                raise AssertionError(f"instruction {code:#x}")


def plain(arch: seccomp.Arch) -> list[Instruction]:
    return assemble(arch, unix=False, ptrace=False, extra=())


# name of the case, number on x86_64, on aarch64, arguments, answer
CALLS = [
    ("read", 0, 63, (), ALLOW),
    ("execve", 59, 221, (), ALLOW),
    ("fork by clone", 56, 220, (17,), ALLOW),
    ("thread by clone", 56, 220, (0x3D0F00,), ALLOW),
    ("clone with a user namespace", 56, 220, (0x10000011,), NO),
    ("clone with a mount namespace", 56, 220, (0x00020011,), NO),
    ("clone with a network namespace", 56, 220, (0x40000011,), NO),
    ("clone3", 435, 435, (), ERRNO | ENOSYS),
    ("socket inet", 41, 198, (2, 1, 0), ALLOW),
    ("socket inet6", 41, 198, (10, 1, 0), ALLOW),
    ("socket unix", 41, 198, (1, 1, 0), NO),
    ("socket vsock", 41, 198, (40, 1, 0), NO),
    ("socket packet", 41, 198, (17, 3, 0), NO),
    ("socket netlink route", 41, 198, (16, 3, 0), ALLOW),
    ("socket netlink audit", 41, 198, (16, 3, 9), NO),
    ("socket family with high bits", 41, 198, (1 << 32 | 1, 1, 0), NO),
    ("pair stream", 53, 199, (1, 1, 0), ALLOW),
    ("pair stream with flags", 53, 199, (1, 1 | 0o2004000, 0), ALLOW),
    ("pair seqpacket", 53, 199, (1, 5, 0), ALLOW),
    ("pair datagram", 53, 199, (1, 2, 0), NO),
    ("pair datagram with flags", 53, 199, (1, 2 | 0o2000000, 0), NO),
    ("pair inet", 53, 199, (2, 1, 0), NO),
    ("ioctl tcgets", 16, 29, (0, 0x5401), ALLOW),
    ("ioctl tiocsti", 16, 29, (0, 0x5412), NO),
    ("ioctl tiocsti with high bits", 16, 29, (0, 1 << 32 | 0x5412), NO),
    ("ioctl tioclinux", 16, 29, (0, 0x541C), NO),
    ("landlock", 444, 444, (), ALLOW),
    ("close_range", 436, 436, (), ALLOW),
    ("ptrace", 101, 117, (), NO),
    ("io_uring_setup", 425, 425, (), NO),
]


@pytest.mark.parametrize(("name", "x86", "arm", "args", "answer"), CALLS, ids=[row[0] for row in CALLS])
def test_calls(name: str, x86: int, arm: int, args: tuple[int, ...], answer: int) -> None:
    """Each call gets its answer on both architectures."""
    assert judge(plain(X86), X86.audit, x86, *args) == answer
    assert judge(plain(ARM), ARM.audit, arm, *args) == answer


@pytest.mark.parametrize("name", sorted(DENIED))
def test_every_listed_call_is_denied(name: str) -> None:
    """No row of the table is lost on the way into the program."""
    for arch in (X86, ARM):
        number = DENIED[name][arch.column]
        if number is not None:
            assert judge(plain(arch), arch.audit, number) == NO


def test_a_foreign_architecture_kills() -> None:
    """The same number means another call there, so nothing can be said of it."""
    for audit in (0x40000003, ARM.audit, 0):
        assert judge(plain(X86), audit, 0) == KILL


def test_x32_calls_do_not_exist() -> None:
    """Their numbers would pass the table by; and no number far above is taken for a listed one."""
    for number in (0x40000000, 0x40000000 | 101, 0xFFFFFFFF):
        assert judge(plain(X86), X86.audit, number) == ERRNO | ENOSYS


def test_unix_sockets_and_tracing_open_only_what_they_say() -> None:
    """The profile's two switches."""
    program = assemble(X86, unix=True, ptrace=True, extra=())
    assert judge(program, X86.audit, 41, 1, 1, 0) == ALLOW
    assert judge(program, X86.audit, 53, 1, 2, 0) == ALLOW
    assert judge(program, X86.audit, 41, 40, 1, 0) == NO
    assert judge(program, X86.audit, 101) == ALLOW
    assert judge(program, X86.audit, 250) == NO


def test_a_profile_denies_more() -> None:
    """`extra_deny` adds calls, also one that a switch opened; an unknown name is an error that lists the known ones."""
    program = assemble(X86, unix=False, ptrace=True, extra=("personality", "ptrace"))
    assert judge(program, X86.audit, OPTIONAL["personality"][0] or 0) == NO
    assert judge(program, X86.audit, 101) == NO
    with pytest.raises(IsolationError, match="personality"):
        assemble(X86, unix=False, ptrace=False, extra=("nonsense",))


def test_an_architecture_without_a_table_is_refused() -> None:
    """No filter is worse than no box."""
    with pytest.raises(IsolationError, match="riscv64"):
        seccomp.program("riscv64")


def test_the_program_fits_the_kernel() -> None:
    """At most 4,096 instructions, eight bytes each, jumps inside the program, and the end is a return."""
    for arch in (X86, ARM):
        program = plain(arch)
        assert len(program) <= 4096
        assert program[-1][0] == seccomp.RETURN
        for at, (code, yes, no, _) in enumerate(program):
            assert max(yes, no) <= 255
            assert code == seccomp.RETURN or at + 1 + max(yes, no) < len(program)
    assert len(seccomp.program("x86_64")) == 8 * len(plain(X86))


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_numbers_agree_with_the_kernels_headers(machine: str) -> None:
    """Where the headers are installed, every number in the tables is the kernel's."""
    path = Path(HEADERS[machine])
    if not path.exists():
        pytest.skip(f"no {path}")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text(encoding="utf-8"))
    numbers = {name: int(number) for name, number in found}
    column = ARCHES[machine].column
    wrong = {
        name: (row[column], numbers[name])
        for name, row in {**DENIED, **OPTIONAL}.items()
        if name in numbers and row[column] is not None and row[column] != numbers[name]
    }
    assert wrong == {}
