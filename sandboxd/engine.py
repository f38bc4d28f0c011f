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
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any

from sandboxd import __version__
from sandboxd.config import Config, Directories, append_allow_rule
from sandboxd.consult import hooks
from sandboxd.consult.approvals import Approvals, Resolution
from sandboxd.consult.hookdefs import HookEvent
from sandboxd.consult.race import first_eligible
from sandboxd.effects.tables import Tables
from sandboxd.errors import Exhausted, Forbidden, IsolationError, NotFound, RequestError, SandboxdError, Unavailable
from sandboxd.isolation import backends, profiles
from sandboxd.isolation.plan import plan
from sandboxd.isolation.violations import promise_broken, violations
from sandboxd.judge import Judged, Question, judge
from sandboxd.model import (
    Behavior,
    Consultant,
    Decision,
    EndKind,
    Enforcement,
    LaunchPlan,
    Needs,
    Opinion,
    PlanRequest,
    Probe,
    Profile,
    Request,
    Result,
    Source,
    Strength,
)
from sandboxd.paths import is_within, join
from sandboxd.policy.rules import parse_rule
from sandboxd.record.audit import DecisionRow, Record
from sandboxd.run.execution import Ended, Execution
from sandboxd.schedule.driver import Lanes
from sandboxd.sessions import Role, Sessions, SessionSpec, SessionState

log = logging.getLogger("sandboxd.engine")

MAX_TEXT = 131_000  # bytes: the kernel refuses an argv string of 128 KiB (MAX_ARG_STRLEN in binfmts.h)
_REJUDGE = 3  # how often facts may change under an approval before the command is denied


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


@dataclass(frozen=True, slots=True)
class Checked:
    """A decision without a run."""

    judged: Judged
    enforcement: Enforcement | None

    @property
    def decision(self) -> Decision:
        return self.judged.decision


@dataclass(slots=True)
class _Job:
    """The engine's side of one execution."""

    execution: Execution
    request: Request  # as it runs: a hook may have rewritten the command
    session: SessionState
    asked: Request  # as it came
    decision_id: str = ""
    started: bool = False
    notes: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = field(default=None)


