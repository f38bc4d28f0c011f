# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of a box: process 1 of namespaces of its own, which it makes into what a command may have, and then waits for one.

What it tells the daemon stands in `zygote`, which clones it; what follows a command's start is `child`'s work. A box for which
nobody waits goes the way of a command once before it says that it is ready.

Runs in the zygote's children: built-in modules only, imported beforehand.
"""

import _socket
import posix
import resource  # posix.wait4 needs it for its result, and would else import it in each box after its command

from sandboxd.isolation import child, wire
from sandboxd.isolation import zygote_again as again
from sandboxd.isolation import zygote_mounts as mounts
from sandboxd.isolation.child import Failure, call

PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
CAPABILITY_V3 = 0x20080522
NOFILE, ENOUGH = 7, 512  # RLIMIT_NOFILE; above this many every descriptor of a box has room
NOTHING = child.c_long(0)
CAPABILITIES = tuple([child.c_long(number) for number in range(64)])  # made once: each box goes through them


def box(config: dict, proc: int, fds: list, spare: bool) -> None:  # type: ignore[type-arg]  # as Boxes.make
    """A box's life; does not return. A `spare` one gets ready without pushing others from their processor."""
    status, *groups = fds
    waits, spare = spare, spare and posix.sched_getscheduler(0) == posix.SCHED_OTHER
    seen = None
    try:
        if spare:
            posix.sched_setscheduler(0, posix.SCHED_BATCH, posix.sched_param(0))
        child.close_others([proc, *fds])
        sock = _socket.socket(fileno=status)
        child.join_groups(tuple(groups))
        map_ids(proc, config["uid"], config["gid"])
        forbid_namespaces(proc)
        for fd in (proc, *groups):
            posix.close(fd)
        die_with_parent(0)
        posix.setsid()
        drop_bounding()
        mounts.fresh(config["fresh"])
        watch = posix.open("/proc/self/mounts", posix.O_RDONLY | posix.O_CLOEXEC)
        child.limit(tuple(each for each in config["rlimits"] if not _waits(each)))
        if spare:  # before the filter, which may forbid it
            posix.sched_setscheduler(0, posix.SCHED_OTHER, posix.sched_param(0))
        rules = child.make_rules(*config["landlock"]) if config["landlock"] is not None else -1
        if waits and config["again"]:
            seen = again.watch_for(config["fresh"])
        if not config["late"]:
            close_up(config, rules)
        wakeup = child.listen()
        if waits:  # for a command that is there already it would only be a delay
            rehearse(config, wakeup)
        before = child.names(config["private"])
        if seen is not None and seen.begin():
            seen = None
        wire.tell(sock, "R again" if seen is not None else "R", (watch,))
        if seen is None:  # else the next descriptor would get a lower number than when it looked
            posix.close(watch)
    except (Failure, OSError) as error:
        tell(status, f"F {error}")
        posix._exit(1)
    try:
        said = command(config, sock, rules, wakeup, before, seen)
        while said != status:
            posix.close(said)  # which is the end of that command
            left = seen.left() if seen is not None else "nothing to look by"
            tell(status, f"N {left}" if left else "A")
            if left:
                break
            said = command(config, sock, rules, wakeup, before, seen)
        sock.shutdown(_socket.SHUT_WR)
        while posix.read(status, 64):
            pass  # a signal that came too late
    except OSError:
        pass  # the daemon has gone
    posix._exit(0)


def command(config: dict, sock: "_socket.socket", rules: int, wakeup: int, before: set, seen: "again.Watch | None") -> int:  # type: ignore[type-arg]  # see box
    """Wait for an order, and run it to its end, which is reported on the descriptor that is returned. Raises OSError."""
    status = sock.fileno()
    try:
        message = wire.receive(sock)
        if message is None:
            posix._exit(0)
        asked = order(config, *message)
        if config["late"]:
            mounts.guard(asked["guard"])
            close_up(config, rules)
        pid = begin(asked)
    except (Failure, OSError) as error:
        tell(status, f"F {error}")
        posix._exit(1)
    said = asked["said"] if asked["said"] >= 0 else status
    tell(said, "S")
    if seen is None:
        child.close_streams(asked)
    else:
        seen.close_streams(asked)
    end = child.serve(pid, posix.getpgrp() if asked["tty"] else pid, said, wakeup)
    if not end:
        posix._exit(1)
    end_all()
    left = set() if seen is not None and seen.untouched() else child.names(config["private"]) - before
    child.report(said, end, left)
    return int(said)


def close_up(config: dict, rules: int) -> None:  # type: ignore[type-arg]  # see native.template_config
    """The last of what is taken away: after this the process can do no more than the command may."""
    if rules >= 0:
        child.apply_rules(rules)
    header = CAPABILITY_V3.to_bytes(4, "little") + bytes(4)
    call("syscall", mounts.SYS_CAPSET, header, bytes(24), step="capabilities")
    child.load_filter(config["seccomp"])


