# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes that boxes come from: zygote -> template -> box. All are this one program, forked.

zygote    an interpreter started by the daemon, of one thread and with an empty environment. It only forks templates.
template  one for each set of mounts: a user and a mount namespace with everything mounted that boxes can share, and the
          network namespace of its next box.
box       one for each command: process 1 of namespaces of its own, with a /proc, /tmp … of its own, restricted, and then
          asleep until its command comes (`zygote_box`).

Each has a SEQPACKET socket to the daemon. The end of that socket is the end of the daemon: the zygote then ends, and by the
parent-death signal its templates and their boxes; a box also looks at its own socket.

To the daemon: `P pid` a box that has its copy of the template's mounts, with a pidfd · `R` ready, with what was seen ·
else the lines of `child`, where a box that has said how its command ended shuts its side down, and stays until the daemon
closes the other: its tear-down then delays nobody.

A box that says `R again` can take more commands, all of one session. The order of each then brings a socket of its own, for
the lines of `child`, signals, and the end; and on its first one the box says afterwards `A` when it is as it was before the
command, else `N what`, and then takes no more.

Interpreter state is shared by fork, so everything that a command's start needs is imported, and run once, beforehand.
"""

import _ctypes
import _signal  # type: ignore[import-not-found]  # as in child
import _socket
import gc
import posix
import select

from sandboxd.isolation import child, wire
from sandboxd.isolation import zygote_mounts as mounts
from sandboxd.isolation.child import Failure, call
from sandboxd.isolation.zygote_box import box, die_with_parent, map_ids, tell

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
CLONE_PIDFD = 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
CHANGED = "what the sandbox is built from was replaced meanwhile; run the command again"


class c_int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # as in child
    _type_ = "i"


def main(config: dict) -> None:  # type: ignore[type-arg]  # {"socket": fd}
    """The zygote's life; does not return."""
    child.call("prctl", child.PR_SET_DUMPABLE, 0, 0, 0, 0, step="dumpable")
    for number in (child.HUP, child.INT, child.QUIT, child.TERM, child.CHLD):
        _signal.signal(number, _signal.SIG_IGN)  # ignoring CHLD lets the kernel reap
    child.close_others([config["socket"]])
    sock = _socket.socket(fileno=config["socket"])
    gc.disable()
    gc.collect()
    gc.freeze()
    me = posix.getpid()
    while True:
        message = wire.receive(sock)
        if message is None:
            posix._exit(0)
        value, fds = message
        try:
            pid = posix.fork()
        except OSError as error:
            tell(fds[0], f"F no process for a template: {error.strerror}")
            pid = -1
        if pid == 0:
            template(value, fds[0], me)
        for fd in fds:
            posix.close(fd)


def template(config: dict, fd: int, parent: int) -> None:  # type: ignore[type-arg]  # see native.template_config
    """A template's life; does not return."""
    try:
        child.close_others([fd])
        sock = _socket.socket(fileno=fd)
        proc = posix.open("/proc", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        become(config["uid"], config["gid"])
        die_with_parent(parent)
        posix.umask(config["umask"])
        call("syscall", mounts.SYS_UNSHARE, NEWUSER | NEWNS, step="user and mount namespace")
        map_ids(proc, config["uid"], config["gid"])
        builder = mounts.Builder()
        builder.start()
        builder.apply(config["steps"])
        builder.enter()
        watch = posix.open("/proc/self/mounts", posix.O_RDONLY | posix.O_CLOEXEC)
        found = tuple(builder.seen)
        wire.tell(sock, " ".join(("R", *(f"{device}:{inode}" for device, inode in found))), (watch,))
        posix.close(watch)
        boxes = Boxes(config, proc, found)
        while True:
            message = wire.receive(sock)
            if message is None:
                break
            boxes.make(*message)
            boxes.look_ahead()
    except (Failure, OSError) as error:
        tell(fd, f"F {error}")
        posix._exit(1)
    sock.close()
    try:  # boxes that run on need a parent: their parent-death signal would end them
        posix.wait4(-1, 0)
    except ChildProcessError:
        pass
    posix._exit(0)


def become(uid: int, gid: int) -> None:
    """Turn a root daemon's process into the box's user."""
    if (uid, gid) != (posix.geteuid(), posix.getegid()):
        posix.setgroups([])
        posix.setresgid(gid, gid, gid)
        posix.setresuid(uid, uid, uid)


class Boxes:
    """Makes a template's boxes.

    A box's network namespace is the template's own, which then goes on to a new one: the kernel takes half a millisecond to
    make it, for which no command waits. So it belongs to the template's user namespace, and in the box nobody has rights over
    it, not even before the capabilities are given up.
    """

    def __init__(self, config: dict, proc: int, seen: tuple) -> None:  # type: ignore[type-arg]  # see native.template_config
        self._config, self._proc, self._seen = config, proc, seen
        self._mounts = select.poll()
        self._mounts.register(posix.open("/proc/self/mounts", posix.O_RDONLY | posix.O_CLOEXEC), select.POLLPRI)
        self._changed = False  # the template stays even then: its end would be that of boxes that run
        self._alone = False  # whether no box has this process's network namespace

    def make(self, value: tuple, fds: list) -> None:  # type: ignore[type-arg]  # of int
        """Clone one box. `value` is (what the daemon sees at the watched paths now, or None; whether nobody waits for the
        box); fds: its socket, its control groups."""
        said = fds[0]
        try:
            if self._has_changed() or (value[0] is not None and value[0] != self._seen):
                raise Failure(CHANGED)
            if self._config["own_network"]:
                self._enter_network()
            pidfd = c_int(-1)
            flags = child.CHLD | CLONE_PIDFD | NEWUSER | NEWNS | NEWPID | NEWIPC | NEWUTS | NEWCGROUP
            pid = call("syscall", mounts.SYS_CLONE, flags, 0, _ctypes.byref(pidfd), 0, 0, step="namespaces of a box")
            if pid == 0:
                box(self._config, self._proc, fds, value[1])
            self._alone = False
            fd = int(pidfd.value)
            if self._has_changed():  # perhaps before the box had got its copy of them
                posix.kill(pid, child.KILL)
                posix.close(fd)
                raise Failure(CHANGED)
            try:
                wire.tell(_socket.socket(fileno=posix.dup(said)), f"P {pid}", (fd,))
            except OSError:
                pass  # the daemon has given this box up
            posix.close(fd)
        except (Failure, OSError) as error:
            tell(said, f"F {error}")
        for fd in fds:
            posix.close(fd)

    def look_ahead(self) -> None:
        """Have a network namespace for the next box; where there is none, that box tells why."""
        try:
            if self._config["own_network"]:
                self._enter_network()
        except (Failure, OSError):
            pass

    def _enter_network(self) -> None:
        if not self._alone:
            call("syscall", mounts.SYS_UNSHARE, NEWNET, step="network namespace")
            loopback_up()
            self._alone = True

    def _has_changed(self) -> bool:
        if self._mounts.poll(0):  # tells once; whoever is asked for next would copy the same lack
            self._changed = True
        return self._changed


def loopback_up() -> None:
    with_name = bytearray(b"lo".ljust(16, b"\0") + IFF_UP.to_bytes(2, "little") + bytes(22))  # struct ifreq
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    call("ioctl", sock.fileno(), SIOCSIFFLAGS, bytes(with_name), step="loopback")
    sock.close()
