# SPDX-License-Identifier: GPL-3.0-or-later
"""The native backend: namespaces, mounts, Landlock and the filter made by sandboxd itself, by way of a zygote.

A start never waits for a process: template, box and command are asked for one after the other, and what fails is told by
the box's end.
"""

from __future__ import annotations

import atexit
import os
import threading

from sandboxd.errors import IsolationError
from sandboxd.isolation import cgroups, landlock, mountsteps, protect
from sandboxd.isolation.box import (
    SHELLS,
    check_user,
    hand_over,
    in_words,
    namespaced,
    rlimits,
    system_call_filter,
    trial,
    trial_plan,
)
from sandboxd.isolation.ends import Opened
from sandboxd.isolation.keeper import Keeper
from sandboxd.isolation.look import Look
from sandboxd.isolation.mountsteps import Steps
from sandboxd.isolation.nativebox import NativeBox
from sandboxd.isolation.pool import Caps
from sandboxd.isolation.shelf import Figures
from sandboxd.isolation.zygotes import Identities, Template, Zygote, pair
from sandboxd.model import Enforcement, LaunchPlan, Limits, NetworkMode, Probe, Stdio
from sandboxd.model.launch import CWD_REPORT_FD

FIX = (
    "allow unprivileged user namespaces (`sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`) on Linux "
    "5.12 or later; where only bubblewrap may make them (AppArmor of Ubuntu 24.04) sandboxd uses the `bwrap` backend"
)
UMASK = 0o022


