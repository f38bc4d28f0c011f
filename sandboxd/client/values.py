# SPDX-License-Identifier: GPL-3.0-or-later
"""What the client answers with, beside the values of `sandboxd.model`. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.client import decode, figures
from sandboxd.client.figures import NO_USAGE, ClassifierInfo, ClassifierUsage, PoolInfo
from sandboxd.model import Analysis, Behavior, Decision, Enforcement, Mode, ModelText, Probe, Result, Timing
from sandboxd.v1 import admin_pb2, approval_pb2, decision_pb2, execution_pb2, session_pb2


@dataclass(frozen=True, slots=True)
class Run:
    """A command that ended. Test `ok`; a denied command is not an exception: `decision` says why."""

    text: str
    result: Result
    decision: Decision | None  # None: it ended before it was judged
    profile: str = ""  # the isolation profile it ran under
    stdout: bytes = b""
    stderr: bytes = b""
    dropped: int = 0  # bytes of output that were not collected, because of `max_output` or a gap

    @property
    def ok(self) -> bool:
        return self.result.code == 0

    @property
    def exit_code(self) -> int:
        """As a shell would report it: 128+n for a signal, 124 time-out, 126 denied, 125 not run."""
        return self.result.code

    @property
    def output(self) -> str:
        """Standard output as text; what is not UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Check:
    """A decision without a run."""

    decision: Decision
    analysis: Analysis
    decision_id: str = ""  # under which it is recorded
    steering: str = ""  # for the model: what stopped it, and what to do instead


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """A decision on the use of a tool. `text` shows the use; `exclude` are globs of what a search must leave out."""

    decision: Decision
    analysis: Analysis
    decision_id: str
    text: str
    exclude: tuple[str, ...] = ()
    steering: str = ""  # for the model: what stopped it, and what to do instead
    updated_input: Mapping[str, Any] | None = None  # as a hook rewrote it, which is what was judged: call the tool with this
    notes: tuple[str, ...] = ()  # what hooks had to say besides

    @property
    def allowed(self) -> bool:
        return self.decision.behavior is Behavior.ALLOW


@dataclass(frozen=True, slots=True)
class SessionInfo:
    id: str
    workspace: str
    cwd: str
    mode: Mode
    profile: str
    headless: bool
    additional: tuple[str, ...]
    allow: tuple[str, ...]
    ask: tuple[str, ...]
    deny: tuple[str, ...]
    created: float
    rule_errors: tuple[str, ...]
    parent_id: str = ""
    mode_in_force: Mode = Mode.DEFAULT
    denials: tuple[int, int] = (0, 0)  # by the classifier: consecutive, in all
    asks_human: bool = False  # so many denials that a human is asked instead of the classifier
    classifier_usage: ClassifierUsage = NO_USAGE
    rule_notes: tuple[str, ...] = ()  # what its rule files say without effect
    context: tuple[str, ...] = ()  # what SessionStart hooks said, for the model


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    id: str
    session_id: str
    text: str
    state: str  # waiting, running, ended
    result: Result | None
    last_sequence: int = 0  # of its newest event
    model_text: ModelText | None = None  # what a model reads of it; None before its end, and where many are listed


