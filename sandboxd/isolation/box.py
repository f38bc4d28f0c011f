# SPDX-License-Identifier: GPL-3.0-or-later
"""A started box, and what every backend needs to start one: descriptors, the box's user, what `child` is told."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sandboxd.errors import IsolationError
from sandboxd.isolation import cgroups, landlock, seccomp
from sandboxd.isolation.ends import Ends
from sandboxd.isolation.mountpoints import Lease
from sandboxd.model import (
    Backend,
    Enforcement,
    ExitStatus,
    LaunchPlan,
    Layer,
    LayerState,
    Limits,
    Mount,
    MountKind,
    NetworkMode,
    Require,
    Stdio,
    Strength,
)
from sandboxd.model.launch import CWD_REPORT_FD

SYSTEM_PATH = "/usr/bin:/bin:/usr/local/bin"  # never the caller's PATH, which may begin in a workspace
_TOO_MANY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_P = ParamSpec("_P")
_T = TypeVar("_T")
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def in_words(start: Callable[_P, _T]) -> Callable[_P, _T]:
    """A backend's `start`, for which the kernel's refusals (of descriptors, memory, a control group) are IsolationErrors too."""

    @functools.wraps(start)
    def told(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return start(*args, **kwargs)
        except OSError as error:
            fix = "run fewer commands at once" if error.errno in _TOO_MANY else "see what `sandboxd doctor` says"
            raise IsolationError(f"the sandbox could not be built: {error.strerror or error}", fix=fix) from error

    return told


class Box:
    """A started box and everything in it. `pid` is the launcher's, which ends when the whole box has ended.

    `contained`: process 1 of a pid namespace is in it, whose end ends all. Else `child` ends what descends from it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        plan: LaunchPlan,
        enforcement: Enforcement,
        ends: Ends,
        *,
        lease: Lease | None = None,
        contained: bool = True,
        clean_up: Callable[[], None] | None = None,
    ) -> None:
        self._process = process
        self._plan = plan
        self._lease = lease
        self._contained = contained
        self._clean_up = clean_up
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
        self._ends.send(number)

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
        if not self._contained:
            return  # `child` sees its control pipe end, kills what descends from it, and ends
        inner = self._ends.inner_pid()
        if inner is None or not self._kill_inner(inner):
            # With its group, in which its child still is at first: without bwrap that child would wait for ever.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

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
        _, waited, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(waited)
        os.close(self._pidfd)
        self._pidfd = -1
        said = self._ends.status()
        complaint = self._ends.complaint()
        self._ends.close()
        killed, refused = cgroups.events(self._ends.groups)
        cgroups.remove(self._ends.groups)
        if self._lease is not None:
            self._lease.release()
        if self._clean_up is not None:
            self._clean_up()
        lines = said.splitlines()
        ended = ended_status(lines)
        if ended is not None:
            return dataclasses.replace(ended, oom_kills=killed, pids_refused=refused)
        failed = failure(lines)
        if "S" not in lines and not self._killed:
            raise IsolationError(f"the sandbox could not be built: {failed or complaint or 'bwrap ended without a word'}")
        return ExitStatus(
            None,
            int(signal.SIGKILL),
            usage.ru_utime,
            usage.ru_stime,
            usage.ru_maxrss * 1024,
            oom_kills=killed,
            pids_refused=refused,
        )


def ended_status(lines: list[str]) -> ExitStatus | None:
    """How the command ended, out of what `child` said; None when it has not said so."""
    for line in lines:
        if line[:2] == "X ":
            code, number, user, system, rss = map(int, line.split()[1:])
            left = _left(lines)
            return ExitStatus(None if number else code, number or None, user / 1e6, system / 1e6, rss * 1024, left=left)
    return None


def failure(lines: list[str]) -> str:
    """Why the set-up failed, out of what `child` said; "" when it has not said so."""
    return next((line[2:] for line in lines if line.startswith("F ")), "")


def _left(lines: list[str]) -> tuple[str, ...]:
    """The paths that `child` saw in private directories at the end, and how many it did not name."""
    for line in lines:
        if line[:2] == "L ":
            count, *words = line.split()[1:]
            paths = [bytes.fromhex(word).decode(errors="replace") for word in words]
            more = int(count) - len(paths)
            return (*paths, f"{more} more") if more else tuple(paths)
    return ()


def as_user(plan: LaunchPlan) -> list[str]:
    """The launcher that turns a root daemon into the box's user: Popen's `user=` would make it spawn by a real fork."""
    if plan.uid == os.geteuid() and plan.gid == os.getegid():
        return []
    check_user(plan)
    return [_setpriv(), f"--reuid={plan.uid}", f"--regid={plan.gid}", "--clear-groups", "--"]


def set_user(plan: LaunchPlan, confines: bool) -> list[str]:
    """Like `as_user`, for a box without a user namespace: root gives up its capabilities here."""
    if os.geteuid() != 0 or not confines:
        return as_user(plan)
    ids = [] if plan.uid == 0 else [f"--reuid={plan.uid}", f"--regid={plan.gid}", "--clear-groups"]
    return [_setpriv(), *ids, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]


def check_user(plan: LaunchPlan) -> None:
    """Raises IsolationError when this daemon cannot become the plan's user, who is another."""
    if os.geteuid() != 0:
        raise IsolationError(
            f"the workspace belongs to user {plan.uid}, and this daemon runs as {os.geteuid()}",
            fix="run it as that user or as root",
        )


