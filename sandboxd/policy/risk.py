# SPDX-License-Identifier: GPL-3.0-or-later
"""How much could go wrong, as a number: the same for the same effects, without a model. It orders questions to humans
and makes a classifier look twice; it never allows anything, and never denies.

To add a reason: a row in WEIGHTS, the place in `risk` that finds it, and a row in tests/policy/test_policy_auto.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.globs import literal_prefix
from sandboxd.model import Act, Analysis, Direction, Effect, EffectKind, Scope, Sensitivity
from sandboxd.policy.safety import SINKS
from sandboxd.policy.scope import may_read, may_write

WEIGHTS: dict[str, int] = {
    "deletes a whole tree": 25,
    "deletes": 10,
    "overwrites or moves": 5,
    "changes something that is not known": 20,
    "changes something outside the workspace": 30,
    "reads outside the workspace": 5,
    "touches secrets": 30,
    "sends data": 25,
    "sends secrets": 30,  # on top of both
    "fetches": 5,
    "listens": 10,
    "changes the system": 40,
    "acts on other processes": 10,
    "hides code": 20,
    "could not be parsed": 30,
}
MAX = 100
CAUTIOUS = 50  # from here on a classifier's first glance is not enough


@dataclass(frozen=True, slots=True)
class Risk:
    """`score` from 0 to 100; `reasons` are those of WEIGHTS that hold, heaviest first."""

    score: int
    reasons: tuple[str, ...] = ()

    @property
    def cautious(self) -> bool:
        return self.score >= CAUTIOUS


def risk(analysis: Analysis, scope: Scope) -> Risk:
    """The risk of a command. More effects never make it smaller."""
    found: set[str] = set()
    if analysis.unparsed is not None:
        found.add("could not be parsed")
    for effect in analysis.effects:
        found.update(_reasons(effect, scope))
    if {"touches secrets", "sends data"} <= found:
        found.add("sends secrets")
    reasons = sorted(found, key=lambda reason: (-WEIGHTS[reason], reason))
    return Risk(min(sum(WEIGHTS[reason] for reason in reasons), MAX), tuple(reasons))


def _reasons(effect: Effect, scope: Scope) -> list[str]:
    kind = effect.kind
    out = ["touches secrets"] if effect.sensitivity is Sensitivity.SECRET else []
    path = effect.target if effect.target is None or not effect.pattern else literal_prefix(effect.target)
    if kind is EffectKind.READ:
        if path is not None and not may_read(path, scope):
            out.append("reads outside the workspace")
    elif kind in (EffectKind.WRITE, EffectKind.DELETE):
        if path in SINKS:
            return out
        if kind is EffectKind.DELETE:
            out.append("deletes a whole tree" if effect.recursive or effect.pattern else "deletes")
        elif effect.act in (Act.TRUNCATE, Act.RENAME):
            out.append("overwrites or moves")
        if path is None:
            out.append("changes something that is not known")
        elif not may_write(path, scope):
            out.append("changes something outside the workspace")
    elif kind is EffectKind.NETWORK:
        by_direction = {Direction.FETCH: "fetches", Direction.LISTEN: "listens"}
        out.append(by_direction.get(effect.direction, "sends data") if effect.direction is not None else "sends data")
    elif kind is EffectKind.SYSTEM:
        out.append("changes the system")
    elif kind is EffectKind.PROCESS:
        out.append("acts on other processes")
    elif kind is EffectKind.OPAQUE:
        out.append("hides code")
    return out
