# SPDX-License-Identifier: GPL-3.0-or-later
"""The bubblewrap backend: one LaunchPlan -> one bwrap, with `child` as process 1 inside.

Who does what: bwrap (as the box's user, in namespaces it makes itself) mounts, drops all capabilities and loads the
system call filter; `child` sets limits and Landlock and starts the shell. Everything goes to bwrap by descriptors
(`--args`, `--seccomp`), so nothing of it stands on a command line, and bwrap gets an empty environment, since process 1
of a box could show it to the command.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandboxd.errors import IsolationError
from sandboxd.isolation import cgroups, interpreter, landlock, protect, seccomp
from sandboxd.model import (
    Enforcement,
    ExitStatus,
    LaunchPlan,
    Layer,
    LayerState,
    Limits,
    Mount,
    MountKind,
    NetworkMode,
    Probe,
    Require,
    Stdio,
    Strength,
)
from sandboxd.model.launch import CWD_REPORT_FD
from sandboxd.paths import is_within

SYSTEM_PATH = "/usr/bin:/bin:/usr/local/bin"  # never the caller's PATH, which may begin in a workspace
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
FIX_INSTALL = "install bubblewrap 0.8 or later (apt install bubblewrap, dnf install bubblewrap)"
FIX_USERNS = (
    "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`; "
    "on Ubuntu 24.04 load an AppArmor profile for bwrap that grants `userns` (package apparmor-profiles); "
    "in a container run with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`"
)
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")
_HARDENING = ("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL")
_STATUS_SIZE = 65536


@dataclass(frozen=True, slots=True)
class Host:
    """What the trial run showed of this machine: bwrap's path, whether nested user namespaces can be switched off."""

    bwrap: str
    disable_userns: bool
    landlock_abi: int


class Box:
    """A bwrap and everything in it. `pid` is bwrap's own, which ends when the whole box has ended."""

    def __init__(self, process: subprocess.Popen[bytes], plan: LaunchPlan, enforcement: Enforcement, ends: _Ends) -> None:
        self._process = process
        self._plan = plan
        self._enforcement = enforcement
        self._ends = ends
        self._killed = False
        self._pidfd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pidfd(self) -> int:
        return self._pidfd

    @property
    def enforcement(self) -> Enforcement:
        return self._enforcement

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group; a no-op when it is gone. Raises ValueError outside 1..64."""
        if not 1 <= number <= 64:
            raise ValueError(f"`{number}` is not a signal number")
        if self._ends.control >= 0:
            try:
                os.write(self._ends.control, bytes((number,)))
            except OSError:
                pass  # nobody is there to take it any more

    def kill(self) -> None:
        """End every process of the box at once; idempotent.

        SIGKILL of process 1 makes the kernel end its whole pid namespace before bwrap sees it end. Where its pid is not
        known yet, bwrap is killed; what it may just have started finds its control pipe closed and ends.
        """
        if self._pidfd < 0 or self._killed:
            return
        self._ends.close_control()
        if select.select([self._pidfd], [], [], 0)[0]:
            return  # it has ended by itself; how, `reap` tells
        self._killed = True
        inner = self._ends.inner_pid()
        if inner is None or not self._kill_inner(inner):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _kill_inner(self, pid: int) -> bool:
        """SIGKILL process 1 of the box; False when `pid` is no longer a child of this bwrap."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                parent = file.read().rpartition(")")[2].split()[1]
            if parent != str(self._process.pid):
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except OSError:
            return False
        finally:
            os.close(pidfd)
        return True

    def reap(self) -> ExitStatus:
        """Collect the exit status and close `pidfd`; only after `pidfd` is readable.

        Raises IsolationError when the box could not be set up, so that nothing of the command ever ran.
        """
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        os.close(self._pidfd)
        self._pidfd = -1
        said = self._ends.status()
        complaint = self._ends.complaint()
        self._ends.close()
        cgroups.remove(self._ends.groups)
        lines = said.splitlines()
        ended = next((line.split() for line in lines if line.startswith("X ")), None)
        if ended is not None:
            code, number, user, system, rss = (int(word) for word in ended[1:])
            return ExitStatus(None if number else code, number or None, user / 1e6, system / 1e6, rss * 1024)
        failed = next((line[2:] for line in lines if line.startswith("F ")), None)
        if "S" not in lines and not self._killed:
            raise IsolationError(f"the sandbox could not be built: {failed or complaint or 'bwrap ended without a word'}")
        return ExitStatus(None, int(signal.SIGKILL), usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024)