@dataclass(frozen=True, slots=True)
class Approval:
    """`risk` (0 to 100) is made of `risk_reasons`; it orders approvals and decides nothing."""

    id: str
    session_id: str
    execution_id: str
    text: str
    cwd: str
    decision: Decision
    created: float
    expires: float
    risk: int = 0
    risk_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """An approval that is over. `who` is "" when nobody answered it."""

    id: str
    verdict: Behavior
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    id: str
    session_id: str
    execution_id: str
    text: str
    cwd: str
    mode: Mode
    created: float
    decision: Decision
    analysis: Analysis | None = None  # what was understood of it, without secrets; only of a decision asked for by its id
    timings: tuple[Timing, ...] = ()  # of the stages, in their order


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """`uptime` in seconds; `enforcement` is None when nothing can be confined."""

    version: str
    state: str  # starting, serving, degraded, draining
    uptime: float
    backends: tuple[Probe, ...]
    enforcement: Enforcement | None
    sessions: int
    running: int
    waiting: int
    approvals: int
    errors: tuple[str, ...]
    runtime: str
    state_directory: str
    classifier: ClassifierInfo
    pool: PoolInfo | None  # None: it makes no boxes beforehand


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a profile."""

    origin: str
    message: str
    fix: str


def session_info(message: session_pb2.Session) -> SessionInfo:
    return SessionInfo(
        id=message.session_id,
        workspace=message.workspace,
        cwd=message.cwd,
        mode=decode.MODE.get(message.mode, Mode.DEFAULT),
        profile=message.profile,
        headless=message.headless,
        additional=tuple(message.additional_directories),
        allow=tuple(message.allow),
        ask=tuple(message.ask),
        deny=tuple(message.deny),
        created=decode.seconds(message.create_time),
        rule_errors=tuple(message.rule_errors),
        parent_id=message.parent_session_id,
        mode_in_force=decode.MODE.get(message.mode_in_force, Mode.DEFAULT),
        denials=(message.denials.consecutive, message.denials.total),
        asks_human=message.denials.open,
        classifier_usage=figures.usage(message.classifier_usage),
        rule_notes=tuple(message.rule_notes),
        context=tuple(message.context),
    )


def unknown_session(session_id: str) -> SessionInfo:
    """A session of which only the id is known."""
    return SessionInfo(session_id, "", "", Mode.DEFAULT, "", True, (), (), (), (), 0.0, ())


def execution_info(message: execution_pb2.Execution, model_text: ModelText | None = None) -> ExecutionInfo:
    return ExecutionInfo(
        id=message.execution_id,
        session_id=message.session_id,
        text=message.text,
        state=_STATES.get(message.state, "waiting"),
        result=decode.result(message.result) if message.HasField("result") else None,
        last_sequence=message.last_sequence,
        model_text=model_text,
    )


def approval(message: approval_pb2.Approval) -> Approval:
    return Approval(
        id=message.approval_id,
        session_id=message.session_id,
        execution_id=message.execution_id,
        text=message.text,
        cwd=message.cwd,
        decision=decode.decision(message.decision, message.text),
        created=decode.seconds(message.create_time),
        expires=decode.seconds(message.expire_time),
        risk=message.risk,
        risk_reasons=tuple(message.risk_reasons),
    )


def settled(message: approval_pb2.ApprovalSettled) -> Settled:
    return Settled(message.approval_id, decode.behavior(message.verdict), message.who, message.reason)


def decision_record(message: decision_pb2.DecisionRecord) -> DecisionRecord:
    return DecisionRecord(
        id=message.decision_id,
        session_id=message.session_id,
        execution_id=message.execution_id,
        text=message.text,
        cwd=message.cwd,
        mode=decode.MODE.get(message.mode, Mode.DEFAULT),
        created=decode.seconds(message.create_time),
        decision=decode.decision(message.decision, message.text),
        analysis=decode.analysis(message.analysis, message.text, message.cwd) if message.HasField("analysis") else None,
        timings=tuple(Timing(item.stage, decode.seconds(item.elapsed)) for item in message.timings),
    )


def daemon_status(message: admin_pb2.AdminServiceGetStatusResponse) -> DaemonStatus:
    return DaemonStatus(
        version=message.version,
        state=_DAEMON.get(message.state, "degraded"),
        uptime=decode.seconds(message.uptime),
        backends=tuple(decode.probe(item) for item in message.backends),
        enforcement=decode.enforcement(message.enforcement) if message.HasField("enforcement") else None,
        sessions=message.sessions,
        running=message.running,
        waiting=message.waiting,
        approvals=message.pending_approvals,
        errors=tuple(message.config_errors),
        runtime=message.runtime_directory,
        state_directory=message.state_directory,
        classifier=figures.classifier(message.classifier),
        pool=figures.pool(message.pool) if message.HasField("pool") else None,
    )


_STATES = {
    execution_pb2.EXECUTION_STATE_WAITING: "waiting",
    execution_pb2.EXECUTION_STATE_RUNNING: "running",
    execution_pb2.EXECUTION_STATE_ENDED: "ended",
}
_DAEMON = {
    admin_pb2.DAEMON_STATE_STARTING: "starting",
    admin_pb2.DAEMON_STATE_SERVING: "serving",
    admin_pb2.DAEMON_STATE_DEGRADED: "degraded",
    admin_pb2.DAEMON_STATE_DRAINING: "draining",
}
