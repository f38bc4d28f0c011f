# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside a box and prints all that it can see there which an earlier command could have changed, as JSON.

What differs between any two boxes is left out: numbers of processes, times, what counts for the whole machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import pty
import re
import resource
import signal
import stat
import sys
from collections.abc import Callable
from functools import partial

libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
VARIES = ("Vm", "Rss", "State", "FDSize", "HugetlbPages", "voluntary", "nonvoluntary", "Pid", "PPid", "Tgid", "NS", "Name")
state: dict[str, object] = {}


def note(name: str, look: Callable[[], object]) -> None:
    try:
        state[name] = look()
    except OSError as error:
        state[name] = f"errno {error.errno}"


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def lines(path: str) -> int:
    return len(read(path).splitlines())


def raw(x86: int, arm: int, *args: int | bytes) -> int:
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in args]
    result = libc.syscall(ctypes.c_long(x86 if X86 else arm), *values)
    if result == -1:
        raise OSError(ctypes.get_errno(), "syscall")
    return int(result)


def status(pid: str) -> list[str]:
    return [line for line in read(f"/proc/{pid}/status").splitlines() if not line.startswith(VARIES)]


def scheduling(pid: int) -> list[object]:
    attributes = ctypes.create_string_buffer(64)
    if libc.syscall(ctypes.c_long(315 if X86 else 275), pid, attributes, 64, 0):
        raise OSError(ctypes.get_errno(), "sched_getattr")
    return [attributes.raw.hex(), raw(252, 31, 1, pid), sorted(os.sched_getaffinity(pid)), os.getpriority(os.PRIO_PROCESS, pid)]


def limits(pid: int) -> list[tuple[int, int]]:
    return [resource.prlimit(pid, each) for each in range(16)]


def tree(root: str) -> list[object]:
    found: list[object] = []
    for directory, names, files in os.walk(root):
        info = os.lstat(directory)
        found.append(
            (directory, oct(info.st_mode), info.st_uid, info.st_gid, info.st_nlink, info.st_size, os.listxattr(directory))
        )
        for name in (*names, *files):
            info = os.lstat(f"{directory}/{name}")
            found.append((f"{directory}/{name}", oct(info.st_mode), info.st_uid, info.st_gid, info.st_size))
    space = os.statvfs(root)
    return [*found, space.f_bfree, space.f_ffree, space.f_flag]


def touched(root: str) -> bool:
    """Whether a directory was changed after it was made."""
    info = os.stat(root)
    return abs(info.st_mtime - info.st_ctime) > 0.1 or info.st_mtime < os.stat("/proc/1").st_ctime - 60


def queue(name: bytes) -> int:
    return raw(240, 180, name, os.O_RDONLY, 0, 0)


def descriptors() -> list[str]:
    out = []
    for name in os.listdir("/proc/self/fd"):
        try:
            out.append(f"{name} {stat.S_IFMT(os.fstat(int(name)).st_mode):o}")
        except OSError:
            pass  # the listing's own
    return sorted(out)


def mounts() -> list[str]:
    """Those that can be written, without what numbers them; what is hidden comes and goes with the host's files."""
    bare = (re.sub(r"^\d+ \d+ \d+:\d+ |gid=\d+", "", line) for line in read("/proc/self/mountinfo").splitlines())
    return sorted(line for line in bare if line.split()[2].startswith("rw"))


def processes() -> list[str]:
    return sorted(read(f"/proc/{pid}/comm").strip() for pid in os.listdir("/proc") if pid.isdigit())


def terminal() -> str:
    main, other = pty.openpty()
    name = os.ttyname(other)
    os.close(main)
    os.close(other)
    return name


def of_process(pid: str) -> dict[str, Callable[[], object]]:
    number = int(pid) if pid == "1" else 0
    return {
        "status": partial(status, pid),
        "limits": partial(limits, number),
        "scheduling": partial(scheduling, number),
        "session": partial(os.getsid, number),
        "groups": lambda: re.sub(r"sandboxd-\w+", "", read(f"/proc/{pid}/cgroup")),
        "autogroup": lambda: read(f"/proc/{pid}/autogroup").rpartition(" ")[2],
        **{
            name: partial(read, f"/proc/{pid}/{name}")
            for name in ("oom_score_adj", "timerslack_ns", "personality", "coredump_filter")
        },
    }


for pid in ("1", "self"):
    for name, look in of_process(pid).items():
        note(f"{name} of {pid}", look)
note("processes", processes)
note("environment", lambda: sorted(os.environ.items()))
note("directory", os.getcwd)
note("mask", lambda: os.umask(0o022))
note("signals", lambda: [str(signal.getsignal(each)) for each in range(1, 65) if each not in (32, 33)])
note("descriptors", descriptors)
note("mounts", mounts)
for root in (os.environ["TMPDIR"], "/dev"):
    note(f"tree {root}", partial(tree, root))
    note(f"touched {root}", partial(touched, root))
for name in ("shm", "sem", "msg"):
    note(name, partial(read, f"/proc/sysvipc/{name}"))
note("queue", lambda: queue(b"left"))
for name in ("dev", "snmp", "snmp6", "ip6_flowlabel", "unix", "igmp", "igmp6", "arp", "route", "ipv6_route", "if_inet6"):
    note(f"net {name}", partial(read, f"/proc/net/{name}"))
for name in ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "icmp", "icmp6", "packet", "netlink"):
    note(f"net {name}", partial(lines, f"/proc/net/{name}"))
note("sockets", lambda: read("/proc/net/sockstat").splitlines()[0])
note("metrics", lambda: read("/proc/net/netstat"))
for root in ("/proc/sys/net", "/proc/sys/user", "/proc/sys/fs/mqueue", "/proc/sys/kernel"):
    for directory, _, names in os.walk(root):
        for name in names:
            if not directory.endswith("random") and name not in ("ns_last_pid", "nr"):
                note(f"{directory}/{name}", partial(read, f"{directory}/{name}"))
note("names", lambda: os.uname().nodename)
note("keys", lambda: [line for line in read("/proc/keys").splitlines() if "_uid" not in line])  # those are the host's
note("terminal", terminal)
json.dump(state, sys.stdout)
