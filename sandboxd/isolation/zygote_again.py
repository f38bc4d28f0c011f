# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a command left anything in its box. There is no cleaning: a box in which anything differs is not used again.

Process 1 looks when it has killed and reaped everything: at each file system that is the box's own, at the objects of its
IPC namespace, at the sockets and counters of its network namespace, and at itself, since a command of the same user can
renice it, limit it, or choose its processors. What nobody but a process can hold (locks, timers, open files, memory) went
with the processes; what the filter or a read-only mount forbids cannot have changed. docs/threat-model.md has the whole list.

All is opened before the filter is loaded and the first command comes, and read again from there: 60 µs.

Runs in process 1: built-in modules only.
"""

import _ctypes
import posix

from sandboxd.isolation import zygote_mounts as mounts
from sandboxd.isolation.child import Failure, c_long, call

AARCH64 = mounts.AARCH64
SYS_SCHED_GETATTR, SYS_IOPRIO_GET, IOPRIO_WHO_PROCESS = 275 if AARCH64 else 315, 31 if AARCH64 else 252, 1
CLOEXEC, DIRECTORY = posix.O_CLOEXEC, posix.O_DIRECTORY
# Of /proc: what a kernel must have, and what one without IPv6 lacks. net/snmp* count also what failed before it was sent.
NEEDED = ("sysvipc/shm", "sysvipc/sem", "sysvipc/msg", "self/limits", "net/dev", "net/snmp")
OPTIONAL = ("net/snmp6", "net/ip6_flowlabel")
# Of /proc/self/status: what changes by itself.
VARIES = (b"Vm", b"Rss", b"State:", b"FDSize:", b"HugetlbPages:", b"voluntary_ctxt", b"nonvoluntary_ctxt")
ROOM = 1 << 16


class Attributes(_ctypes.Array):  # type: ignore[type-arg]  # struct sched_attr, as plain words
    _type_ = c_long
    _length_ = 8


def watch_for(fresh: tuple) -> "Watch | None":  # type: ignore[type-arg]  # see mountsteps
    """Where that cannot be seen for certain there is None, and the box is for one command."""
    try:
        return Watch(fresh)
    except (Failure, OSError):
        return None


class Watch:
    """What a box is like before its first command. Raises Failure or OSError."""

    def __init__(self, fresh: tuple) -> None:  # type: ignore[type-arg]  # see mountsteps
        self._null = posix.open("/dev/null", posix.O_RDWR | CLOEXEC)
        self._files = [(name, posix.open(f"/proc/{name}", CLOEXEC)) for name in NEEDED]
        for name in OPTIONAL:
            try:
                self._files.append((name, posix.open(f"/proc/{name}", CLOEXEC)))
            except FileNotFoundError:
                pass
        self._status = posix.open("/proc/self/status", CLOEXEC)
        self._sockets = posix.open("/proc/net/sockstat", CLOEXEC)
        queues = mounts.file_system(b"mqueue", (), 0)  # a view of this box's queues, mounted nowhere
        self._trees = [("message queues", posix.open(".", DIRECTORY | CLOEXEC, dir_fd=queues))]
        posix.close(queues)
        for step in fresh:
            if step[0] != "proc":
                self._trees.append((step[1], posix.open(step[1], DIRECTORY | CLOEXEC)))
        multiplexers = [f"{step[1]}/ptmx" for step in fresh if step[0] == "pts"]
        self._nodes = [(path, posix.open(path, mounts.PATH | CLOEXEC)) for path in multiplexers]
        self._before: dict = {}  # type: ignore[type-arg]  # see _look

    def begin(self) -> str:
        """Take what there is now for what there must be after each command; as `left`."""
        try:
            self._before = self._look()
        except (Failure, OSError) as error:
            return f"it cannot be looked at: {error}"
        return self.left()

    def left(self) -> str:
        """What is not as it was, "" when everything is."""
        try:
            posix.chdir("/")
            after = self._look()
        except (Failure, OSError) as error:
            return f"it cannot be looked at: {error}"
        return ", ".join(name for name, value in self._before.items() if after[name] != value)

    def untouched(self) -> bool:
        """Whether nothing was made or removed in the file systems that are the box's own: quicker than to list them."""
        return all(_identity(fd) == self._before[name][0] for name, fd in self._trees)

    def close_streams(self, config: dict) -> None:  # type: ignore[type-arg]  # see box.child_config
        """As `child.close_streams`; the numbers stay in use, so that no descriptor of a later order gets one of them."""
        for fd in (0, 1, 2):
            posix.dup2(self._null, fd, False)
        if config["report"] >= 0:
            posix.close(config["report_at"])

    def _look(self) -> dict:  # type: ignore[type-arg]  # name -> what is there, of any type
        found: dict = {name: posix.pread(fd, ROOM, 0) for name, fd in self._files}  # type: ignore[type-arg]  # likewise
        status = posix.pread(self._status, ROOM, 0).split(b"\n")
        found["process 1"] = [line for line in status if not line.startswith(VARIES)]
        found["sockets"] = posix.pread(self._sockets, ROOM, 0).partition(b"\n")[0]  # the next lines count the machine's
        for name, fd in self._trees:
            found[name] = (_identity(fd), posix.listdir(fd), posix.listxattr(fd), posix.fstatvfs(fd))
        for name, fd in self._nodes:
            found[name] = _identity(fd)
        found["scheduling"] = _scheduling()
        lowest = posix.dup(self._null)  # the lowest free number: another one when a descriptor was left open
        posix.close(lowest)
        found["descriptors"] = lowest
        return found


def _identity(fd: int) -> tuple:  # type: ignore[type-arg]  # of int
    """What stat tells but the time of access, which listing a directory sets; setting it by hand changes st_ctime too."""
    status = posix.fstat(fd)
    return (*status[:7], status.st_mtime_ns, status.st_ctime_ns)


def _scheduling() -> tuple:  # type: ignore[type-arg]  # of bytes, int, set
    """Policy, niceness, slice and clamps (sched_setattr(2)), class of input and output, processors."""
    attributes = Attributes()
    call("syscall", SYS_SCHED_GETATTR, 0, _ctypes.byref(attributes), 64, 0, step="scheduling of process 1")
    priority = call("syscall", SYS_IOPRIO_GET, IOPRIO_WHO_PROCESS, 0, step="I/O priority of process 1")
    return (bytes(attributes), priority, posix.sched_getaffinity(0))