class Engine:
    """Owns everything between the API and the kernel. All methods run on one event loop."""

    def __init__(self, config: Config, dirs: Directories, record: Record, probes: tuple[Probe, ...]) -> None:
        self.config = config
        self.config_path: str | None = None  # the file that replaces the user's, when one was named
        self.dirs = dirs
        self.record = record
        self.sessions = Sessions(config, dirs)
        self.approvals = Approvals()
        self.state = State.STARTING
        self._probes = probes
        self._lanes = Lanes()
        self._jobs: dict[str, _Job] = {}
        self._by_request: dict[tuple[str, str], str] = {}
        self._finished: deque[str] = deque()
        self._started_at = time.monotonic()
        self._watchers: set[asyncio.Queue[DecisionRow]] = set()
        self._errors: tuple[str, ...] = ()
        self._profiles: dict[str, Profile] = {}
        self._load_profiles()
        self._tables = self._load_tables()

    # -- profiles, status, reload ------------------------------------------------------------------------------------

    @property
    def profile_dirs(self) -> tuple[str, ...]:
        return (f"{self.dirs.config}/profiles", *self.config.isolation.profile_dirs, profiles.SHIPPED_DIR)

    def _load_profiles(self) -> None:
        """Read every profile. Raises ProfileError; the profiles in force stay as they are then."""
        loaded = {name: profiles.load(name, self.profile_dirs) for name in profiles.names(self.profile_dirs)}
        if self.config.isolation.profile not in loaded:
            known = ", ".join(sorted(loaded))
            raise RequestError(
                f"no profile `{self.config.isolation.profile}`", field="isolation.profile", fix=f"use one of {known}"
            )
        self._profiles = loaded

    def _load_tables(self) -> Tables:
        """The shipped effect tables with the user's own ones. Raises TableError when one of those is wrong."""
        tables = Tables((self.dirs.effects,))
        tables.check()
        return tables

    def profile(self, name: str) -> Profile:
        """A profile by name, "" for the default one. Raises NotFound."""
        found = self._profiles.get(name or self.config.isolation.profile)
        if found is None:
            raise NotFound(f"no profile `{name}`", field="profile", fix=f"use one of {', '.join(sorted(self._profiles))}")
        return found

    def profiles(self) -> tuple[Profile, ...]:
        return tuple(self._profiles[name] for name in sorted(self._profiles))

    def set_probes(self, probes: tuple[Probe, ...]) -> None:
        """Take the result of the trial runs; the daemon is SERVING only when one of them works."""
        self._probes = probes
        self.state = State.SERVING if any(probe.works for probe in probes) else State.DEGRADED

    def enforcement(self, profile: Profile) -> Enforcement | None:
        """What the chosen backend's trial run enforced; None when nothing can run this profile."""
        try:
            name = backends.choose(profile, self._probes).name
        except IsolationError:
            return None
        return next((probe.enforcement for probe in self._probes if probe.backend == name), None)

    def status(self) -> Status:
        jobs = [job for job in self._jobs.values() if job.execution.result is None]
        running = sum(job.started for job in jobs)
        sessions = self.sessions.list()
        errors = self._errors + tuple(f"session {s.id}: {error}" for s in sessions for error in s.rule_errors)
        return Status(
            version=__version__,
            state=self.state,
            uptime=time.monotonic() - self._started_at,
            probes=self._probes,
            enforcement=self.enforcement(self.profile("")),
            sessions=len(sessions),
            running=running,
            waiting=len(jobs) - running,
            approvals=len(self.approvals.list()),
            revision="",
            errors=errors,
            runtime_dir=self.dirs.runtime,
            state_dir=self.dirs.state,
        )

    def reload(self, config: Config) -> None:
        """Put a new configuration in force, all or nothing. Raises ConfigError and keeps the last good state."""
        before, self.config = self.config, config
        try:
            self._load_profiles()
            self._tables = self._load_tables()
        except SandboxdError as error:
            self.config = before
            self._errors = (str(error),)
            raise
        self.sessions.config = config
        self._errors = ()
        for session in self.sessions.list():
            session.refresh_rules(config, self.dirs)

    def report_error(self, error: str) -> None:
        """Show a configuration error in the status until the next good reload."""
        self._errors = (error,)

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _question(self, request: Request, session: SessionState) -> Question:
        """What is asked now: rules, mode and directory may have changed since the last time."""
        _validate(request)
        session.refresh_rules(self.config, self.dirs)
        cwd = join(session.cwd, request.cwd) if request.cwd else session.cwd
        if not os.path.isdir(cwd):
            raise RequestError(f"the directory `{cwd}` does not exist", field="command.cwd", fix="name an existing one")
        enforcement = self.enforcement(self.profile(session.profile))
        return Question(
            text=request.text,
            cwd=cwd,
            scope=session.scope,
            rules=session.rules,
            mode=session.mode,
            headless=session.headless and not any(hook.event is HookEvent.PERMISSION_REQUEST for hook in session.hooks),
            observed=True,
            enforcement_full=enforcement is not None and enforcement.overall is Strength.FULL,
            auto_allow_if_sandboxed=self.config.policy.auto_allow_if_sandboxed,
            tables=self._tables,
        )

    async def check(self, request: Request, session: SessionState) -> Checked:
        """Decide without running. Raises RequestError for an invalid request."""
        judged = await asyncio.to_thread(judge, self._question(request, session))
        return Checked(judged, self.enforcement(self.profile(session.profile)))

    # -- running -----------------------------------------------------------------------------------------------------

    async def start(self, request: Request, session: SessionState) -> Execution:
        """Start one command; returns at once, its events tell the rest. Idempotent by `request_id` within a session.

        Raises RequestError, Exhausted or Unavailable before anything is recorded.
        """
        if self.state is State.DRAINING:
            raise Unavailable("the daemon is draining", fix="retry when it has restarted")
        _validate(request)
        key = (session.id, request.request_id)
        if request.request_id and key in self._by_request:
            job = self._jobs[self._by_request[key]]
            if job.asked != request:
                raise RequestError("the same request_id came with another command", field="request_id", fix="use a new one")
            return job.execution
        if sum(job.execution.result is None for job in self._jobs.values()) >= self.config.run.max_executions:
            raise Exhausted("too many executions", fix="wait, or raise `run.max_executions`")
        execution_id = f"e-{secrets.token_hex(8)}"
        job = _Job(Execution(execution_id, session.id, request.text, f"{self.dirs.state}/spool"), request, session, request)
        self._jobs[execution_id] = job
        if request.request_id:
            self._by_request[key] = execution_id
        job.task = asyncio.create_task(self._run(job), name=execution_id)
        return job.execution

    async def _run(self, job: _Job) -> None:
        """Guard around `_process`: whatever happens, the execution gets its terminal event and its record."""
        execution = job.execution
        try:
            result = await self._process(job)
        except asyncio.CancelledError:
            result = Result(EndKind.CANCELLED, 130, cause=execution.cancel_cause or "daemon_stopped")
        except SandboxdError as error:
            result = Result(EndKind.FAILED, 125, cause=str(error))
        except Exception as error:
            log.exception("execution %s failed", execution.id)
            result = Result(EndKind.FAILED, 125, cause=f"internal error: {error!r}")
        result = dataclasses.replace(result, cwd=result.cwd or job.session.cwd, notes=tuple(job.notes))
        self.record.record_execution_finished(execution.id, result)
        execution.finish(result)
        self._finished.append(execution.id)
        while len(self._finished) > self.config.run.keep_finished:
            self._forget(self._finished.popleft())

    async def _process(self, job: _Job) -> Result:
        """The order of stages: hooks, judge, ask, record, wait for the lane, judge again, confine, run, hooks."""
        execution, session = job.execution, job.session
        execution.queued("")
        job.notes += self._return_home(session)
        opinions = await self._before(job)
        for _ in range(_REJUDGE):
            judged = await asyncio.to_thread(judge, self._question(job.request, session), opinions)
            if isinstance(judged.outcome, Needs):
                judged = await self._ask(job, judged)
            decision = judged.decision
            if decision.behavior is not Behavior.ALLOW:
                return await self._denied(job, judged, decision)
            alone = judged.analysis.changes_cwd or not judged.analysis.concurrency_safe
            most = self.config.sessions.max_parallel
            async with self._lanes.admit(session.workspace, session.id, not alone, most, execution.queued):
                fresh = await asyncio.to_thread(judge, self._question(job.request, session), judged.inputs.opinions)
                if not _same_ground(judged, fresh):
                    continue  # what was judged, or what somebody agreed to, is not what would run now
                decision = fresh.decision
                await self._record(job, fresh, decision)
                execution.decided(decision)
                result = await self._confined(job, fresh, decision, alone)
            await self._after(job, result)
            return result
        decision = dataclasses.replace(
            judged.decision,
            behavior=Behavior.DENY,
            reason="facts_unstable",
            message="the files this command is about kept changing while it was judged",
            flip="run it again when nothing else changes the workspace",
            grants=(),
        )
        return await self._denied(job, judged, decision)

    async def _denied(self, job: _Job, judged: Judged, decision: Decision) -> Result:
        await self._record(job, judged, decision)
        job.execution.decided(decision)
        result = Result(EndKind.DENIED, 126, cause=decision.message)
        await self._after(job, result)
        return result

    async def _ask(self, job: _Job, judged: Judged) -> Judged:
        """Put an ASK before a human and the PermissionRequest hooks at once; the first who may answer does."""
        execution, session, decision = job.execution, job.session, judged.decision
        asking = hooks.each(session.hooks, HookEvent.PERMISSION_REQUEST, _payload(job), **self._hook_place(session))
        pending = None
        assert isinstance(judged.outcome, Needs)
        if not session.headless and Consultant.APPROVAL in judged.outcome.who:
            pending = self.approvals.request(
                execution.id,
                session.id,
                job.request.text,
                judged.analysis.cwd,
                decision,
                expires_in=self.config.approvals.expires,
            )
            execution.approval_needed(pending.id, decision)

        async def heard(reply: Coroutine[Any, Any, hooks.Reply]) -> Opinion | None:
            said = hooks.Replies((await reply,))
            job.notes += said.notes
            return next(iter(said.opinions), None)

        def eligible(opinion: Opinion) -> bool:
            return not isinstance(judged.with_opinion(opinion).outcome, Needs)

        opinion = await first_eligible(pending, [heard(reply) for reply in asking], eligible)
        if pending is not None and (answer := pending.resolution) is not None:
            said = Opinion(Consultant.APPROVAL, answer.verdict, answer.reason, failed=not answer.who, name=answer.who)
            self.record.record_approval(pending.id, execution.id, session.id, said, scope=answer.scope, rule=answer.rule)
        return judged.unattended() if opinion is None else judged.with_opinion(opinion)

    # -- hooks -------------------------------------------------------------------------------------------------------

    def _hook_place(self, session: SessionState) -> dict[str, str]:
        return {"tool": "Bash", "workspace": session.workspace, "cwd": self.dirs.home}

    async def _before(self, job: _Job) -> tuple[Opinion, ...]:
        """Run the PreToolUse hooks. One of them may rewrite the command, which is then what is judged and run."""
        session = job.session
        session.refresh_rules(self.config, self.dirs)
        replies = await hooks.ask(session.hooks, HookEvent.PRE_TOOL_USE, _payload(job), **self._hook_place(session))
        job.notes += replies.notes
        try:
            text, who = replies.rewritten("command")
        except ValueError as error:
            return (*replies.opinions, Opinion(Consultant.HOOK, Behavior.DENY, str(error)))
        if text is not None and text != job.request.text:
            job.request = dataclasses.replace(job.request, text=text)
            job.notes.append(f"hook {who} rewrote the command to `{text}`")
        return replies.opinions

    async def _after(self, job: _Job, result: Result) -> None:
        """Run PostToolUse hooks, or PostToolUseFailure ones when the command failed or was denied. They change nothing."""
        fine = result.end is EndKind.EXITED and result.code == 0
        event = HookEvent.POST_TOOL_USE if fine else HookEvent.POST_TOOL_USE_FAILURE
        answer = {"end": result.end.value, "exit_code": result.code, "error": result.cause}
        payload = {**_payload(job), "tool_response": answer}
        replies = await hooks.ask(job.session.hooks, event, payload, **self._hook_place(job.session))
        job.notes += [*replies.notes, *(reply.reason for reply in replies.replies if reply.verdict is Behavior.DENY)]

    async def create_session(self, spec: SessionSpec, role: Role) -> SessionState:
        """A new session, recorded, its SessionStart hooks run. Raises what `Sessions.create` raises."""
        session = self.sessions.create(spec, role)
        self.record.record_session(session.id, session.workspace, session.mode.value, profile=session.profile)
        payload = {"session_id": session.id, "cwd": session.cwd, "source": "startup"}
        replies = await hooks.ask(session.hooks, HookEvent.SESSION_START, payload, **self._hook_place(session) | {"tool": ""})
        session.context = replies.notes
        return session

    async def _record(self, job: _Job, judged: Judged, decision: Decision) -> None:
        """Write the decision; what was denied or touched safety is on disk before anything else happens."""
        job.decision_id = f"d-{secrets.token_hex(8)}"
        durable = decision.behavior is not Behavior.ALLOW or decision.protected or decision.step == "2a"
        row = await self.record.record_decision(
            decision_id=job.decision_id,
            session_id=job.session.id,
            execution_id=job.execution.id,
            text=job.request.text,
            cwd=judged.analysis.cwd,
            mode=job.session.mode.value,
            decision=decision,
            analysis=judged.analysis,
            durable=durable,
        )
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(row)

    async def _confined(self, job: _Job, judged: Judged, decision: Decision, alone: bool) -> Result:
        """Build the plan, start the box, follow it to its end and say what the kernel stopped."""
        execution, request, session = job.execution, job.request, job.session
        profile = self.profile(session.profile)
        backend = backends.choose(profile, self._probes)
        analysis = judged.analysis
        asked = PlanRequest(
            text=request.text,
            cwd=analysis.cwd,
            profile=profile,
            session=dataclasses.replace(session.isolation, additional=session.additional),
            grants=decision.grants,
            promise=decision.promise,
            facts=judged.facts,
            git_reads=analysis.git.reads,
            git_porcelain=analysis.git.porcelain,
            git_names=analysis.git.names,
            report_cwd=alone and analysis.changes_cwd,
        )
        launch = plan(asked, backends.host_facts(session.isolation, asked))
        enforcement = backend.enforcement(launch)
        self.record.record_execution_started(execution.id, session.id, job.decision_id, profile.name, enforcement)
        job.started = True
        limit = min(request.timeout or self.config.run.timeout, self.config.run.max_timeout)
        if launch.limits.wall is not None:
            limit = min(limit, launch.limits.wall)
        ended = await execution.run(
            lambda stdio: backend.start(launch, stdio),
            timeout=limit,
            grace=self.config.run.grace,
            stdin=request.stdin,
            report_cwd=alone and analysis.changes_cwd,
            max_output=min(self.config.run.max_output, launch.limits.output or self.config.run.max_output),
            profile=profile.name,
        )
        if alone:
            job.notes += self._move(session, ended)
        return _result(ended, launch, enforcement, session.cwd)

    def _return_home(self, session: SessionState) -> list[str]:
        """A session whose directory was removed goes on in its workspace."""
        if os.path.isdir(session.cwd):
            return []
        gone, session.cwd = session.cwd, session.workspace
        return [f"`{gone}` no longer exists; the session is back in its workspace"]

    def _move(self, session: SessionState, ended: Ended) -> list[str]:
        """Let the session's directory follow a command that ran alone. What the box reports is only believed in scope."""
        reported = ended.reported_cwd
        if reported is None or reported == session.cwd:
            return []
        roots = (session.workspace, *session.additional)
        if not reported.startswith("/") or os.path.realpath(reported) != reported or not os.path.isdir(reported):
            return [f"the directory stays `{session.cwd}`: `{reported}` is not a directory outside the box"]
        if not any(is_within(reported, root) for root in roots):
            return [f"the directory stays `{session.cwd}`: `{reported}` is outside the workspace"]
        session.cwd = reported
        return []

    # -- approvals, executions, records ------------------------------------------------------------------------------

    def resolve_approval(
        self, approval_id: str, verdict: Behavior, scope: str, who: str, rule: str = "", reason: str = ""
    ) -> Resolution:
        """A human's answer. `scope` is once, session or always; the last two add `rule`, one of those suggested.

        Raises NotFound, RequestError (already answered, unknown scope) or Forbidden (a rule nobody suggested).
        """
        pending = self.approvals.get(approval_id)
        wants_rule = verdict is Behavior.ALLOW and scope != "once"
        if wants_rule and rule not in pending.decision.suggestions:
            offered = ", ".join(f"`{text}`" for text in pending.decision.suggestions) or "none for this command"
            raise Forbidden(f"rule `{rule}` was not suggested", field="rule", fix=f"suggested: {offered}")
        resolution = self.approvals.resolve(approval_id, verdict, scope, who, rule, reason)
        session = self.sessions.find(pending.session_id)
        if wants_rule and scope == "session" and session is not None:
            session.session_rules += (parse_rule(rule, Behavior.ALLOW, Source.SESSION, f"approval {approval_id}"),)
        if wants_rule and scope == "always":
            append_allow_rule(self.dirs, rule, f"approved by {who}")
        return resolution

    def execution(self, execution_id: str, session: SessionState | None) -> Execution:
        """An execution of that session (of any, for None). Raises NotFound."""
        job = self._jobs.get(execution_id)
        if job is None or (session is not None and job.session is not session):
            raise NotFound(f"no execution `{execution_id}`", field="execution_id", fix="list the executions of your session")
        return job.execution

    def list_executions(self, session: SessionState | None) -> tuple[Execution, ...]:
        return tuple(job.execution for job in self._jobs.values() if session is None or job.session is session)

    def cancel(self, execution: Execution, cause: str) -> None:
        """End an execution wherever it is: waiting for a human, for its lane, or running. Idempotent."""
        job = self._jobs.get(execution.id)
        if job is None or job.task is None or job.task.done():
            return
        execution.cancel(cause)
        if not job.started:
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
        """Cancel what a session still runs, wait for it, and forget the session."""
        jobs = [job for job in self._jobs.values() if job.session is session]
        await self._stop(jobs, "session_deleted")
        payload = {"session_id": session.id, "cwd": session.cwd, "reason": "deleted"}
        await hooks.ask(session.hooks, HookEvent.SESSION_END, payload, **self._hook_place(session) | {"tool": ""})
        self.sessions.delete(session)
        for job in jobs:
            self._forget(job.execution.id)

    async def drain(self) -> None:
        """Take nothing new, let running commands end, and after `daemon.drain_seconds` end them."""
        self.state = State.DRAINING
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=self.config.daemon.drain_seconds)
        await self._stop(list(self._jobs.values()), "daemon_stopped")
        await hooks.end_background()
        self.sessions.close()

    async def _stop(self, jobs: list[_Job], cause: str) -> None:
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


