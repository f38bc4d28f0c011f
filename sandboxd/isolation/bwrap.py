# SPDX-License-Identifier: GPL-3.0-or-later
"""The bubblewrap backend: one LaunchPlan -> one bwrap, with `child` as process 1 inside.

Who does what: bwrap (as the box's user, in namespaces it makes itself) mounts, drops all capabilities and loads the
system call filter; `child` sets limits and Landlock and starts the shell. Everything goes to bwrap by descriptors
(`--args`, `--seccomp`), so nothing of it stands on a command line, and bwrap gets an empty environment, since process 1
of a box could show it to the command.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandboxd.errors import IsolationError
from sandboxd.isolation import cgroups, interpreter, landlock, protect
from sandboxd.isolation.box import (
    SYSTEM_PATH,
    Box,
    as_user,
    child_config,
    hand_over,
    in_words,
    launch,
    namespaced,
    system_call_filter,
    trial,
    trial_plan,
)
from sandboxd.isolation.ends import Ends, Opened
from sandboxd.isolation.look import Look
from sandboxd.isolation.mountpoints import Lease
from sandboxd.model import (
    Enforcement,
    LaunchPlan,
    Mount,
    MountKind,
    NetworkMode,
    Probe,
    Stdio,
)
from sandboxd.paths import is_within

FIX_INSTALL = "install bubblewrap 0.8 or later (apt install bubblewrap, dnf install bubblewrap)"
FIX_USERNS = (
    "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`; "
    "on Ubuntu 24.04 load an AppArmor profile for bwrap that grants `userns` (package apparmor-profiles); "
    "in a container run with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`"
)
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")
_HARDENING = ("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL")


@dataclass(frozen=True, slots=True)
class Host:
    """What the trial run showed of this machine: bwrap's path, whether nested user namespaces can be switched off."""

    bwrap: str
    disable_userns: bool
    landlock_abi: int


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
            error = trial(self, trial_plan())
            if not error:
                return Probe(self.name, works=True, enforcement=self.enforcement(trial_plan()))
        self._host = None
        return Probe(self.name, works=False, error=error, fix=FIX_USERNS)

    def enforcement(self, plan: LaunchPlan) -> Enforcement:
        """What is enforced for that plan; raises IsolationError when no trial run has worked."""
        return namespaced(self.name, plan, self._need_host().landlock_abi)

    def _need_host(self) -> Host:
        if self._host is None:
            probe = self.probe()
            if self._host is None:
                raise IsolationError(f"bwrap cannot build a sandbox here: {probe.error}", fix=probe.fix)
        return self._host

    @in_words
    def start(self, plan: LaunchPlan, stdio: Stdio) -> Box:
        """Start a plan. The caller keeps and closes `stdio`. Raises IsolationError; nothing runs then."""
        host = self._need_host()
        enforcement = self.enforcement(plan)
        python = interpreter.find(plan.uid)
        plan, lease = protect.prepare(plan, Look())
        try:
            return self._start(plan, stdio, host, enforcement, python, lease)
        except BaseException:
            if lease is not None:
                lease.release()
            raise

    def _start(
        self, plan: LaunchPlan, stdio: Stdio, host: Host, enforcement: Enforcement, python: str, lease: Lease | None
    ) -> Box:
        if plan.uid != os.geteuid():
            hand_over(stdio, plan)
        rules = landlock.ruleset(plan, host.landlock_abi) if host.landlock_abi >= landlock.MIN_ABI else None
        with Opened() as fds:
            status, control, info, errors = (fds.pipe() for _ in range(4))
            groups = cgroups.join(plan.limits, plan.uid, fds.take)
            fds.undo.append(lambda: cgroups.remove(groups.paths))
            config = child_config(plan, rules, stdio, (status[1], control[0]), ())
            config["wait"] = bool(groups.fds)
            args = bwrap_args(plan, host, fds.data)
            args += ["--info-fd", str(info[1]), "--seccomp", str(fds.data(system_call_filter(plan)))]
            boot = fds.data(interpreter.payload(python, config))
            inherited = {stdio.stdin, stdio.stdout, stdio.stderr, stdio.cwd_report, status[1], control[0], info[1], boot}
            argv = [host.bwrap, "--args", str(fds.data(b"".join(each.encode(errors="surrogateescape") + b"\0" for each in args)))]
            argv += ["--", python, *interpreter.FLAGS, "-c", interpreter.BOOT, str(boot)]
            process = launch([*as_user(plan), *argv], errors[1], (*inherited, *fds.given), FIX_INSTALL)
            fds.undo.append(process.wait)  # what it starts finds its control pipe closed, and ends
            ours = (status[0], control[1], info[0], errors[0])
            ends = Ends(*ours, groups.paths)
            box = Box(process, plan, enforcement, ends, lease=lease)
            fds.keep(*ours, *groups.fds)
            if groups.fds:
                ends.join(groups.fds)
            return box


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
