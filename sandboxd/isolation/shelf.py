# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pool has of one template, by what it is found, and what it tells of all."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from sandboxd.isolation import mountsteps
from sandboxd.isolation.kept import Kept
from sandboxd.isolation.look import Look
from sandboxd.isolation.mountsteps import Steps
from sandboxd.isolation.nativebox import NativeBox
from sandboxd.isolation.pool import Demand, Stock
from sandboxd.isolation.zygotes import Identities, Template
from sandboxd.model import LaunchPlan


@dataclass(slots=True)
class Entry:
    """One template and what belongs to it. `plan` is that of its first command, of which only the key's part is used."""

    key: Hashable
    plan: LaunchPlan
    steps: Steps
    template: Template
    demand: Demand = field(default_factory=Demand)
    boxes: list[NativeBox] = field(default_factory=list)
    kept: Kept = field(default_factory=Kept)

    def stock(self) -> Stock:
        return Stock(self.demand, len(self.boxes), bool(self.plan.kept_for), self.kept.since())

    def all(self) -> list[NativeBox]:
        return [*self.boxes, *self.kept.boxes()]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the status tells: boxes and templates ready now; starts from a ready box, a template, or neither; and starts in a
    box that has run a command of the same session."""

    boxes: int
    templates: int
    warm: int
    from_template: int
    cold: int
    reused: int = 0


def key_of(plan: LaunchPlan) -> Hashable:
    """What of a plan is the box's own; the rest comes with the command.

    A new field of LaunchPlan belongs here or into `native.order`; tests/isolation/test_isolation_native.py asks for one.
    """
    return (
        mountsteps.shared_mounts(plan),
        plan.files,
        plan.private,
        plan.writable,
        plan.network,
        plan.limits,
        plan.uid,
        plan.gid,
        plan.deny_syscalls,
        plan.allow_unix_sockets,
        plan.allow_ptrace,
        bool(plan.absent),
        bool(plan.kept_for),
    )


def identities(steps: Steps, look: Look) -> Identities:
    """What the host has now at the paths on which a template relies."""
    return tuple([look.at(path) for path in steps.watched])
