# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything between the API and the kernel, put together: what is asked of it, its configuration, its state, its end.

The order of the stages that one command goes through stands in `sandboxd.processing`.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from enum import Enum, unique

from sandboxd import __version__
from sandboxd.catalog import Catalog
from sandboxd.config import Config, Directories
from sandboxd.consult import hooks
from sandboxd.consult.approvals import Approvals
from sandboxd.consult.classifier import ClassifierStatus
from sandboxd.consulting import Consulting
from sandboxd.decisions import Decisions, touches_safety
from sandboxd.errors import SandboxdError, Unavailable
from sandboxd.executions import Executions
from sandboxd.expecting import Expecting
from sandboxd.isolation import backends
from sandboxd.isolation.shelf import Figures as PoolFigures
from sandboxd.jobs import Turn, validate
from sandboxd.judge import Judged
from sandboxd.model import Behavior, Decision, Enforcement, Probe, Request, Tool, ToolCall
from sandboxd.past import Past
from sandboxd.processing import Processing
from sandboxd.questions import Questions, put
from sandboxd.record.audit import Record
from sandboxd.run.execution import Execution
from sandboxd.session import Role, SessionSpec, SessionState
from sandboxd.sessions import Sessions, no_place
from sandboxd.toolbox import BUILT_IN
from sandboxd.toolcalls import denied
from sandboxd.tooluses import ToolUses, Use


@unique
class State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DEGRADED = "degraded"  # no sandbox can be built: nothing runs
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Status:
    """What GetStatus tells. Times in seconds."""

    version: str
    state: State
    uptime: float
    probes: tuple[Probe, ...]
    enforcement: Enforcement | None
    sessions: int
    running: int
    waiting: int
    approvals: int
    revision: str
    errors: tuple[str, ...]
    runtime_dir: str
    state_dir: str
    classifier: ClassifierStatus
    breakers_open: int  # sessions whose denial breaker is open
    pool: PoolFigures | None  # None: no boxes are made beforehand


@dataclass(frozen=True, slots=True)
class Checked:
    """A decision without a run."""

    judged: Judged
    enforcement: Enforcement | None
    decision_id: str

    @property
    def decision(self) -> Decision:
        return self.judged.decision


