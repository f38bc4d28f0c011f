# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m benchmarks.plain`: `sandboxd serve` with one more backend, which starts the shell and nothing else.

For measurements only: what a box costs a client is seen where all else is the same. A session whose profile is called
PROFILE is judged, planned, streamed and recorded like any other, as if its commands had the sandbox of the others; only that
none is made. `sandboxd serve` has no such backend: without a sandbox it still starts a process that ends what a command leaves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from sandboxd.cli.main import main
from sandboxd.isolation import backends
from sandboxd.isolation.box import trial_plan
from sandboxd.model import Backend, Enforcement, ExitStatus, LaunchPlan, Probe, Profile, Stdio

PROFILE = "plain"
SETTINGS = 'extends = "workspace"\n'  # of the profile's file


class PlainBox:
    """`model.Box` of a process that nothing confines."""

    def __init__(self, process: subprocess.Popen[bytes], enforcement: Enforcement) -> None:
        self.enforcement = enforcement
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self._process = process

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass  # it has ended

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def reap(self) -> ExitStatus:
        _, status, used = os.wait4(self.pid, 0)
        os.close(self.pidfd)
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        times = used.ru_utime, used.ru_stime, used.ru_maxrss * 1024
        return ExitStatus(code, None, *times) if code >= 0 else ExitStatus(None, -code, *times)


class Plain:
    """`model.Backend` that says to enforce what the native one does, so that everything is judged alike."""

    name = PROFILE

    def probe(self) -> Probe:
        """Without a trial of its own: a second one of the native backend would make boxes ready for it."""
        return Probe(self.name, works=True, enforcement=backends.NATIVE.enforcement(trial_plan()))

    def enforcement(self, plan: LaunchPlan) -> Enforcement:
        return backends.NATIVE.enforcement(plan)

    def start(self, plan: LaunchPlan, stdio: Stdio) -> PlainBox:
        process = subprocess.Popen(
            plan.argv,
            stdin=stdio.stdin,
            stdout=stdio.stdout,
            stderr=stdio.stderr,
            cwd=plan.cwd,
            env=dict(plan.env),
            start_new_session=True,
        )
        return PlainBox(process, self.enforcement(plan))


def install() -> None:
    plain, choose = Plain(), backends.choose

    def chosen(profile: Profile, probes: tuple[Probe, ...], *, explicit: bool = True, preferred: str = backends.AUTO) -> Backend:
        if profile.name == PROFILE:
            return plain
        return choose(profile, probes, explicit=explicit, preferred=preferred)

    backends.BACKENDS = (*backends.BACKENDS, plain)
    backends.choose = chosen


if __name__ == "__main__":
    install()
    sys.exit(main(["serve"]))