def _payload(job: _Job) -> dict[str, Any]:
    """What a hook is told of a command."""
    session = job.session
    return {
        "session_id": session.id,
        "cwd": job.request.cwd or session.cwd,
        "permission_mode": session.mode.value,
        "tool_name": "Bash",
        "tool_input": {"command": job.request.text},
        "tool_use_id": job.execution.id,
    }


def _validate(request: Request) -> None:
    """Raise RequestError for what is no valid request, whoever sends it."""
    if request.unsandboxed:
        raise Forbidden(
            "running without a sandbox is not permitted", field="command.dangerously_disable_sandbox", fix="leave it out"
        )
    if "\0" in request.text:
        raise RequestError("the command contains a NUL character", field="command.text", fix="remove it")
    try:
        size = len(request.text.encode())
    except UnicodeEncodeError:
        raise RequestError("the command is not valid Unicode", field="command.text", fix="send UTF-8") from None
    if size > MAX_TEXT:
        raise RequestError(
            f"the command has {size} bytes, more than {MAX_TEXT}", field="command.text", fix="put it in a script file"
        )
    if request.timeout is not None and not request.timeout > 0:
        raise RequestError(f"timeout `{request.timeout}` is not positive", field="command.timeout", fix="leave it out")


def _same_ground(judged: Judged, fresh: Judged) -> bool:
    """Whether a decision made earlier may be acted on now: still ALLOW, and nothing it rested on has changed."""
    if fresh.decision.behavior is not Behavior.ALLOW or isinstance(fresh.outcome, Needs):
        return False
    if not judged.inputs.opinions:
        return True  # decided by rules and facts alone, and just decided again
    before, now = judged.inputs, fresh.inputs
    return before.facts.fingerprint == now.facts.fingerprint and before.rules == now.rules and before.mode is now.mode


def _result(ended: Ended, launch: LaunchPlan, enforcement: Enforcement, cwd: str) -> Result:
    return Result(
        end=ended.kind,
        code=ended.code,
        signal=ended.signal,
        cause=ended.cause,
        usage=ended.usage,
        stdout_bytes=ended.stdout_bytes,
        stderr_bytes=ended.stderr_bytes,
        truncated=ended.truncated,
        cwd=cwd,
        enforcement=enforcement,
        promise_broken=promise_broken(ended.stderr_tail, launch) if ended.code else (),
        violations=violations(ended.stderr_tail, ended.code, launch) if ended.code else (),
    )
