# SPDX-License-Identifier: GPL-3.0-or-later
"""The backends in order of strength, probing them, and choosing one.

To add a backend: a class with the methods of `model.Backend`, its name here, the contract suite in
tests/isolation/test_isolation_contract.py for it. `probe` must run a real trial; `start` must never run anything bare.
"""

from __future__ import annotations

from sandboxd.config import IsolationSettings
from sandboxd.errors import IsolationError
from sandboxd.isolation.bwrap import FIX_INSTALL, Bwrap
from sandboxd.isolation.hostfacts import host_facts
from sandboxd.isolation.native import Native
from sandboxd.isolation.pool import Caps
from sandboxd.isolation.unboxed import Unboxed
from sandboxd.model import Backend, Enforcement, LaunchPlan, Layer, NetworkMode, Probe, Profile, Require, Strength

__all__ = ["BACKENDS", "choose", "configure", "drain", "expect", "forget", "host_facts", "probe_all", "shortfall"]

NATIVE = Native()
# In order of preference. The first two confine alike; of the others only what a profile names in `fallback` is used for it.
BACKENDS: tuple[Backend, ...] = (NATIVE, Bwrap(), Unboxed("landlock", confines=True), Unboxed("none", confines=False))

FULL = ("native", "bwrap")
AUTO = "auto"
BARE = "none"
# What no backend enforces on any machine, in words; docs/threat-model.md says more of each.
GAPS: tuple[str, ...] = (
    "the kernel is shared: a bug in it is a way out",
    'an allowed network (`mode = "host"`) is open to every address',
    "what a command may read it may print; a secret in a file with an innocent name is not hidden",
    "a repository or a settings file deep in the workspace that a command creates is found when it has ended, not before",
    "the disk: the workspace is bounded by `file_size` only",
)


def probe_all() -> tuple[Probe, ...]:
    """Run the trial of every backend. Blocking: tens of milliseconds each."""
    return tuple(backend.probe() for backend in BACKENDS)


def configure(settings: IsolationSettings) -> None:
    """How many boxes may wait, and whether also for one session; what waits now is given up."""
    NATIVE.configure(Caps(boxes=settings.pool_boxes, memory=settings.pool_memory, session=settings.pool_session_boxes))


def expect(backend: Backend, plan: LaunchPlan) -> None:
    """Where a backend can, have a sandbox ready soon for a plan that will probably be used. Raises IsolationError."""
    if backend is NATIVE:
        NATIVE.expect(plan)


def forget(session: str, tmp: str) -> None:
    """Give up every box that waits for a session, which has ended, and what shows its temporary directory."""
    NATIVE.forget(session, tmp)


def drain() -> None:
    """Give up every box that waits for a command. Blocking: milliseconds."""
    NATIVE.drain()


def choose(profile: Profile, probes: tuple[Probe, ...], *, explicit: bool = True, preferred: str = AUTO) -> Backend:
    """The first backend that works and is as strong as the profile requires, out of FULL and the profile's `fallback`.

    `preferred`: one backend instead of those in FULL. `explicit`: somebody named this profile for the session; one that is
    merely the default never runs a command bare.
    Raises IsolationError with the fix when there is none; nothing then runs.
    """
    by_name = {probe.backend: probe for probe in probes}
    reasons, fix = [], FIX_INSTALL
    for backend in BACKENDS:
        probe = by_name.get(backend.name)
        named = backend.name in FULL if preferred == AUTO else backend.name == preferred
        if probe is None or not (named or backend.name in profile.fallback):
            continue
        if backend.name == BARE and not explicit:
            reasons.append(f"{BARE}: only for a session that names the profile")
            continue
        if not probe.works or probe.enforcement is None:
            reasons.append(f"{backend.name}: {probe.error}")
            fix = probe.fix or fix
            continue
        lacking = shortfall(profile, probe.enforcement)
        if not lacking:
            return backend
        reasons.append(f"{backend.name}: {lacking}")
        fix = 'repair that, or let the profile say `[isolation] require = "fs"`'
    said = "; ".join(reasons) or "no backend was tried"
    raise IsolationError(f"no sandbox for profile `{profile.name}` ({said})", fix=fix)


def shortfall(profile: Profile, enforcement: Enforcement) -> str:
    """What an enforcement lacks for a profile's `require`, "" when nothing.

    A layer that the profile itself opens (the host's network) is no shortfall.
    """
    if profile.require is Require.NONE:
        return ""
    needed = set(Layer) if profile.require is Require.FULL else {Layer.FILESYSTEM, Layer.PRIVILEGES}
    if profile.network is NetworkMode.HOST:
        needed.discard(Layer.NETWORK)
    least = {Strength.FULL} if profile.require is Require.FULL else {Strength.FULL, Strength.PARTIAL}
    for state in enforcement.layers:
        if state.layer in needed and state.strength not in least:
            return f"{state.layer.value} is {state.strength.value} ({', '.join(state.missing)})"
    return ""
