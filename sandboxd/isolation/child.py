# SPDX-License-Identifier: GPL-3.0-or-later
"""Process 1 of a box: the last code before the command, and its parent while it runs.

It runs inside all namespaces, without capabilities and under the system call filter, by whatever python3 (3.9 or later)
the box can see: so it imports only built-in and extension modules, and comes as compiled code with its configuration
(see `interpreter`). It closes what it inherited, sets limits and Landlock, starts the shell, passes signals on, reaps,
and reports how the shell ended, so that `exit 143` and a SIGTERM differ and a failed set-up is not taken for the
command's failure. When its control pipe ends (the daemon is gone), it ends, and with process 1 all of its pid namespace.

Where there are no namespaces (`contained` is False) it stays outside of Landlock and the filter, which the command alone gets:
so the command cannot signal it. Orphans come to it, and it ends them all.

Status pipe: `S` started · `F reason` set-up failed · `L count path…` left in private directories, in hexadecimal ·
`X code signal user_us system_us max_rss_kib` ended; a line each.
Control pipe: each byte is a signal number for the command's process group; end of file = end the box. With `wait` a zero
comes first, when the box is in its control groups.
"""

import _ctypes
import _signal  # type: ignore[import-not-found]  # no stub; `signal` itself would first import enum, for 1 ms
import posix
import select

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SYS_CLOSE_RANGE = 436  # this and the next four: the same numbers on every architecture
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT, RULE_PATH_BENEATH = 444, 445, 446, 1
TIOCSCTTY = 0x540E
HUP, INT, QUIT, PIPE, TERM, CHLD, XFSZ = 1, 2, 3, 13, 15, 17, 25
FAILED = 0xFFFFFFFF  # -1 in the 32 bits of a C int
KILL, MAX_LEFT, GO = 9, 8, b"\0"


class c_long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # ctypes itself would cost 2 ms of imports
    _type_ = "l"


class c_char_p(_ctypes._SimpleCData):  # type: ignore[type-arg]  # as above
    _type_ = "z"


class Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = c_long


class Failure(Exception):
    """Set-up cannot go on; the text is for the person who asked for the command."""


_libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None is the program itself, as in ctypes.CDLL(None)
functions = {name: Function(_ctypes.dlsym(_libc, name)) for name in ("syscall", "prctl", "setrlimit", "ioctl")}