class Native:
    """See the module. One instance serves all boxes; `probe` must show once that this machine can build one."""

    name = "native"

    def __init__(self) -> None:
        self._works = False
        self._zygote: Zygote | None = None
        self._keeper: Keeper | None = None
        self._caps = Caps()
        self._enforcements: dict[tuple[NetworkMode, Limits, int], Enforcement] = {}
        self._lock = threading.Lock()

    def probe(self) -> Probe:
        """Build a real box and look what holds in it; remove control groups that killed daemons left."""
        cgroups.sweep()
        self._works = True  # for the trial
        error = trial(self, trial_plan())
        self._works = not error
        if error:
            self.close()
            return Probe(self.name, works=False, error=error, fix=FIX)
        return Probe(self.name, works=True, enforcement=self.enforcement(trial_plan()))

    def enforcement(self, plan: LaunchPlan) -> Enforcement:
        """What is enforced for that plan; raises IsolationError when no trial run has worked."""
        self._need_trial()
        key = (plan.network, plan.limits, plan.uid)  # all of a plan that `namespaced` looks at
        known = self._enforcements.get(key)
        if known is None:
            known = self._enforcements[key] = namespaced(self.name, plan, landlock.abi())
        return known

    def _need_trial(self) -> None:
        if not self._works:
            probe = self.probe()
            if not probe.works:
                raise IsolationError(f"no sandbox can be built here: {probe.error}", fix=probe.fix)

    @in_words
    def start(self, plan: LaunchPlan, stdio: Stdio) -> NativeBox:
        """Start a plan. The caller keeps and closes `stdio`. Raises IsolationError; nothing runs then."""
        enforcement = self.enforcement(plan)
        if (plan.uid, plan.gid) != (os.geteuid(), os.getegid()):
            check_user(plan)
            hand_over(stdio, plan)
        look = Look()
        plan, lease = protect.prepare(plan, look)
        try:
            box, guards = self._keeper_now().take(plan, look), mountsteps.guards(plan)
            fds = [stdio.stdin, stdio.stdout, stdio.stderr, *([stdio.cwd_report] if stdio.cwd_report >= 0 else [])]
            try:
                box.give(order(plan, guards), fds, enforcement, lease, plan.kept_for if self._caps.session else "")
            except BaseException:
                box.retire()
                box.dispose()
                raise
            return box
        except BaseException:
            if lease is not None:
                lease.release()
            raise

    def configure(self, caps: Caps) -> None:
        """Take other caps from now on, and give up all that is ready: a reload may have changed what it was made for."""
        with self._lock:
            self._caps = caps
            if self._keeper is not None:
                self._keeper.caps = caps
                self._keeper.empty()

    def drain(self) -> None:
        """Give up everything that is ready; boxes with a command are not touched."""
        if self._keeper is not None:
            self._keeper.drain()

    def figures(self) -> Figures | None:
        """The pool's, None while nothing has been started."""
        return self._keeper.figures() if self._keeper is not None else None

    def expect(self, plan: LaunchPlan) -> None:
        """Have a box ready soon for the first command of a plan, which may never come. Raises IsolationError."""
        self._keeper_now().expect(self._looked_at(plan), 1)

    def prepare(self, plan: LaunchPlan, count: int = 1, timeout: float = 5.0) -> bool:
        """Have so many boxes ready for a plan; False when it can have none, or not in `timeout` seconds. Blocking."""
        return self._keeper_now().prepare(self._looked_at(plan), count, timeout)

    def _looked_at(self, plan: LaunchPlan) -> LaunchPlan:
        if (plan.uid, plan.gid) != (os.geteuid(), os.getegid()):
            check_user(plan)
        self._need_trial()
        plan, lease = protect.prepare(plan, Look())
        if lease is not None:
            lease.release()
        return plan

    def ready(self, plan: LaunchPlan, count: int = 1, timeout: float = 5.0) -> bool:
        """Wait until use alone has made so many boxes ready for a plan; False when they are not in `timeout` seconds."""
        plan, lease = protect.prepare(plan, Look())
        if lease is not None:
            lease.release()
        return self._keeper_now().await_ready(plan, count, timeout)

    def trust(self) -> None:
        """Go without a trial run; for who has seen one of another instance."""
        self._works = True

    def kept(self, plan: LaunchPlan, timeout: float = 5.0) -> str:
        """Wait until a box that has run a command waits for the next one of the plan's session: ""; else why none does."""
        return self._keeper_now().await_kept(protect.prepare(plan, Look())[0], timeout)

    def forget(self, session: str, tmp: str) -> None:
        """Give up what waits for a session that has ended, whose temporary directory was `tmp`."""
        if self._keeper is not None:
            self._keeper.forget(session, tmp)

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote is not None else None

    def _keeper_now(self) -> Keeper:
        with self._lock:
            if self._keeper is None:
                self._keeper = Keeper(self._template, make_box, self._caps)
                atexit.register(self.close)
            return self._keeper

    def _template(self, plan: LaunchPlan, steps: Steps) -> Template:
        with self._lock:
            if self._zygote is not None and not self._zygote.alive():
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = Zygote()
            return self._zygote.template(template_config(plan, steps, again=self._caps.session and bool(plan.kept_for)))

    def close(self) -> None:
        """End the pool and the zygote, and with it every box; a later start makes others."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
            zygote, self._zygote = self._zygote, None
        if keeper is not None:
            keeper.close()
        if zygote is not None:
            zygote.close()
        cgroups.settle()


def make_box(template: Template, plan: LaunchPlan, expected: Identities | None, spare: bool) -> NativeBox:
    """Ask a template for a box, as `Template.ask`; it is being made when this returns. Raises IsolationError, OSError."""
    with Opened() as opened:
        groups = cgroups.join(plan.limits, plan.uid, opened.take)
        try:
            ours, theirs = pair()
        except BaseException:
            cgroups.remove(groups.paths)
            raise
        with theirs:
            try:
                box = NativeBox(ours, template, groups.paths)
            except BaseException:
                ours.close()
                cgroups.remove(groups.paths)
                raise
            try:
                template.ask(theirs.fileno(), groups.fds, expected, spare)
            except BaseException:
                box.retire()
                box.dispose()
                raise
        return box


def template_config(plan: LaunchPlan, steps: Steps, *, again: bool) -> dict[str, object]:
    """What the zygote's children read; plain values only. All that a box is but for its command. `again`: its boxes may be
    used for more than one."""
    rules = landlock.ruleset(plan, landlock.abi()) if landlock.abi() >= landlock.MIN_ABI else None
    return {
        "uid": plan.uid,
        "gid": plan.gid,
        "umask": UMASK,
        "steps": steps.template,
        "fresh": steps.fresh,
        "private": plan.private,
        "late": steps.late,
        "again": again,
        "own_network": plan.network is not NetworkMode.HOST,
        "landlock": (rules.attr, rules.rules) if rules is not None else None,
        "rlimits": rlimits(plan.limits),
        "seccomp": system_call_filter(plan),
    }


def order(plan: LaunchPlan, guards: tuple[str, ...]) -> dict[str, object]:
    """What a box is told when its command comes."""
    return {
        "argv": plan.argv,
        "env": dict(plan.env),
        "cwd": plan.cwd,
        "tty": plan.tty,
        "guard": guards,
        "programs": SHELLS,
        "report_at": CWD_REPORT_FD,
    }
