# SPDX-License-Identifier: GPL-3.0-or-later
"""What the record holds, as read back. Times are seconds since the epoch; texts are redacted before they are kept."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.model import Behavior, Decision, EndKind, Enforcement, Result, Timing


@dataclass(frozen=True, slots=True)
class SessionRow:
    session_id: str
    parent_id: str
    workspace: str
    mode: str
    profile: str
    at: float


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision with its whole trace. `row` numbers rows in the order they were written; 0 before that.

    `analysis` is a summary as JSON: subcommands, effects, why it was not parsed; `record.understood` reads it. `timings`
    tells how long the stages took, in their order.
    """

    decision_id: str
    session_id: str
    execution_id: str
    text: str
    cwd: str
    mode: str
    at: float
    decision: Decision
    analysis: str
    row: int = 0
    timings: tuple[Timing, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution; `end` is None while it runs. `text` and `cwd` come from its decision."""

    execution_id: str
    session_id: str
    decision_id: str
    text: str
    cwd: str
    profile: str
    enforcement: Enforcement | None
    started: float | None
    finished: float | None
    end: EndKind | None
    result: Result | None
    row: int = 0


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    approval_id: str
    execution_id: str
    session_id: str
    verdict: Behavior
    scope: str
    who: str
    rule: str
    reason: str
    latency: float  # seconds from question to answer
    at: float
    row: int = 0