def _setpriv() -> str:
    setpriv = shutil.which("setpriv", path=SYSTEM_PATH)
    if setpriv is None:
        raise IsolationError("setpriv is not installed", fix="install util-linux")
    return setpriv


def hand_over(stdio: Stdio, plan: LaunchPlan) -> None:
    """Give the pipes to the box's user: `> /dev/stderr` opens them anew, and a pipe belongs to who made it."""
    for fd in {stdio.stdin, stdio.stdout, stdio.stderr, stdio.cwd_report} - {-1}:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.fchown(fd, plan.uid, plan.gid)


def system_call_filter(plan: LaunchPlan, *, inet: bool = True) -> bytes:
    """The filter of a plan; without `inet` no network socket can be made at all."""
    machine, unix = os.uname().machine, plan.allow_unix_sockets
    return seccomp.program(machine, unix=unix, ptrace=plan.allow_ptrace, extra=plan.deny_syscalls, inet=inet)


def child_config(
    plan: LaunchPlan, rules: landlock.Ruleset | None, stdio: Stdio, pipes: tuple[int, int], groups: tuple[int, ...]
) -> dict[str, object]:
    """What `child.main` reads; plain values only. `pipes` are its ends of the status and the control pipe."""
    return {
        "stdio": (stdio.stdin, stdio.stdout, stdio.stderr),
        "report": stdio.cwd_report,
        "report_at": CWD_REPORT_FD,
        "status": pipes[0],
        "control": pipes[1],
        "cgroups": groups,
        "tty": plan.tty,
        "umask": 0o022,
        "landlock": (rules.attr, rules.rules) if rules is not None else None,
        "rlimits": rlimits(plan.limits),
        "cwd": plan.cwd,
        "programs": SHELLS,
        "argv": plan.argv,
        "env": dict(plan.env),
        "private": plan.private,
        "contained": True,
        "wait": False,
        "seccomp": None,
    }


def rlimits(limits: Limits) -> tuple[tuple[int, int, int], ...]:
    """(resource, soft, hard). Never RLIMIT_AS: node, the JVM and Go reserve far more address space than they use."""
    wanted = (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, limits.cpu, 1),  # SIGXCPU first, which tells what it was; a second later SIGKILL
        (resource.RLIMIT_FSIZE, limits.file_size, 0),
        (resource.RLIMIT_NOFILE, limits.open_files, 0),
        (resource.RLIMIT_NPROC, limits.pids, 0),
    )
    out = []
    for which, value, grace in wanted:
        if value is not None:
            most = resource.getrlimit(which)[1]
            most = value + grace if most == resource.RLIM_INFINITY else most
            out.append((which, min(value, most), min(value + grace, most)))
    return tuple(out)


def namespaced(name: str, plan: LaunchPlan, landlock_abi: int) -> Enforcement:
    """What a backend with all namespaces enforces for a plan."""
    lacking = landlock.missing(landlock_abi)
    confines = landlock_abi >= landlock.MIN_ABI
    inside = Strength.PARTIAL if lacking and confines else Strength.NONE
    shared = plan.network is NetworkMode.HOST
    return Enforcement(
        backend=name,
        layers=(
            LayerState(
                Layer.FILESYSTEM,
                Strength.FULL if confines else Strength.PARTIAL,
                () if confines else ("writes into FIFOs and reopened descriptors",),
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
        landlock_abi=landlock_abi,
    )


def limits_state(plan: LaunchPlan, *, per_box: bool = True) -> LayerState:
    """How far the limits that the plan asks for can be enforced. `per_box`: it gets a user namespace of its own."""
    controllers = cgroups.available()
    missing = []
    if plan.limits.pids is not None and "pids" not in controllers:
        if plan.uid == 0:
            return LayerState(Layer.LIMITS, Strength.NONE, ("processes: RLIMIT_NPROC does not bind root, and no pids cgroup",))
        if not per_box or not cgroups.rlimit_counts_per_box():
            missing.append("processes: counted for the whole user, not for the box (Linux 5.14 counts per user namespace)")
    if plan.limits.memory is not None and "memory" not in controllers:
        missing.append("memory: needs a memory cgroup that is delegated to sandboxd")
    return LayerState(Layer.LIMITS, Strength.PARTIAL if missing else Strength.FULL, tuple(missing))


def launch(argv: list[str], errors: int, inherited: tuple[int, ...], fix: str) -> subprocess.Popen[bytes]:
    """Spawn a launcher with an empty environment, which process 1 of a box could show to the command."""
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=sorted({fd for fd in inherited if fd >= 0}),
            env={},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise IsolationError(
            f"the sandbox could not be built: cannot start {argv[0]}: {error.strerror}",
            fix="run fewer commands at once" if error.errno in _TOO_MANY else fix,
        ) from error


def trial(backend: Backend, plan: LaunchPlan, text: str = "") -> str:
    """What went wrong in a trial run of a backend, "" when nothing did. `text` instead of the plan's own command."""
    if text:
        plan = dataclasses.replace(plan, argv=(*plan.argv[:-1], text))
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        box = backend.start(plan, Stdio(stdin=null, stdout=write, stderr=null))
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


def trial_plan() -> LaunchPlan:
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
