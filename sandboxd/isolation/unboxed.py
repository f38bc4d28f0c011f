# SPDX-License-Identifier: GPL-3.0-or-later
"""The backends without namespaces: `landlock` where user namespaces are refused, and `none`, which confines nothing.

Both start the same `child`, which stays outside and ends everything that descends from it. `landlock` puts the command
under a Landlock ruleset, the system call filter and rlimits. That leaves open, and its enforcement says so:
- what is protected inside a tree that may be written is not guarded (rules can only add rights below a directory);
- mode, times and attributes of files can be changed wherever the user may (Landlock does not see those calls), but by a
  command that was judged read-only, for which the filter refuses them, but those that are set by ioctl;
- the processes, /proc and the System V objects of the host are seen; a background process can be ended, not hidden;
- a profile that allows Unix sockets allows all of them: neither mechanism sees which is connected to;
- without a network even loopback is closed, since the host's is the only one, and there is no terminal.

Secrets are hidden by allowing what lies beside them: their names are seen, their content is not.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterable

from sandboxd.errors import IsolationError
from sandboxd.isolation import cgroups, interpreter, landlock, seccomp
from sandboxd.isolation.box import (
    Box,
    child_config,
    hand_over,
    in_words,
    launch,
    limits_state,
    set_user,
    system_call_filter,
    trial,
    trial_plan,
)
from sandboxd.isolation.ends import Ends, Opened
from sandboxd.model import (
    Enforcement,
    LaunchPlan,
    Layer,
    LayerState,
    Mount,
    MountKind,
    NetworkMode,
    Probe,
    Stdio,
    Strength,
)
from sandboxd.paths import is_within, parents

FIX = "use Linux 6.2 or later with `landlock` among the LSMs of the boot option `lsm=`"
_HIDES = (MountKind.HIDE_DIR, MountKind.HIDE_FILE)
_SYSTEM = ("/proc", "/dev", "/run", "/tmp", "/dev/shm")  # noqa: S108  a box of this kind has the host's
_OWN = "a /tmp, /proc and /dev of its own"
_GAPS = ("protected paths inside a writable tree", "mode, times and attributes of files", _OWN)
_GAPS_OF_READS = ("attributes that are set by ioctl (chattr)", _OWN)
_NO_NAMESPACES = (
    "user namespaces are refused here",
    "processes and System V objects of the host are seen",
    "a terminal (a command that needs one is refused)",
)
_SHARED = "the profile shares the host's network"
_SOCKETS = "Unix sockets that the profile does not name"


class Unboxed:
    """Runs a command by `child` alone."""

    def __init__(self, name: str, *, confines: bool) -> None:
        self.name = name
        self._confines = confines

    def probe(self) -> Probe:
        """Run a real command and look what holds."""
        if self._confines and landlock.abi() < landlock.MIN_ABI:
            return Probe(self.name, works=False, error=f"Landlock ABI {landlock.abi()} is too old", fix=FIX)
        error = trial(self, dataclasses.replace(trial_plan(), writable=()), "test -w / ; echo confined")
        if error:
            return Probe(self.name, works=False, error=error, fix=FIX)
        return Probe(self.name, works=True, enforcement=self.enforcement(trial_plan()))

    def enforcement(self, plan: LaunchPlan) -> Enforcement:
        """What is enforced for that plan."""
        if not self._confines:
            states = [LayerState(layer, Strength.NONE, ("the profile asked for no sandbox",)) for layer in Layer]
            return Enforcement(self.name, (*states[:-1], limits_state(plan, per_box=False)))
        version = landlock.abi()
        lacking = landlock.missing(version)
        open_ways = (_SHARED,) * (plan.network is NetworkMode.HOST) + (_SOCKETS,) * plan.allow_unix_sockets
        return Enforcement(
            backend=self.name,
            layers=(
                LayerState(Layer.FILESYSTEM, Strength.PARTIAL, _GAPS_OF_READS if plan.promise else _GAPS),
                LayerState(Layer.NAMESPACES, Strength.NONE, _NO_NAMESPACES),
                LayerState(Layer.NETWORK, Strength.PARTIAL if open_ways else Strength.FULL, open_ways),
                LayerState(Layer.SYSCALLS, Strength.FULL),
                LayerState(Layer.LANDLOCK, Strength.PARTIAL if lacking else Strength.FULL, lacking),
                LayerState(Layer.PRIVILEGES, Strength.FULL),
                limits_state(plan, per_box=False),
            ),
            landlock_abi=version,
        )

    @in_words
    def start(self, plan: LaunchPlan, stdio: Stdio) -> Box:
        """Start a plan. The caller keeps and closes `stdio`. Raises IsolationError; nothing runs then."""
        if plan.tty:
            raise IsolationError("a terminal needs a sandbox with namespaces", fix="use the bwrap backend")
        enforcement = self.enforcement(plan)
        python = interpreter.find(plan.uid)
        own = tempfile.mkdtemp(prefix="sandboxd-box-")
        try:
            if plan.uid != os.geteuid():
                hand_over(stdio, plan)
            plan = _translated(plan, own)
            with Opened() as fds:
                status, control, info, errors = (fds.pipe() for _ in range(4))
                groups = cgroups.join(plan.limits, 0, fds.take)
                fds.undo.append(lambda: cgroups.remove(groups.paths))
                config = child_config(plan, self._rules(plan), stdio, (status[1], control[0]), groups.fds)
                config["contained"] = False
                if self._confines:
                    kept = (*plan.deny_syscalls, *(seccomp.METADATA if plan.promise else ()))
                    filtered = dataclasses.replace(plan, deny_syscalls=kept)
                    config["seccomp"] = system_call_filter(filtered, inet=plan.network is NetworkMode.HOST)
                boot = fds.data(interpreter.payload(python, config))
                inherited = (stdio.stdin, stdio.stdout, stdio.stderr, stdio.cwd_report, status[1], control[0], boot)
                argv = [*set_user(plan, self._confines), python, *interpreter.FLAGS, "-c", interpreter.BOOT, str(boot)]
                process = launch(argv, errors[1], (*inherited, *fds.given, *groups.fds), "install python3")
                fds.undo.append(process.wait)  # it finds its control pipe closed, and ends
                ours = (status[0], control[1], info[0], errors[0])
                ends = Ends(*ours, groups.paths)
                box = Box(process, plan, enforcement, ends, contained=False, clean_up=lambda: shutil.rmtree(own, True))
                fds.keep(*ours)
                return box
        except BaseException:
            shutil.rmtree(own, ignore_errors=True)
            raise

    def _rules(self, plan: LaunchPlan) -> landlock.Ruleset | None:
        if not self._confines:
            return None
        hidden = [mount.target for mount in plan.mounts if mount.kind in _HIDES]
        return landlock.ruleset(plan, landlock.abi(), readable=_beside(hidden) if hidden else None)


def _translated(plan: LaunchPlan, own: str) -> LaunchPlan:
    """The plan with host directories for what a box has of its own: /tmp is the session's, the rest lies in `own`."""
    tmp = next((mount.source for mount in plan.mounts if _is_session_tmp(mount)), "")
    scratch = tmp if tmp and not plan.promise else f"{own}/tmp"  # noqa: S108  in a directory of the backend's own
    if not tmp or plan.promise:
        os.mkdir(scratch, 0o700)
    env = dict(plan.env) | {"TMPDIR": scratch}
    for path, content in plan.files:
        where = f"{own}/{path.rpartition('/')[2]}"
        with open(where, "w", encoding="utf-8") as file:
            file.write(content)
        env = {name: where if value == path else value for name, value in env.items()}
    os.chmod(own, 0o711)  # noqa: S103  the box's user must pass through, and can list nothing
    if plan.uid != os.geteuid():
        os.chown(scratch, plan.uid, plan.gid)
    mine = [path for path in plan.writable if not any(is_within(path, each) for each in _SYSTEM)]
    bound = [path for path in plan.writable if any(is_within(path, each) for each in _SYSTEM) and _bound(plan, path)]
    return dataclasses.replace(
        plan, env=tuple(sorted(env.items())), writable=(*mine, *bound, scratch), private=(), files=(), absent=()
    )


def _is_session_tmp(mount: Mount) -> bool:
    return mount.target == "/tmp" and mount.kind in (MountKind.WRITABLE, MountKind.READ_ONLY)  # noqa: S108  as planned


def _bound(plan: LaunchPlan, path: str) -> bool:
    """Whether the plan opens this very directory of the host."""
    return any(mount.kind is MountKind.WRITABLE and mount.target == mount.source == path for mount in plan.mounts)


def _beside(hidden: Iterable[str]) -> tuple[str, ...]:
    """What may be read so that nothing at or below a hidden path can: at each level on the way to one, what is beside it.

    What is made later in one of those directories cannot be read; they are few (`/`, /home, a home, its .config).
    """
    closed = frozenset(hidden)
    on_the_way = frozenset(above for path in closed for above in parents(path))
    out = []
    for directory in sorted(on_the_way):
        if any(each in closed for each in (directory, *parents(directory))):
            continue
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        paths = (f"{directory.rstrip('/')}/{name}" for name in names)
        out += [path for path in paths if path not in closed and path not in on_the_way and not os.path.islink(path)]
    return tuple(out)
