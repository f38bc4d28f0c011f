# SPDX-License-Identifier: GPL-3.0-or-later
"""One command from text to result. The order of all stages stands in `Processing._process`, and only there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable

from sandboxd import outputs
from sandboxd.catalog import Catalog
from sandboxd.classifying import Ahead, ground
from sandboxd.confining import confined, return_home
from sandboxd.consulting import Consulting
from sandboxd.decisions import Decisions
from sandboxd.errors import SandboxdError
from sandboxd.jobs import Admitted, Job, Turn
from sandboxd.judge import Judged
from sandboxd.model import Behavior, Decision, EndKind, Needs, Result
from sandboxd.policy.explain import steer
from sandboxd.policy.modes import looser
from sandboxd.questions import Questions, put
from sandboxd.record.audit import Record
from sandboxd.schedule.driver import Lanes, Place
from sandboxd.session import SessionState
from sandboxd.sessions import Sessions

log = logging.getLogger("sandboxd.engine")

_REJUDGE = 5  # how often facts, rules or modes may change under a command before it is denied


class Moment:
    """It is over when the event loop has done something else: until then nothing that belongs to the loop can have changed,
    neither rules nor mode nor directory."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.over = True


class Processing:
    """Takes jobs through the stages. All methods run on the engine's loop."""

    def __init__(
        self,
        sessions: Sessions,
        catalog: Catalog,
        record: Record,
        questions: Questions,
        consulting: Consulting,
        decisions: Decisions,
    ) -> None:
        self._sessions = sessions
        self._catalog = catalog
        self._record = record
        self._questions = questions
        self._consulting = consulting
        self._decisions = decisions
        self._lanes = Lanes()

    async def run(self, job: Job) -> None:
        """Guard around the stages: whatever happens, the execution gets its terminal event and its record."""
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
            result = await outputs.settled(job, result, self._sessions.spills, self._sessions.config.run)
        except Exception:  # the terminal event comes whatever the disk does
            log.exception("the output of %s could not be stored", execution.id)
        self._record.record_execution_finished(execution.id, result, secrets=job.session.secrets)
        execution.finish(result)
        if job.expiry is not None:
            job.expiry.cancel()

    async def _process(self, job: Job) -> Result:
        """The order of stages: hooks, judge, ask, wait for the lane, judge again unless nothing can have changed, record,
        confine, run, hooks."""
        execution, session = job.execution, job.session
        execution.queued("")
        job.notes += return_home(session)
        ahead = self._consulting.ahead(job, lambda: self._questions.about(job.request, session))
        try:
            await self._consulting.before(job)
            if job.rewritten or any(opinion.verdict is Behavior.DENY for opinion in job.opinions):
                ahead.end()
            return await self._settled(job, ahead)
        finally:
            ahead.end()

    async def _settled(self, job: Job, ahead: Ahead) -> Result:
        """From what the hooks left of a request to its result; `ahead` ends with the decision."""
        execution, session = job.execution, job.session
        for _ in range(_REJUDGE):
            moment = Moment()
            question = self._questions.about(job.request, session)
            early = await ahead.judged(question)
            judged, grounds = early or (await put(session, question, job.opinions), "")
            job.stages.judged(judged)
            if isinstance(judged.outcome, Needs):
                if job.place is not None:
                    job.place.leave()
                answered = await self._consulting.ask(job, judged, grounds)
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
                if moment.over:
                    question = self._questions.about(job.request, session)
                fresh = await put(session, question, judged.inputs.opinions)
                job.stages.took("admission", time.monotonic() - admitted)
                if not await self._same_ground(job, judged, fresh):
                    continue  # what was judged, or what somebody agreed to, is not what would run now
                decision = fresh.decision
                job.admitted = Admitted.of(fresh, session.revision)
                await self._decisions.keep_for(job, fresh, decision)
                execution.decided(decision)
                self._consulting.classifying.ran(session, job.request.text)
                result = await confined(job, fresh, alone, self._catalog, self._record, self._sessions.config.run)
            if result.end is EndKind.EXITED and result.code == 0:
                session.denials = session.denials.ran()
            await self._consulting.after(job, result)
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
        most = self._sessions.config.sessions.max_parallel
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
        await self._decisions.keep_for(job, judged, decision)
        job.execution.decided(decision)
        result = Result(EndKind.DENIED, 126, cause=steer(decision))
        await self._consulting.after(job, result)
        return result
