# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside a box and tries what must not work there; prints {probe: errno name, or what it saw} as JSON.

The first thing it does is to make sure that it is in a box: with a writable root it stops. Only the standard library;
argv: a JSON dictionary of paths and numbers that the test prepared on the host.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import pty
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
results: dict[str, str] = {}
CALLS: tuple[tuple[str, int, int, tuple[int | bytes, ...]], ...]
X86 = os.uname().machine == "x86_64"
CLONE_NEWUSER = 0x10000000

if not os.statvfs("/").f_flag & os.ST_RDONLY:
    sys.exit("the root of this box is writable: nothing is tried")


def probe(name: str, action: Callable[[], object]) -> None:
    """Note how `action` ended: the name of its errno, or what it returned, or `done`."""
    try:
        value = action()
    except OSError as error:
        results[name] = errno.errorcode.get(error.errno or 0, str(error))
    except Exception as error:
        results[name] = repr(error)
    else:
        results[name] = "done" if value is None else str(value)


def raw(x86: int, arm: int, *args: int | bytes) -> int:
    """Make a system call by number; raises OSError."""
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in args]
    result = libc.syscall(ctypes.c_long(x86 if X86 else arm), *values)
    if result == -1:
        raise OSError(ctypes.get_errno(), "syscall")
    return int(result)


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def appended(path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write("x")


def sent_to(kind: int) -> None:
    one, _ = socket.socketpair(socket.AF_UNIX, kind)
    one.sendto(b"x", given["socket"])


def connected(family: int, address: str | tuple[str, int]) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect(address)


def loopback() -> str:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
    with socket.create_connection(server.getsockname(), timeout=5) as client:
        return client.recv(5).decode()


def injected(request: int) -> None:
    main, _ = pty.openpty()
    libc_ioctl = libc.ioctl(main, ctypes.c_ulong(request), b"x")
    if libc_ioctl == -1:
        raise OSError(ctypes.get_errno(), "ioctl")


def init_descriptors() -> str:
    """The kinds of errors met when opening what process 1 holds."""
    met = set()
    for name in os.listdir("/proc/1/fd"):
        try:
            opened(f"/proc/1/fd/{name}", os.O_RDONLY | os.O_NONBLOCK)
            met.add("opened")
        except OSError as error:
            met.add(errno.errorcode[error.errno or 0])
    return " ".join(sorted(met))


def descriptors() -> str:
    kinds = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode & 0o170000
        except OSError:
            continue  # the listing's own
        kinds.add({0o010000: "pipe", 0o020000: "device", 0o100000: "file", 0o040000: "directory"}.get(mode, oct(mode)))
    return " ".join(sorted(kinds))


def reopened() -> None:
    fd = os.open(given["file"], os.O_RDONLY)
    opened(f"/proc/self/fd/{fd}", os.O_WRONLY)


def status(key: str) -> str:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(line.split()[1] for line in lines if line.startswith(key + ":"))


def renamed(source: str) -> None:
    os.rename(source, source + "-moved")


for name in ("vm/swappiness", "kernel/core_pattern", "kernel/modprobe"):
    probe(f"sysctl {name}", partial(opened, f"/proc/sys/{name}", os.O_WRONLY))
for name in ("irq/default_smp_affinity", "mtrr", "pressure/cpu", "acpi/wakeup", "scsi/scsi", "bus/pci/00/00.0", "fs/nfsd/x"):
    probe(f"proc {name}", partial(opened, f"/proc/{name}", os.O_WRONLY))
probe("proc mounts", lambda: opened("/proc/self/attr/current", os.O_WRONLY))
probe("sys", lambda: opened("/sys/kernel/mm/transparent_hugepage/enabled", os.O_WRONLY))
probe("sysrq", lambda: opened("/proc/sysrq-trigger", os.O_WRONLY))
probe("cgroup", lambda: os.mkdir("/sys/fs/cgroup/pids/x"))
probe("proc 1 environ", lambda: read("/proc/1/environ"))
probe("proc 1 memory", lambda: opened("/proc/1/mem", os.O_RDWR))
probe("proc 1 descriptors", init_descriptors)
probe("descriptor 7", lambda: os.write(7, b"x"))
probe("descriptors", descriptors)
probe("reopened", reopened)
probe("fifo", lambda: opened(given["fifo"], os.O_WRONLY | os.O_NONBLOCK))
probe("tiocsti", lambda: injected(0x5412))
probe("tiocsti high bits", lambda: injected(0x1_0000_5412))
probe("tioclinux", lambda: injected(0x541C))
probe("environment", lambda: " ".join(sorted(name for name in os.environ if name.startswith(("MY_", "BASH_", "LD_")))))
probe("capabilities", lambda: status("CapEff"))
probe("bounding", lambda: status("CapBnd"))
probe("no new privileges", lambda: status("NoNewPrivs"))
probe("filter", lambda: status("Seccomp"))
probe("ids", lambda: f"{os.getuid()} {os.getgid()}")

CALLS = (
    ("io_uring_setup", 425, 425, (1, 0)),
    ("ptrace", 101, 117, (0, 0, 0, 0)),
    ("process_vm_readv", 310, 270, (1, 0, 0, 0, 0, 0)),
    ("keyctl", 250, 219, (0, -3, 0)),
    ("add_key", 248, 217, (0, 0, 0, 0, 0)),
    ("bpf", 321, 280, (0, 0, 0)),
    ("userfaultfd", 323, 282, (0,)),
    ("perf_event_open", 298, 241, (0, 0, -1, -1, 0)),
    ("mount", 165, 40, (b"none", b"/mnt", b"tmpfs", 0, 0)),
    ("umount2", 166, 39, (b"/proc", 2)),
    ("open_tree", 428, 428, (-100, b"/", 1)),
    ("fsopen", 430, 430, (b"tmpfs", 0)),
    ("pivot_root", 155, 41, (b".", b".")),
    ("chroot", 161, 51, (b"/",)),
    ("unshare user", 272, 97, (0x10000000,)),
    ("unshare mount", 272, 97, (0x20000,)),
    ("setns", 308, 268, (0, 0)),
    ("open_by_handle_at", 304, 265, (-1, 0, 0)),
    ("pidfd_getfd", 438, 438, (-1, 0, 0)),
    ("swapon", 167, 224, (b"/x", 0)),
    ("reboot", 169, 142, (0, 0, 0, 0)),
    ("clone user", 56, 220, (0x10000011, 0, 0, 0, 0)),
    ("clone3", 435, 435, (0, 0)),
)  # fmt: skip
for name, x86, arm, args in CALLS:
    probe(f"call {name}", partial(raw, x86, arm, *args))
if X86:
    probe("call x32", lambda: raw(0x40000000 + 39, 0))

probe("socket unix", lambda: connected(socket.AF_UNIX, given["socket"]))
probe("socket abstract", lambda: connected(socket.AF_UNIX, "\0" + given["abstract"]))
probe("socket vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
probe("socket packet", lambda: socket.socket(17, socket.SOCK_RAW))
probe("socket alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
probe("netlink route", lambda: socket.socket(16, socket.SOCK_RAW, 0).family)
probe("netlink audit", lambda: socket.socket(16, socket.SOCK_RAW, 9).family)
probe("pair stream", lambda: len(socket.socketpair()))
probe("pair datagram", lambda: sent_to(socket.SOCK_DGRAM))
probe("route out", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9)))
probe("route out 6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(("2001:db8::1", 9)))
probe("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
probe("connect out", lambda: connected(socket.AF_INET, ("192.0.2.1", 80)))
probe("loopback", loopback)

probe("write outside", lambda: opened(given["outside"], os.O_WRONLY))
probe("create outside", lambda: opened(os.path.dirname(given["outside"]) + "/new", os.O_WRONLY | os.O_CREAT))
probe("chmod outside", lambda: os.chmod(given["outside"], 0o777))
probe("utime outside", lambda: os.utime(given["outside"]))
probe("xattr outside", lambda: os.setxattr(given["outside"], "user.x", b"x"))
probe("truncate outside", lambda: os.truncate(given["outside"], 0))
probe("unlink outside", lambda: os.unlink(given["outside"]))
probe("link in", lambda: os.link(given["outside"], given["workspace"] + "/linked"))
probe("device", lambda: os.mknod(given["workspace"] + "/dev", 0o20666, os.makedev(1, 3)))
probe("write workspace", lambda: appended(given["workspace"] + "/new"))
probe("write /tmp", lambda: appended("/tmp/new"))
probe("write TMPDIR", lambda: appended(os.environ["TMPDIR"] + "/new"))
probe("write shm", lambda: appended("/dev/shm/new"))
probe("write null", lambda: opened("/dev/null", os.O_WRONLY))
probe("write run", lambda: appended("/run/new"))
probe("write dev", lambda: appended("/dev/new"))
for path in given["protected"]:
    probe(f"protected {path}", partial(appended, f"{given['workspace']}/{path}"))
probe("rename above protected", lambda: renamed(given["workspace"] + "/sub"))
probe("rename git", lambda: renamed(given["workspace"] + "/.git"))
probe("remove git", lambda: os.rmdir(given["workspace"] + "/.git/hooks"))
for path in given["secrets"]:
    probe(f"secret {path}", partial(read, path))
    probe(f"secret mode {path}", partial(os.chmod, path, 0o777))
probe("list secrets", lambda: os.listdir(given["home"] + "/.ssh"))

probe("shared memory", lambda: raw(29, 194, given["shm_key"], 0, 0))
probe("kill host", lambda: os.kill(given["host_pid"], 0))
probe("processes", lambda: len([name for name in os.listdir("/proc") if name.isdigit()]) < 10)
probe("host name", lambda: raw(170, 161, b"x", 1))
probe("core limit", lambda: resource.getrlimit(resource.RLIMIT_CORE)[0])
probe("raise limit", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20)))
probe("signal to init", lambda: os.kill(1, signal.SIGKILL))
probe("lease", lambda: fcntl.fcntl(os.open(given["file"], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK))
json.dump(results, sys.stdout)