def call(name: str, *arguments: object, step: str = "") -> int:
    """Call a C function with integers and bytes. Raises Failure naming `step` when it says -1; without a step never."""
    values = [c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(functions[name](*values)) & FAILED
    if result == FAILED and step:
        raise Failure(f"{step}: {posix.strerror(_ctypes.get_errno())}")
    return result


def close_others(keep: list) -> None:  # type: ignore[type-arg]  # of int; evaluated by old interpreters
    """Close every descriptor above 2 that is not in `keep`."""
    low = 3
    for fd in sorted(set(keep)):
        if low < fd:
            call("syscall", SYS_CLOSE_RANGE, low, fd - 1, 0, step="close_range")
        low = fd + 1
    call("syscall", SYS_CLOSE_RANGE, low, FAILED, 0, step="close_range")


def restrict(attr: bytes, rules: tuple) -> None:  # type: ignore[type-arg]  # of (path, rights of a directory, of a file)
    """Put this process, and so everything it starts, under a Landlock ruleset."""
    apply_rules(make_rules(attr, rules))


def make_rules(attr: bytes, rules: tuple) -> int:  # type: ignore[type-arg]  # of (path, rights of a directory, of a file)
    """A Landlock ruleset for what these paths are now."""
    ruleset = call("syscall", SYS_LANDLOCK_CREATE, attr, len(attr), 0, step="landlock ruleset")
    for path, directory, file in rules:
        try:
            fd = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
        except OSError:
            continue  # what is not there needs no right
        rights = directory if posix.fstat(fd).st_mode & 0o170000 == 0o040000 else file
        rule = rights.to_bytes(8, "little") + fd.to_bytes(4, "little")
        call("syscall", SYS_LANDLOCK_ADD, ruleset, RULE_PATH_BENEATH, rule, 0, step=f"landlock rule for {path}")
        posix.close(fd)
    return ruleset


def apply_rules(ruleset: int) -> None:
    """Put this process under a ruleset, which is closed."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, step="no_new_privs")
    call("syscall", SYS_LANDLOCK_RESTRICT, ruleset, 0, step="landlock")
    posix.close(ruleset)


def prepare(config: dict) -> None:  # type: ignore[type-arg]  # see box.child_config
    """Everything between the namespaces and the command. Raises Failure or OSError."""
    # The command runs as the same user: without this it could read and write process 1 through /proc/1.
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0, step="dumpable")
    join_groups(config["cgroups"])
    keep = [config["status"], config["control"]]
    for fd in keep:
        posix.set_inheritable(fd, False)
    take_streams(config)
    if config["report"] >= 0:
        keep.append(config["report_at"])
    close_others(keep)
    if config["tty"]:
        take_terminal()
    posix.umask(config["umask"])
    if config["contained"]:
        confine(config)
    else:
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, step="subreaper")


def join_groups(groups: tuple) -> None:  # type: ignore[type-arg]  # of descriptors
    """Go into the control groups behind these descriptors (of `cgroups.join`)."""
    for fd in groups:
        posix.write(fd, b"0")  # "0" is the writer itself, so no pid has to be known across namespaces


def take_streams(config: dict) -> None:  # type: ignore[type-arg]  # see box.child_config
    """Put the command's descriptors where it expects them."""
    for target, fd in enumerate(config["stdio"]):
        posix.dup2(fd, target)
    if config["report"] >= 0:
        posix.dup2(config["report"], config["report_at"])


def close_streams(config: dict) -> None:  # type: ignore[type-arg]  # see box.child_config
    """The ends of the command's pipes are its own: whoever reads them must see it close them."""
    for fd in (0, 1, 2, *((config["report_at"],) if config["report"] >= 0 else ())):
        posix.close(fd)


def take_terminal() -> None:
    """Make standard input the controlling terminal; only for the leader of a session that has none."""
    call("ioctl", 0, TIOCSCTTY, 0, step="controlling terminal")


def confine(config: dict) -> None:  # type: ignore[type-arg]  # see box.child_config
    """What holds for this process from here on, and for everything it starts. Raises Failure or OSError."""
    if config["landlock"] is not None:
        restrict(*config["landlock"])
    limit(config["rlimits"])
    enter(config["cwd"])
    if config["seccomp"] is not None:
        load_filter(config["seccomp"])


def limit(rlimits: tuple) -> None:  # type: ignore[type-arg]  # of (resource, soft, hard)
    """Set resource limits."""
    for resource, soft, hard in rlimits:
        call("setrlimit", resource, soft.to_bytes(8, "little") + hard.to_bytes(8, "little"), step=f"limit {resource}")


def enter(cwd: str) -> None:
    """Change to the command's directory, or say that it is not there."""
    try:
        posix.chdir(cwd)
    except OSError as error:
        raise Failure(f"cannot enter `{cwd}` inside the box: {error.strerror}") from None


def load_filter(program: bytes) -> None:
    """Put this process under a system call filter."""
    pointer = bytes(memoryview(c_char_p(program)).cast("B"))
    header = (len(program) // 8).to_bytes(8, "little") + pointer  # struct sock_fprog
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, step="no_new_privs")
    call("prctl", PR_SET_SECCOMP, 2, header, 0, 0, step="system call filter")


def spawn(config: dict) -> int:  # type: ignore[type-arg]  # see box.child_config
    """Start the command; its pid. Raises Failure.

    It gets a process group of its own. On a terminal it stays in this process's, which is the foreground group: a group
    of its own would be stopped when it reads before it is made that.
    """
    group: dict = {} if config["tty"] else {"setpgroup": 0}  # type: ignore[type-arg]  # of keywords, any
    reset = (HUP, INT, QUIT, PIPE, TERM, CHLD, XFSZ)  # Python, and this process, ignore some of them
    if not config["contained"]:
        return fork(config, reset)
    for path in config["programs"]:
        try:
            return posix.posix_spawn(path, config["argv"], config["env"], setsigmask=(), setsigdef=reset, **group)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Failure(f"cannot start {path}: {error.strerror}") from None
    raise Failure(f"there is none of {', '.join(config['programs'])}")


def fork(config: dict, reset: tuple) -> int:  # type: ignore[type-arg]  # see box.child_config
    """Start the command so that it alone is confined; its pid. Raises Failure with what went wrong in it before exec."""
    failure, said = posix.pipe2(posix.O_CLOEXEC)
    pid = posix.fork()
    if pid:
        posix.close(said)
        message = posix.read(failure, 4096)
        posix.close(failure)
        if message:
            raise Failure(message.decode("utf-8", "replace"))
        return pid
    try:
        posix.setpgid(0, 0)
        for number in reset:
            _signal.signal(number, _signal.SIG_DFL)
        confine(config)
        for path in config["programs"]:
            try:
                posix.execve(path, config["argv"], config["env"])
            except FileNotFoundError:
                continue
        raise Failure(f"there is none of {', '.join(config['programs'])}")
    except (Failure, OSError) as error:
        posix.write(said, f"{error}".encode("utf-8", "replace"))
    posix._exit(1)


def end_descendants() -> None:
    """Kill every process below this one; orphans become its children, so that all come up in the end."""
    while True:
        fd = posix.open(f"/proc/self/task/{posix.getpid()}/children", posix.O_RDONLY | posix.O_CLOEXEC)
        for pid in posix.read(fd, 1 << 16).split():
            posix.kill(int(pid), KILL)
        posix.close(fd)
        try:
            posix.wait4(-1, 0)
        except ChildProcessError:
            return


def names(directories: tuple) -> set:  # type: ignore[type-arg]  # of str
    """What lies in these directories now."""
    found: set = set()  # type: ignore[type-arg]  # of str
    for directory in directories:
        try:
            found.update(f"{directory}/{name}" for name in posix.listdir(directory))
        except OSError:
            pass  # not there any more, or closed by the command
    return found


def reap(main: int) -> tuple:  # type: ignore[type-arg]  # (wait status, usage), or () while `main` runs
    """Collect children that have ended, orphans too, up to the command itself: what comes after it is its box's to end."""
    while True:
        try:
            pid, status, usage = posix.wait4(-1, posix.WNOHANG)
        except ChildProcessError:
            return ()
        if pid == 0:
            return ()
        if pid == main:
            return (status, usage)


def serve(main: int, group: int, control: int, wakeup: int) -> tuple:  # type: ignore[type-arg]  # (wait status, usage)
    """Pass signals on to `group` until the command has ended; () when the daemon ends the box first.

    Process 1 itself ignores them, as every init does.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if control in ready:
            try:
                numbers = posix.read(control, 64)
            except ConnectionError:  # a socket, whose other side has gone and left something unread
                numbers = b""
            if not numbers:
                return ()
            for number in numbers:
                try:
                    posix.killpg(group, number)
                except OSError:
                    pass  # nobody is left in the group
        if wakeup in ready:
            posix.read(wakeup, 512)
            ended = reap(main)
            if ended:
                return ended


def listen() -> int:
    """Ignore what an init ignores; a descriptor that becomes readable when a child has ended."""
    wakeup, wake = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
    for number in (HUP, INT, QUIT, TERM):
        _signal.signal(number, _signal.SIG_IGN)
    _signal.signal(CHLD, lambda *_: None)
    _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return wakeup


def report(status: int, end: tuple, left: set) -> None:  # type: ignore[type-arg]  # (wait status, usage); of str
    """Say how the command ended, and what it left in private directories."""
    if left:
        shown = " ".join(path.encode("utf-8", "surrogateescape").hex() for path in sorted(left)[:MAX_LEFT])
        posix.write(status, f"L {len(left)} {shown}\n".encode())
    ended, usage = end
    signal = ended & 0x7F
    code = -1 if signal else ended >> 8
    line = f"X {code} {signal} {int(usage.ru_utime * 1e6)} {int(usage.ru_stime * 1e6)} {usage.ru_maxrss}\n"
    posix.write(status, line.encode())


def main(config: dict) -> None:  # type: ignore[type-arg]  # see box.child_config
    """The life of a box; does not return."""
    status = config["status"]
    try:
        prepare(config)
        wakeup = listen()
        if config["wait"] and posix.read(config["control"], 1) != GO:
            posix._exit(1)
        before = names(config["private"])
        pid = spawn(config)
    except (Failure, OSError) as error:
        posix.write(status, f"F {error}\n".encode("utf-8", "replace"))
        posix._exit(1)
    posix.write(status, b"S\n")
    close_streams(config)
    end = serve(pid, posix.getpgrp() if config["tty"] else pid, config["control"], wakeup)
    if not config["contained"]:
        end_descendants()
    if not end:
        posix._exit(1)
    report(status, end, names(config["private"]) - before)
    posix._exit(0)