class Engine:
    """Owns everything between the API and the kernel. All methods run on one event loop."""

    def __init__(self, config: Config, dirs: Directories, record: Record, probes: tuple[Probe, ...]) -> None:
        self.config_path: str | None = None  # the file that replaces the user's, when one was named
        self.dirs = dirs
        self.record = record
        self.sessions = Sessions(config, dirs)
        self.consulting = Consulting(self.sessions, record, dirs)
        self.catalog = Catalog(config, dirs, probes)
        self._questions = Questions(self.sessions, self.catalog, dirs)
        self._expecting = Expecting(self.catalog, self._questions)
        self.tool_uses = ToolUses(dirs.home, self._questions.about_use, self.consulting.classified_use)
        self.decisions = Decisions(record)
        self.processing = Processing(self.sessions, self.catalog, record, self._questions, self.consulting, self.decisions)
        spool = f"{dirs.state}/spool"
        os.makedirs(spool, mode=0o700, exist_ok=True)
        self.past = Past(record, spool)
        self.executions = Executions(spool, self.sessions, self.past, self._questions, self.processing.run)
        self.state = State.STARTING
        self._started_at = time.monotonic()
        self._errors: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        """What is in force."""
        return self.sessions.config

    @property
    def approvals(self) -> Approvals:
        return self.consulting.approvals

    # -- status, reload ----------------------------------------------------------------------------------------------

    def set_probes(self, probes: tuple[Probe, ...]) -> None:
        """Take the result of the trial runs; the daemon is SERVING only when one of them can run the default profile."""
        self.catalog.probes = probes
        usable = self.catalog.enforcement(self.catalog.profile(""))
        self.state = State.SERVING if usable is not None else State.DEGRADED

    def status(self) -> Status:
        running, waiting = self.executions.figures()
        sessions = self.sessions.list()
        errors = self._errors + tuple(f"session {s.id}: {error}" for s in sessions for error in s.rule_errors)
        return Status(
            version=__version__,
            state=self.state,
            uptime=time.monotonic() - self._started_at,
            probes=self.catalog.probes,
            enforcement=self.catalog.enforcement(self.catalog.profile("")),
            sessions=len(sessions),
            running=running,
            waiting=waiting,
            approvals=len(self.approvals.list()),
            revision="",
            errors=errors,
            runtime_dir=self.dirs.runtime,
            state_dir=self.dirs.state,
            classifier=self.consulting.classifying.classifier.status(),
            breakers_open=sum(session.denials.open for session in sessions),
            pool=backends.NATIVE.figures(),
        )

    def reload(self, config: Config) -> None:
        """Put a new configuration in force, all or nothing. Raises ConfigError and keeps the last good state."""
        try:
            self.catalog.reload(config)
        except SandboxdError as error:
            self._errors = (str(error),)
            raise
        backends.configure(config.isolation)
        self.sessions.configure(config)
        self.consulting.classifying.classifier.configure(config.classifier)
        self._errors = ()
        for session in self.sessions.list():
            session.refresh_rules(config, self.dirs)

    def report_error(self, error: str) -> None:
        """Show a configuration error in the status until the next good reload."""
        self._errors = (error,)

    # -- deciding ----------------------------------------------------------------------------------------------------

    async def check_use(self, call: ToolCall, session: SessionState) -> tuple[Checked, Use]:
        """Decide on a use of a tool that the front-end runs, with the hooks that have a say; recorded as a decision of no
        execution. Raises as `check` does."""
        use = Use(session, call)
        judged = await self.tool_uses.judge(use)
        decision = judged.decision
        if decision.reason == "classifier.denied":
            session.denials = session.denials.denied()
        # A front-end acts on the answer at once; nothing follows the one to a command but Start.
        acts = decision.behavior is Behavior.ALLOW and touches_safety(decision)
        text = judged.analysis.text
        await self.decisions.keep(
            session, "", text, judged, decision, use.stages.timings, durable=acts, decision_id=use.decision_id
        )
        return Checked(judged, None, use.decision_id), use

    async def check(self, request: Request, session: SessionState) -> Checked:
        """Decide on a command without running it. Recorded as a decision of no execution. Raises RequestError for an invalid
        request, Exhausted, Unavailable."""
        judged = await put(session, self._questions.about(request, session))
        decision_id = await self.decisions.keep(session, "", request.text, judged, judged.decision, judged.timings, durable=False)
        return Checked(judged, self.catalog.enforcement(self.catalog.profile(session.profile)), decision_id)

    def tools(self, session: SessionState) -> tuple[Tool, ...]:
        """The tools of a session that no rule denies wholly: those understood here by name, then the declared ones by name.
        Raises ConfigError."""
        session.refresh_rules(self.config, self.dirs)
        known = (*BUILT_IN.values(), *session.tools)
        return tuple(tool for tool in known if not denied(tool, session.rules, session.scope))

    # -- running -----------------------------------------------------------------------------------------------------

    async def start(self, request: Request, session: SessionState, turn: Turn | None = None) -> Execution:
        """Start one command; returns at once, its events tell the rest. Idempotent by `request_id` within a session.
        `turn` is its place in a batch.

        Raises RequestError, Exhausted or Unavailable before anything is recorded.
        """
        if self.state is State.DRAINING:
            raise Unavailable("the daemon is draining", fix="retry when it has restarted")
        validate(request, unsandboxed=self.config.policy.allow_unsandboxed)
        return self.executions.start(request, session, turn)

    # -- sessions, the end ---------------------------------------------------------------------------------------------

    async def create_session(self, spec: SessionSpec, role: Role, secret: str = "") -> SessionState:
        """A new session, recorded, its SessionStart hooks run. Raises what `Sessions.create` raises."""
        session = self.sessions.create(spec, role, secret)
        try:
            self.past.remember(session.id, session.secret)
        except OSError as error:
            self.past.forget(session.id)
            self.sessions.delete(session)
            raise no_place(error) from None
        self.record.record_session(
            session.id, session.workspace, session.mode.value, profile=session.profile, parent_id=spec.parent_id
        )
        await self.consulting.session_began(session)
        self._expecting.begin(session)
        return session

    async def end_session(self, session: SessionState) -> None:
        """Cancel what a session still runs, wait for it, and forget the session. Children end with it, but for those that
        were made to outlive it; nobody is left whom these could ask."""
        for child in self.sessions.children(session):
            if not child.spec.outlives:
                await self.end_session(child)
        jobs = self.executions.of(session)
        await self._expecting.end(session.id)
        await self.executions.stop(jobs, "session_deleted")
        await self.consulting.session_ended(session)
        self.past.forget(session.id)
        self.tool_uses.forget(session.id)
        self.consulting.classifying.classifier.forget(session.id)
        backends.forget(session.id, session.isolation.tmp)
        self.sessions.delete(session)
        for pending in self.approvals.list(session.id):
            pending.cancel("the session that would answer has ended")
        for job in jobs:
            self.executions.forget(job.execution.id)

    async def drain(self) -> None:
        """Take nothing new, let running commands end, and after `daemon.drain_seconds` end them."""
        self.state = State.DRAINING
        await self._expecting.close()
        await self.executions.drain(self.config.daemon.drain_seconds)
        await asyncio.to_thread(backends.drain)
        await hooks.end_background()
        await self.consulting.classifying.close()
        self.sessions.close()
