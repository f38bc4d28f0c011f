# SPDX-License-Identifier: GPL-3.0-or-later
"""One request from text to result. The order of all stages stands in `Engine._process`, and only there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, unique

from sandboxd import __version__, attending, outputs, toolcalls
from sandboxd.catalog import Catalog
from sandboxd.classifying import Ahead, ground
from sandboxd.config import Config, Directories
from sandboxd.confining import confined, return_home
from sandboxd.consult import hooks
from sandboxd.consult.approvals import Approvals
from sandboxd.consult.classifier import ClassifierStatus
from sandboxd.consult.hookdefs import HookEvent
from sandboxd.consulting import Consulting
from sandboxd.errors import Exhausted, NotFound, RequestError, SandboxdError, Unavailable
from sandboxd.isolation import backends
from sandboxd.isolation.environment import SYSTEM_PATH, search_path
from sandboxd.isolation.shelf import Figures as PoolFigures
from sandboxd.jobs import Job, Turn, validate
from sandboxd.judge import Judged, Question, judge
from sandboxd.model import (
    Behavior,
    Decision,
    EndKind,
    Enforcement,
    ModelText,
    Needs,
    Opinion,
    Probe,
    Request,
    Result,
    Timing,
    Tool,
    ToolCall,
)
from sandboxd.past import Past
from sandboxd.paths import join
from sandboxd.policy.explain import steer
from sandboxd.policy.modes import looser
from sandboxd.record.audit import DecisionRow, Record
from sandboxd.run.execution import Execution
from sandboxd.schedule.driver import Arrivals, Lanes, Place
from sandboxd.session import Role, SessionSpec, SessionState
from sandboxd.sessions import Sessions, no_place
from sandboxd.toolbox import BUILT_IN
from sandboxd.toolcalls import denied
from sandboxd.tooluses import ToolUses, Use

log = logging.getLogger("sandboxd.engine")

_SHORT = 500  # characters of a command that may be judged on the loop's thread
_REJUDGE = 5  # how often facts, rules or modes may change under a command before it is denied


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
        self.config = config
        self.config_path: str | None = None  # the file that replaces the user's, when one was named
        self.dirs = dirs
        self.record = record
        self.sessions = Sessions(config, dirs)
        self.consulting = Consulting(self.sessions, record, dirs)
        self.catalog = Catalog(config, dirs, probes)
        self.tool_uses = ToolUses(dirs.home, self._use_question, self.consulting.classified_use)
        self._spool = f"{dirs.state}/spool"
        os.makedirs(self._spool, mode=0o700, exist_ok=True)
        self.past = Past(record, self._spool)
        self.state = State.STARTING
        self._lanes = Lanes()
        self._arrivals = Arrivals()
        self._jobs: dict[str, Job] = {}
        self._by_request: dict[tuple[str, str], str] = {}
        self._finished: deque[str] = deque()
        self._started_at = time.monotonic()
        self._watchers: set[asyncio.Queue[DecisionRow]] = set()
        self._errors: tuple[str, ...] = ()

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
        jobs = [job for job in self._jobs.values() if job.execution.result is None]
        running = sum(job.started for job in jobs)
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
            waiting=len(jobs) - running,
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
        self.config = config
        self.sessions.configure(config)
        self.consulting.classifying.classifier.configure(config.classifier)
        self._errors = ()
        for session in self.sessions.list():
            session.refresh_rules(config, self.dirs)

    def report_error(self, error: str) -> None:
        """Show a configuration error in the status until the next good reload."""
        self._errors = (error,)

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _question(self, request: Request, session: SessionState) -> Question:
        """What is asked now: rules, mode and directory may have changed since the last time."""
        validate(request, unsandboxed=self.config.policy.allow_unsandboxed)
        session.refresh_rules(self.config, self.dirs)
        cwd = join(session.cwd, request.cwd) if request.cwd else session.cwd
        if not os.path.isdir(cwd):
            raise RequestError(f"the directory `{cwd}` does not exist", field="command.cwd", fix="name an existing one")
        profile = self.catalog.profile(session.profile)
        return Question(
            unsandboxed="request" if request.unsandboxed else "profile none" if self.catalog.bare(profile) else "",
            excluded=self.catalog.excluded,
            text=request.text,
            cwd=cwd,
            scope=session.scope,
            rules=session.rules_with(request.rules),
            mode=session.mode_in_force,
            headless=session.unattended and not self.consulting.answers(session),
            observed=True,
            enforcement_full=self.catalog.full(profile),
            auto_allow_if_sandboxed=self.config.policy.auto_allow_if_sandboxed,
            tables=self.catalog.tables,
            more_path=search_path(profile, session.isolation)[len(SYSTEM_PATH) :],
            breaker_open=session.denials.open,
            broke_promise=session.broke_promise(request.text, cwd),
        )

    def _use_question(self, use: Use) -> Question:
        """What is asked about a use of a tool."""
        session = use.session
        question = self._question(Request(toolcalls.shown(use.call), session.id), session)
        headless = session.unattended and not use.hooks(HookEvent.PERMISSION_REQUEST)
        return dataclasses.replace(question, call=use.call, host_tmp=session.isolation.tmp, headless=headless)

    async def check_use(self, call: ToolCall, session: SessionState) -> tuple[Checked, Use]:
        """Decide on a use of a tool that the front-end runs, with the hooks that have a say; recorded as a decision of no
        execution. Raises as `check` does."""
        use = Use(session, call)
        judged = await self.tool_uses.judge(use)
        decision = judged.decision
        if decision.reason == "classifier.denied":
            session.denials = session.denials.denied()
        # A front-end acts on the answer at once; nothing follows the one to a command but Start.
        acts = decision.behavior is Behavior.ALLOW and (decision.protected or decision.step == "2a")
        text = judged.analysis.text
        await self._keep(session, "", text, judged, decision, use.stages.timings, durable=acts, decision_id=use.decision_id)
        return Checked(judged, None, use.decision_id), use

    async def check(self, request: Request, session: SessionState) -> Checked:
        """Decide on a command without running it. Recorded as a decision of no execution. Raises RequestError for an invalid
        request, Exhausted, Unavailable."""
        question = self._question(request, session)
        judged = await _judged(session, question)
        decision_id = await self._keep(session, "", request.text, judged, judged.decision, judged.timings, durable=False)
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
        key = (session.id, request.request_id)
        if request.request_id and key in self._by_request:
            job = self._jobs[self._by_request[key]]
            if job.asked != request:
                raise RequestError("the same request_id came with another command", field="request_id", fix="use a new one")
            return job.execution
        if len(self._jobs) - len(self._finished) >= self.config.run.max_executions:
            raise Exhausted("too many executions", fix="wait, or raise `run.max_executions`")
        execution_id = f"e-{secrets.token_hex(8)}"
        job = Job(Execution(execution_id, session.id, request.text, self._spool), request, session, request, turn=turn)
        if turn is None:
            job.place = self._arrivals.arrive(session.id)
        self._jobs[execution_id] = job
        if request.request_id:
            self._by_request[key] = execution_id
        job.task = asyncio.create_task(self._run(job), name=execution_id)
        return job.execution

    async def _run(self, job: Job) -> None:
        """Guard around `_process`: whatever happens, the execution gets its terminal event and its record."""
        execution = job.execution
        try:
            job.begun = True
            if execution.cancelled.is_set():
                raise asyncio.CancelledError
            result = await self._process(job)
        except asyncio.CancelledError:
            result = Result(EndKind.CANCELLED, 130, cause=execution.cancel_cause or "daemon_stopped")
        except SandboxdError as error:
            result = Result(EndKind.FAILED, 125, cause=str(error))
        except Exception as error:
            log.exception("execution %s failed", execution.id)
            result = Result(EndKind.FAILED, 125, cause=f"internal error: {error!r}")
        if job.place is not None:
            job.place.leave()
        result = dataclasses.replace(result, cwd=result.cwd or job.session.cwd, notes=tuple(job.notes))
        try:
            result = await outputs.settled(job, result, self.sessions.spills, self.config.run)
        except Exception:  # the terminal event comes whatever the disk does
            log.exception("the output of %s could not be stored", execution.id)
        self.record.record_execution_finished(execution.id, result, secrets=job.session.secrets)
        execution.finish(result)
        if job.expiry is not None:
            job.expiry.cancel()
        self._finished.append(execution.id)
        while len(self._finished) > self.config.run.keep_finished:
            self._forget(self._finished.popleft())

    async def _process(self, job: Job) -> Result:
        """The order of stages: hooks, judge, ask, wait for the lane, judge again unless nothing can have changed, record,
        confine, run, hooks."""
        execution, session = job.execution, job.session
        execution.queued("")
        job.notes += return_home(session)
        ahead = self.consulting.ahead(job, lambda: self._question(job.request, session))
        try:
            await self.consulting.before(job)
            if job.rewritten or any(opinion.verdict is Behavior.DENY for opinion in job.opinions):
                ahead.end()
            return await self._settled(job, ahead)
        finally:
            ahead.end()

    async def _settled(self, job: Job, ahead: Ahead) -> Result:
        """From what the hooks left of a request to its result; `ahead` ends with the decision."""
        execution, session = job.execution, job.session
        for _ in range(_REJUDGE):
            question = self._question(job.request, session)
            early = await ahead.judged(question)
            judged, grounds = early or (await _judged(session, question, job.opinions), "")
            job.stages.judged(judged)
            if isinstance(judged.outcome, Needs):
                if job.place is not None:
                    job.place.leave()
                answered = await self.consulting.ask(job, judged, grounds)
                if answered is None:
                    continue  # it is another question now
                judged = answered
            ahead.end()
            decision = judged.decision
            if decision.behavior is not Behavior.ALLOW:
                return await self._denied(job, judged, decision)
            analysis = judged.analysis
            alone = analysis.changes_cwd or not analysis.concurrency_safe or judged.inputs.broke_promise
            waiting = time.monotonic()
            if job.place is not None:
                await job.place.open.wait()
            async with self.turn(session, not alone, execution.queued, job.turn, job.place):
                admitted = time.monotonic()
                job.stages.took("lane", admitted - waiting)
                fresh = await _judged(session, self._question(job.request, session), judged.inputs.opinions)
                job.stages.took("admission", time.monotonic() - admitted)
                if not await self._same_ground(job, judged, fresh):
                    continue  # what was judged, or what somebody agreed to, is not what would run now
                decision = fresh.decision
                job.judged, job.revision = fresh, session.revision
                await self._record(job, fresh, decision)
                execution.decided(decision)
                self.consulting.classifying.ran(session, job.request.text)
                result = await confined(job, fresh, alone, self.catalog, self.record, self.config.run)
            if result.end is EndKind.EXITED and result.code == 0:
                session.denials = session.denials.ran()
            await self.consulting.after(job, result)
            return result
        decision = dataclasses.replace(
            judged.decision,
            behavior=Behavior.DENY,
            reason="facts_unstable",
            message="the files this command is about, or the rules and the mode, kept changing while it was judged",
            flip="run it again when nothing else changes the workspace",
            grants=(),
        )
        return await self._denied(job, judged, decision)

    @contextlib.asynccontextmanager
    async def turn(
        self,
        session: SessionState,
        safe: bool,
        on_wait: Callable[[str], None] | None,
        turn: Turn | None,
        place: Place | None = None,
    ) -> AsyncIterator[None]:
        """Stand in the session's lane, behind what its batch asked for before, and hold the turn for the block."""
        if turn is not None and not turn.open.is_set():
            if on_wait is not None:
                on_wait("an earlier call of its batch comes first")
            await turn.open.wait()
        entered = turn.entered if turn is not None else None if place is None else place.leave
        most = self.config.sessions.max_parallel
        async with self._lanes.admit(session.workspace, session.id, safe, most, on_wait, entered):
            yield

    async def _same_ground(self, job: Job, judged: Judged, fresh: Judged) -> bool:
        """Whether a decision made earlier may be acted on now: still ALLOW, and nothing it rested on has changed."""
        if fresh.decision.behavior is not Behavior.ALLOW or isinstance(fresh.outcome, Needs):
            return False
        if not judged.inputs.opinions:
            return True  # decided by rules and facts alone, and just decided again
        before, now = judged.inputs, fresh.inputs
        if looser(before.mode, now.mode) or before.facts.fingerprint != now.facts.fingerprint:
            return False
        if len(judged.inputs.opinions) == len(job.opinions):
            return True  # nobody was asked
        if await asyncio.to_thread(ground, fresh, job.session.tightening) == job.ground:
            return True
        job.notes.append("asked again: the command, its directory, the rules or the files it executes had changed")
        return False

    async def _denied(self, job: Job, judged: Judged, decision: Decision) -> Result:
        if decision.reason == "classifier.denied":
            job.session.denials = job.session.denials.denied()
        await self._record(job, judged, decision)
        job.execution.decided(decision)
        result = Result(EndKind.DENIED, 126, cause=steer(decision))
        await self.consulting.after(job, result)
        return result

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
        return session

    async def _record(self, job: Job, judged: Judged, decision: Decision) -> None:
        """Write the decision; what was denied or touched safety is on disk before anything else happens."""
        durable = decision.behavior is not Behavior.ALLOW or decision.protected or decision.step == "2a"
        text = job.request.text
        timings = job.stages.timings
        job.decision_id = await self._keep(job.session, job.execution.id, text, judged, decision, timings, durable=durable)
        job.decision = decision

    async def _keep(
        self,
        session: SessionState,
        execution_id: str,
        text: str,
        judged: Judged,
        decision: Decision,
        timings: tuple[Timing, ...],
        *,
        durable: bool,
        decision_id: str = "",
    ) -> str:
        """Put a decision into the record and before those who watch; its id."""
        row = await self.record.record_decision(
            decision_id=decision_id or f"d-{secrets.token_hex(8)}",
            session_id=session.id,
            execution_id=execution_id,
            text=text,
            cwd=judged.analysis.cwd,
            mode=judged.inputs.mode.value,
            decision=decision,
            analysis=judged.analysis,
            durable=durable,
            lazy=not execution_id,
            timings=timings,
            secrets=session.secrets,
        )
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(row)
        return row.decision_id

    # -- executions, records, the end ---------------------------------------------------------------------------------

    def execution(self, execution_id: str, session: SessionState | None) -> Execution:
        """An execution of that session (of any, for None). Raises NotFound."""
        job = self._jobs.get(execution_id)
        if job is None and session is None and (found := self.past.get(execution_id)) is not None:
            return found
        if job is None or (session is not None and job.session is not session):
            raise NotFound(f"no execution `{execution_id}`", field="execution_id", fix="list the executions of your session")
        return job.execution

    def list_executions(self, session: SessionState | None) -> tuple[Execution, ...]:
        """Oldest first; without a session, what an earlier daemon left comes first."""
        past = self.past.list() if session is None else ()
        return (*past, *(job.execution for job in self._jobs.values() if session is None or job.session is session))

    def job(self, execution: Execution) -> Job | None:
        """The engine's side of an execution; None for one of an earlier daemon."""
        return self._jobs.get(execution.id)

    async def model_text(self, execution: Execution) -> ModelText | None:
        """What a model reads of it; None before its end."""
        if execution.result is None:
            return None
        spills, limits = self.sessions.spills, self.config.run
        job = self.job(execution)
        if job is None:
            return await outputs.past_view(execution, limits)
        return await outputs.model_view(job, spills, limits)

    def let_go(self, execution: Execution, *, starter: bool) -> None:
        """The caller that started it, or another, has stopped following it."""
        job = self.job(execution)
        if job is not None:
            attending.let_go(job, starter, lambda cause: self.cancel(execution, cause))

    async def write_stdin(self, execution: Execution, offset: int, data: bytes, eof: bool) -> int:
        """Feed a command; how many bytes it was given in all. Raises RequestError, Exhausted, or Forbidden when what is
        written is code that may not be run now."""
        job = self.job(execution)
        if job is not None and data:
            await attending.check_stdin(job, lambda: self._question(job.request, job.session))
        return execution.write_stdin(offset, data, eof)

    def cancel(self, execution: Execution, cause: str) -> None:
        """End an execution wherever it is: waiting for a human, for its lane, or running. Idempotent."""
        job = self._jobs.get(execution.id)
        if job is None or job.task is None or job.task.done():
            return
        execution.cancel(cause)
        if job.pending is not None:
            job.pending.cancel(cause)  # before anything else runs: no answer is taken that would come to nothing
        if job.begun and not job.started:  # a task that is cancelled before its first step never sends its terminal event
            job.task.cancel()

    async def watch_decisions(self) -> AsyncIterator[DecisionRow]:
        """Decisions as they are made. A watcher that falls 1,000 behind misses some; the record has them all."""
        queue: asyncio.Queue[DecisionRow] = asyncio.Queue(1000)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def end_session(self, session: SessionState) -> None:
        """Cancel what a session still runs, wait for it, and forget the session. Children end with it, but for those that
        were made to outlive it; nobody is left whom these could ask."""
        for child in self.sessions.children(session):
            if not child.spec.outlives:
                await self.end_session(child)
        jobs = [job for job in self._jobs.values() if job.session is session]
        await self._stop(jobs, "session_deleted")
        await self.consulting.session_ended(session)
        self.past.forget(session.id)
        self.tool_uses.forget(session.id)
        self.consulting.classifying.classifier.forget(session.id)
        backends.forget(session.id)
        self.sessions.delete(session)
        for pending in self.approvals.list(session.id):
            pending.cancel("the session that would answer has ended")
        for job in jobs:
            self._forget(job.execution.id)

    async def drain(self) -> None:
        """Take nothing new, let running commands end, and after `daemon.drain_seconds` end them."""
        self.state = State.DRAINING
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=self.config.daemon.drain_seconds)
        await self._stop(list(self._jobs.values()), "daemon_stopped")
        await asyncio.to_thread(backends.drain)
        await hooks.end_background()
        await self.consulting.classifying.close()
        self.sessions.close()

    async def _stop(self, jobs: list[Job], cause: str) -> None:
        running = [job for job in jobs if job.task is not None and not job.task.done()]
        for job in running:
            self.cancel(job.execution, cause)
        tasks = [job.task for job in running if job.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, execution_id: str) -> None:
        job = self._jobs.pop(execution_id, None)
        if job is None:
            return
        if job.request.request_id:
            self._by_request.pop((job.session.id, job.request.request_id), None)
        with contextlib.suppress(ValueError):
            self._finished.remove(execution_id)
        job.execution.close()


async def _judged(session: SessionState, question: Question, opinions: tuple[Opinion, ...] = ()) -> Judged:
    """Judge; on another thread what is long, or took long before."""
    if len(question.text) > _SHORT:
        return await asyncio.to_thread(judge, question, opinions)
    return await session.judging.do(judge, question, opinions)