class _Ends:
    """The daemon's ends of a box's pipes, and the control groups that it is in."""

    def __init__(self, status: int, control: int, info: int, errors: int, groups: tuple[str, ...]) -> None:
        self._status, self.control, self._info, self._errors = status, control, info, errors
        self.groups = groups

    def inner_pid(self) -> int | None:
        """Process 1 of the box as this namespace sees it, once bwrap has said so."""
        text = _drain(self._info)
        _, found, rest = text.partition('"child-pid":')
        digits = rest.strip().partition(",")[0].strip(" \n}")
        return int(digits) if found and digits.isdigit() else None

    def status(self) -> str:
        return _drain(self._status)

    def complaint(self) -> str:
        return _drain(self._errors).strip().rpartition("\n")[2].removeprefix("bwrap: ")

    def close_control(self) -> None:
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    def close(self) -> None:
        self.close_control()
        for fd in (self._status, self._info, self._errors):
            os.close(fd)


def _drain(fd: int) -> str:
    """All that a pipe holds now, as text; never waits."""
    try:
        return os.read(fd, _STATUS_SIZE).decode(errors="replace")
    except BlockingIOError:
        return ""


class Bwrap:
    """See the module. One instance serves all boxes; `probe` must show once that this machine can build one."""

    name = "bwrap"

    def __init__(self) -> None:
        self._host: Host | None = None

    def probe(self) -> Probe:
        """Build a real box and look what holds in it; remove control groups that killed daemons left."""
        self._host = None
        cgroups.sweep()
        path = shutil.which("bwrap", path=SYSTEM_PATH)
        if path is None:
            return Probe(self.name, works=False, error="bwrap is not installed", fix=FIX_INSTALL)
        if os.stat(path).st_mode & stat.S_ISUID:
            return Probe(self.name, works=False, error=f"{path} is set-user-id root", fix=f"`chmod u-s {path}`")
        error = ""
        for disable_userns in (True, False):
            self._host = Host(path, disable_userns, landlock.abi())
            error = self._trial()
            if not error:
                return Probe(self.name, works=True, enforcement=self.enforcement(_trial_plan()))
        self._host = None
        return Probe(self.name, works=False, error=error, fix=FIX_USERNS)

    def _trial(self) -> str:
        """What went wrong in a trial run, "" when nothing did."""
        read, write = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            box = self.start(_trial_plan(), Stdio(stdin=null, stdout=write, stderr=null))
            os.close(write)
            write = -1
            said = b""
            while part := os.read(read, 4096):
                said += part
            status = box.reap()
        except (IsolationError, OSError) as failure:
            return str(failure)
        finally:
            for fd in (read, null, write):
                if fd >= 0:
                    os.close(fd)
        if status.code != 0 or said != b"confined\n":
            return f"the trial command ended with {status.code if status.signal is None else f'signal {status.signal}'}"
        return ""

    def enforcement(self, plan: LaunchPlan) -> Enforcement:
        """What is enforced for that plan; raises IsolationError when no trial run has worked."""
        host = self._need_host()
        lacking = landlock.missing(host.landlock_abi)
        inside = Strength.PARTIAL if lacking and host.landlock_abi >= landlock.MIN_ABI else Strength.NONE
        shared = plan.network is NetworkMode.HOST
        return Enforcement(
            backend=self.name,
            layers=(
                LayerState(
                    Layer.FILESYSTEM,
                    Strength.FULL if host.landlock_abi >= landlock.MIN_ABI else Strength.PARTIAL,
                    () if host.landlock_abi >= landlock.MIN_ABI else ("writes into FIFOs and reopened descriptors",),
                ),
                LayerState(Layer.NAMESPACES, Strength.FULL),
                LayerState(
                    Layer.NETWORK,
                    Strength.PARTIAL if shared else Strength.FULL,
                    ("the profile shares the host's network",) if shared else (),
                ),
                LayerState(Layer.SYSCALLS, Strength.FULL),
                LayerState(Layer.LANDLOCK, inside if lacking else Strength.FULL, lacking),
                LayerState(Layer.PRIVILEGES, Strength.FULL),
                limits_state(plan),
            ),
            landlock_abi=host.landlock_abi,
        )

    def _need_host(self) -> Host:
        if self._host is None:
            probe = self.probe()
            if self._host is None:
                raise IsolationError(f"bwrap cannot build a sandbox here: {probe.error}", fix=probe.fix)
        return self._host

    def start(self, plan: LaunchPlan, stdio: Stdio) -> Box:
        """Start a plan. The caller keeps and closes `stdio`. Raises IsolationError; nothing runs then."""
        host = self._need_host()
        enforcement = self.enforcement(plan)
        plan = protect.prepare(plan)
        python = interpreter.find(plan.uid)
        if plan.uid != os.geteuid():
            _hand_over(stdio, plan)
        with _Opened() as fds:
            status = fds.pipe()
            control = fds.pipe()
            info = fds.pipe()
            errors = fds.pipe()
            groups = cgroups.join(plan.limits, fds.take)
            config = child_config(plan, host, stdio, status[1], control[0], groups.fds)
            args = bwrap_args(plan, host, fds.data)
            args += ["--info-fd", str(info[1]), "--seccomp", str(fds.data(_filter(plan)))]
            boot = fds.data(interpreter.payload(python, config))
            inherited = {stdio.stdin, stdio.stdout, stdio.stderr, stdio.cwd_report, status[1], control[0], info[1], boot}
            argv = [host.bwrap, "--args", str(fds.data(b"".join(each.encode(errors="surrogateescape") + b"\0" for each in args)))]
            argv += ["--", python, *interpreter.FLAGS, "-c", interpreter.BOOT, str(boot)]
            try:
                process = subprocess.Popen(
                    [*_as_user(plan), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors[1],
                    pass_fds=sorted({*(fd for fd in inherited if fd >= 0), *fds.given, *groups.fds}),
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                cgroups.remove(groups.paths)
                raise IsolationError(
                    f"cannot start {host.bwrap}: {error.strerror}",
                    fix="run fewer commands at once" if error.errno == errno.EAGAIN else FIX_INSTALL,
                ) from error
            ours = (status[0], control[1], info[0], errors[0])
            fds.keep(*ours)
            for fd in (ours[0], ours[1], ours[2], ours[3]):
                os.set_blocking(fd, False)
            return Box(process, plan, enforcement, _Ends(*ours, groups.paths))


class _Opened:
    """Descriptors opened for one start: all are closed at the end but those to `keep`."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        self.given: list[int] = []

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)

    def take(self, fd: int) -> int:
        self._fds.add(fd)
        return fd

    def keep(self, *fds: int) -> None:
        self._fds.difference_update(fds)

    def pipe(self) -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC)
        return self.take(read), self.take(write)

    def data(self, content: bytes) -> int:
        """A descriptor from which the box reads `content`. It is closed before the command starts."""
        fd = self.take(os.memfd_create("sandboxd", os.MFD_CLOEXEC))
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        self.given.append(fd)
        return fd


def _as_user(plan: LaunchPlan) -> list[str]:
    """The launcher that turns a root daemon into the box's user: Popen's `user=` would make it spawn by a real fork."""
    if plan.uid == os.geteuid() and plan.gid == os.getegid():
        return []
    if os.geteuid() != 0:
        raise IsolationError(
            f"the workspace belongs to user {plan.uid}, and this daemon runs as {os.geteuid()}",
            fix="run it as that user or as root",
        )
    setpriv = shutil.which("setpriv", path=SYSTEM_PATH)
    if setpriv is None:
        raise IsolationError("setpriv is not installed", fix="install util-linux")
    return [setpriv, f"--reuid={plan.uid}", f"--regid={plan.gid}", "--clear-groups", "--"]


def _hand_over(stdio: Stdio, plan: LaunchPlan) -> None:
    """Give the pipes to the box's user: `> /dev/stderr` opens them anew, and a pipe belongs to who made it."""
    for fd in {stdio.stdin, stdio.stdout, stdio.stderr, stdio.cwd_report} - {-1}:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.fchown(fd, plan.uid, plan.gid)


def _filter(plan: LaunchPlan) -> bytes:
    machine = os.uname().machine
    return seccomp.program(machine, unix=plan.allow_unix_sockets, ptrace=plan.allow_ptrace, extra=plan.deny_syscalls)


def bwrap_args(plan: LaunchPlan, host: Host, data: Callable[[bytes], int]) -> list[str]:
    """The options of bwrap for a plan; `data` gives a descriptor for a content."""
    args = [*_NAMESPACES, *_HARDENING]
    if plan.network is not NetworkMode.HOST:
        args.append("--unshare-net")
    if host.disable_userns:
        args.append("--disable-userns")
    files = list(plan.files)
    for number, mount in enumerate(plan.mounts):
        if mount.kind is MountKind.SEAL:
            for path, content in [each for each in files if is_within(each[0], mount.target)]:
                args += ["--perms", "0444", "--file", str(data(content.encode())), path]
                files.remove((path, content))
        args += _mount_args(mount, plan.mounts[number + 1 :], data)
    assert not files, "a plan's files lie below something that is sealed"
    return [*args, "--chdir", "/"]


def _mount_args(mount: Mount, later: Iterable[Mount], data: Callable[[bytes], int]) -> list[str]:
    match mount.kind:
        case MountKind.READ_ONLY:
            return ["--ro-bind-try" if mount.optional else "--ro-bind", mount.source, mount.target]
        case MountKind.WRITABLE:
            return ["--bind-try" if mount.optional else "--bind", mount.source, mount.target]
        case MountKind.TMPFS:
            mode = "1777" if mount.target in ("/tmp", "/dev/shm") else "0755"  # noqa: S108  inside the box
            return ["--perms", mode, "--size", str(mount.size), "--tmpfs", mount.target]
        case MountKind.PROC:
            return ["--proc", mount.target]
        case MountKind.DEV:
            return ["--dev", mount.target]
        case MountKind.HIDE_DIR:
            passes = any(each.kind is not MountKind.SEAL and is_within(each.target, mount.target) for each in later)
            return ["--perms", "0111" if passes else "0000", "--size", "65536", "--tmpfs", mount.target]
        case MountKind.HIDE_FILE:
            return ["--perms", "0000", "--ro-bind-data", str(data(b"")), mount.target]
        case MountKind.SEAL:
            return ["--remount-ro", mount.target]


def child_config(
    plan: LaunchPlan, host: Host, stdio: Stdio, status: int, control: int, groups: tuple[int, ...]
) -> dict[str, object]:
    """What `child.main` reads; plain values only."""
    rules = landlock.ruleset(plan, host.landlock_abi) if host.landlock_abi >= landlock.MIN_ABI else None
    return {
        "stdio": (stdio.stdin, stdio.stdout, stdio.stderr),
        "report": stdio.cwd_report,
        "report_at": CWD_REPORT_FD,
        "status": status,
        "control": control,
        "cgroups": groups,
        "tty": plan.tty,
        "umask": 0o022,
        "landlock": (rules.attr, rules.rules) if rules is not None else None,
        "rlimits": rlimits(plan.limits),
        "cwd": plan.cwd,
        "programs": SHELLS,
        "argv": plan.argv,
        "env": dict(plan.env),
    }


def rlimits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """(resource, value) pairs. Never RLIMIT_AS: node, the JVM and Go reserve far more address space than they use."""
    wanted = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits.cpu),
        (resource.RLIMIT_FSIZE, limits.file_size),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.pids),
    )
    out = []
    for which, value in wanted:
        if value is not None:
            hard = resource.getrlimit(which)[1]
            out.append((which, value if hard == resource.RLIM_INFINITY else min(value, hard)))
    return tuple(out)


