# SPDX-License-Identifier: GPL-3.0-or-later
"""All executions there are, from their start until they are forgotten, and what is done to one from outside."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from sandboxd import attending, outputs
from sandboxd.errors import Exhausted, NotFound, RequestError
from sandboxd.jobs import Job, Turn
from sandboxd.model import ModelText, Request
from sandboxd.past import Past
from sandboxd.questions import Questions
from sandboxd.run.execution import Execution
from sandboxd.schedule.driver import Arrivals
from sandboxd.session import SessionState
from sandboxd.sessions import Sessions


class Executions:
    """Belongs to the engine's loop. `spool` is the directory of their output; `process` takes a job to its end, whatever
    happens."""

    def __init__(
        self,
        spool: str,
        sessions: Sessions,
        past: Past,
        questions: Questions,
        process: Callable[[Job], Coroutine[Any, Any, None]],
    ) -> None:
        self._spool = spool
        self._sessions = sessions
        self._past = past
        self._questions = questions
        self._process = process
        self._arrivals = Arrivals()
        self._jobs: dict[str, Job] = {}
        self._by_request: dict[tuple[str, str], str] = {}
        self._finished: deque[str] = deque()

    def start(self, request: Request, session: SessionState, turn: Turn | None) -> Execution:
        """Begin a valid request, or find what it began before: idempotent by `request_id` within a session. Raises RequestError,
        Exhausted."""
        key = (session.id, request.request_id)
        if request.request_id and key in self._by_request:
            job = self._jobs[self._by_request[key]]
            if job.asked != request:
                raise RequestError("the same request_id came with another command", field="request_id", fix="use a new one")
            return job.execution
        if len(self._jobs) - len(self._finished) >= self._sessions.config.run.max_executions:
            raise Exhausted("too many executions", fix="wait, or raise `run.max_executions`")
        execution_id = f"e-{secrets.token_hex(8)}"
        job = Job(Execution(execution_id, session.id, request.text, self._spool), request, session, request, turn=turn)
        if turn is None:
            job.place = self._arrivals.arrive(session.id)
        self._jobs[execution_id] = job
        if request.request_id:
            self._by_request[key] = execution_id
        job.task = asyncio.create_task(self._followed(job), name=execution_id)
        return job.execution

    async def _followed(self, job: Job) -> None:
        """Process it, and forget the oldest of those that have ended when there are too many."""
        await self._process(job)
        self._finished.append(job.execution.id)
        while len(self._finished) > self._sessions.config.run.keep_finished:
            self.forget(self._finished.popleft())

    def get(self, execution_id: str, session: SessionState | None) -> Execution:
        """An execution of that session (of any, for None). Raises NotFound."""
        job = self._jobs.get(execution_id)
        if job is None and session is None and (found := self._past.get(execution_id)) is not None:
            return found
        if job is None or (session is not None and job.session is not session):
            raise NotFound(f"no execution `{execution_id}`", field="execution_id", fix="list the executions of your session")
        return job.execution

    def list(self, session: SessionState | None) -> tuple[Execution, ...]:
        """Oldest first; without a session, what an earlier daemon left comes first."""
        past = self._past.list() if session is None else ()
        return (*past, *(job.execution for job in self._jobs.values() if session is None or job.session is session))

    def job(self, execution: Execution) -> Job | None:
        """The engine's side of an execution; None for one of an earlier daemon."""
        return self._jobs.get(execution.id)

    async def model_text(self, execution: Execution) -> ModelText | None:
        """What a model reads of it; None before its end."""
        if execution.result is None:
            return None
        spills, limits = self._sessions.spills, self._sessions.config.run
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
            await attending.check_stdin(job, lambda: self._questions.about(job.request, job.session))
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

    def of(self, session: SessionState) -> tuple[Job, ...]:
        """What this session has here, ended or not."""
        return tuple(job for job in self._jobs.values() if job.session is session)

    def figures(self) -> tuple[int, int]:
        """How many run, and how many wait to."""
        jobs = [job for job in self._jobs.values() if job.execution.result is None]
        running = sum(job.started for job in jobs)
        return running, len(jobs) - running

    async def drain(self, seconds: float) -> None:
        """Wait for all to end, and after so long end them."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await self.stop(tuple(self._jobs.values()), "daemon_stopped")

    async def stop(self, jobs: Iterable[Job], cause: str) -> None:
        """End these and wait for it."""
        running = [job for job in jobs if job.task is not None and not job.task.done()]
        for job in running:
            self.cancel(job.execution, cause)
        tasks = [job.task for job in running if job.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def forget(self, execution_id: str) -> None:
        """Drop an execution and what it holds."""
        job = self._jobs.pop(execution_id, None)
        if job is None:
            return
        if job.request.request_id:
            self._by_request.pop((job.session.id, job.request.request_id), None)
        with contextlib.suppress(ValueError):
            self._finished.remove(execution_id)
        job.execution.close()