def order(config: dict, value: dict, fds: list) -> dict:  # type: ignore[type-arg]  # as child.config
    """What the daemon asks for, as `child` reads it."""
    said = fds.pop() if value["again"] else -1
    stdin, stdout, stderr, *report = fds
    return {
        **value,
        "stdio": (stdin, stdout, stderr),
        "received": fds,
        "said": said,
        "report": report[0] if report else -1,
        "limits": tuple(each for each in config["rlimits"] if _waits(each)),
        "contained": True,
    }


def _waits(limit: tuple) -> bool:  # type: ignore[type-arg]  # as child.limit
    """Whether a limit is set with the command: the descriptors that come with it may lie above a low one of open files."""
    return bool(limit[0] == NOFILE and limit[1] < ENOUGH)


def begin(asked: dict) -> int:  # type: ignore[type-arg]  # see order
    """Start the command; its pid."""
    child.take_streams(asked)
    for fd in asked["received"]:
        posix.close(fd)
    if asked["tty"]:
        child.take_terminal()
    child.limit(asked["limits"])
    child.enter(asked["cwd"])
    return child.spawn(asked)


def rehearse(config: dict, wakeup: int) -> None:  # type: ignore[type-arg]  # see native.template_config
    """Go the way of a command once, from its order to its end, with a program that does not exist.

    The pages that this writes are then this process's own; each would cost the first command a page fault.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    value = {"argv": ("bash", "-c", "x" * 512), "env": {f"NAME_{each}": "x" * 32 for each in range(32)}, "cwd": "/"}
    wire.send(ours, {**value, "tty": False, "again": False, "guard": (), "programs": ("/.absent",), "report_at": 0}, (0, 1, 2))
    message = wire.receive(theirs)
    ours.close()
    try:
        if message is not None:
            begin({**order(config, *message), "limits": ()})
    except Failure:
        pass
    said = theirs.fileno()
    tell(said, "S")
    child.serve(0, 0, said, wakeup)  # returns at once: nobody is at the other end
    child.reap(0)
    try:
        posix.read(wakeup, 512)  # told of the program that did not start
    except BlockingIOError:
        pass
    end_all()
    null = posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC)
    child.report(null, (0, resource.getrusage(resource.RUSAGE_SELF)), child.names(config["private"]) - {"x"})
    posix.close(null)
    theirs.close()


def end_all() -> None:
    """Kill whatever the command left running, and wait until the kernel has none of it left."""
    try:
        posix.kill(-1, child.KILL)  # everything in this pid namespace but its first process; also what forks just now
    except OSError:
        pass  # nobody; or the last one asked was just going, which says nothing of the others (kill_something_info)
    while True:
        try:
            posix.wait4(-1, 0)
        except ChildProcessError:
            return


def die_with_parent(parent: int) -> None:
    """After `become`, which would undo it."""
    call("prctl", PR_SET_PDEATHSIG, child.KILL, 0, 0, 0, step="parent-death signal")
    if parent and posix.getppid() != parent:
        posix._exit(1)


def map_ids(proc: int, uid: int, gid: int) -> None:
    """The same ids inside as outside. `proc` is the host's, through which a process can write its own maps once."""
    call("prctl", child.PR_SET_DUMPABLE, 1, 0, 0, 0, step="dumpable")  # else these files belong to root
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = posix.open(f"self/{name}", posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=proc)
        posix.write(fd, text.encode())
        posix.close(fd)
    call("prctl", child.PR_SET_DUMPABLE, 0, 0, 0, 0, step="dumpable")


def forbid_namespaces(proc: int) -> None:
    """No user namespace below this one, even if a way past the filter were found. Only right after it was made.

    The tables below /proc/sys/user are those of the user namespace of whoever opens them (kernel/ucount.c), so this is the
    box's own, and the host's is another.
    """
    fd = posix.open("sys/user/max_user_namespaces", posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=proc)
    posix.write(fd, b"0")
    posix.close(fd)


def drop_bounding() -> None:
    """Empty the bounding set: nothing started from here can gain a capability, not even as uid 0."""
    prctl, drop = child.functions["prctl"], child.c_long(PR_CAPBSET_DROP)
    for number in CAPABILITIES:
        if int(prctl(drop, number, NOTHING, NOTHING, NOTHING)) & child.FAILED == child.FAILED:
            return  # the kernel knows no more


def tell(fd: int, line: str) -> None:
    """A line on a socket, if anybody is there."""
    try:
        posix.write(fd, f"{line}\n".encode("utf-8", "replace"))
    except OSError:
        pass