def limits_state(plan: LaunchPlan) -> LayerState:
    """How far the limits that the plan asks for can be enforced."""
    controllers = cgroups.available()
    missing = []
    if plan.limits.pids is not None and "pids" not in controllers:
        if plan.uid == 0:
            return LayerState(Layer.LIMITS, Strength.NONE, ("processes: RLIMIT_NPROC does not bind root, and no pids cgroup",))
        if not cgroups.rlimit_counts_per_box():
            missing.append("processes: counted for the whole user, not for the box (Linux 5.14 counts per box)")
    if plan.limits.memory is not None and "memory" not in controllers:
        missing.append("memory: needs a memory cgroup that is delegated to sandboxd")
    return LayerState(Layer.LIMITS, Strength.PARTIAL if missing else Strength.FULL, tuple(missing))


def _trial_plan() -> LaunchPlan:
    """The smallest plan in which every mechanism is used."""
    mounts = (
        Mount(MountKind.READ_ONLY, "/", "/"),
        Mount(MountKind.PROC, "/proc"),
        Mount(MountKind.DEV, "/dev"),
        Mount(MountKind.TMPFS, "/run", size=1 << 16),
        Mount(MountKind.TMPFS, "/tmp", size=1 << 16),  # noqa: S108  inside the box
        *(Mount(MountKind.SEAL, target) for target in ("/run", "/dev", "/proc")),
    )
    return LaunchPlan(
        argv=("bash", "--noprofile", "--norc", "-c", "echo x >/tmp/x && exec 9>/dev/null && echo confined"),
        cwd="/",
        env=(("PATH", "/usr/bin:/bin"),),
        mounts=mounts,
        network=NetworkMode.OFF,
        limits=Limits(pids=512),
        uid=os.getuid(),
        gid=os.getgid(),
        require=Require.FS,
        writable=("/tmp",),  # noqa: S108  inside the box
    )
