# SPDX-License-Identifier: GPL-3.0-or-later
"""Batches on asyncio: what `schedule.batch` says is done to the engine's executions and to the front-end's own tools.

One task feeds the state machine, so instructions are carried out one after the other. Output waits for the reader
(SLOTS messages at most lie ready, then the commands wait); whatever steers does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sandboxd import outputs, toolbox
from sandboxd.attending import CALLER_LEFT
from sandboxd.engine import Engine
from sandboxd.errors import Exhausted, RequestError, SandboxdError
from sandboxd.jobs import Job, Turn
from sandboxd.model import EndKind, Event, ModelText, Request, Result, Tool
from sandboxd.outputs import Given
from sandboxd.run.execution import Execution
from sandboxd.run.results import is_failure
from sandboxd.schedule.batch import (
    Asked,
    Batch,
    BatchEvent,
    Begin,
    Cancel,
    Deliver,
    Discarded,
    Done,
    Enter,
    Entered,
    Finished,
    How,
    Instruction,
    Interrupted,
    NoMore,
)
from sandboxd.session import SessionState

MAX_CALLS = 1000  # of one batch
MAX_GIVEN = 2 << 20  # bytes of what an external call gave
SLOTS = 64  # events that lie ready for a reader


@dataclass(frozen=True, slots=True)
class Happened:
    key: str
    execution: Execution
    event: Event


@dataclass(frozen=True, slots=True)
class Delivered:
    """In the order asked, one for each call."""

    key: str
    result: Result


@dataclass(frozen=True, slots=True)
class MayStart:
    """An external call has its turn."""

    key: str


@dataclass(frozen=True, slots=True)
class MustStop:
    """An external call that has its turn is to end."""

    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class Read:
    """What a model reads of a call. Behind all results, in the order asked."""

    key: str
    text: ModelText


Message = Happened | Delivered | MayStart | MustStop | Read


@dataclass(slots=True, eq=False)
class _Call:
    key: str
    request: Request | None  # None: the front-end runs it
    safe: bool = False
    tool: Tool | None = None  # as it is known here
    open: asyncio.Event = field(default_factory=asyncio.Event)  # it may enter the lane
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # the front-end says so
    failed: bool = False
    given: Given | None = None  # what it gave, when the front-end says so
    running: bool = False  # an external call has its turn
    cause: str = ""
    refused: Result | None = None  # it never began
    job: Job | None = None
    task: asyncio.Task[None] | None = None


class BatchRun:
    """One batch of a session. Ask, then read `messages` to the end; `close` whatever happens."""

    def __init__(self, engine: Engine, session: SessionState) -> None:
        self._engine = engine
        self._session = session
        self._machine = Batch()
        self._calls: dict[str, _Call] = {}
        self._inbox: asyncio.Queue[BatchEvent] = asyncio.Queue()
        self._out: asyncio.Queue[Message | SandboxdError | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(SLOTS)
        self._driver = asyncio.create_task(self._drive())

    # -- what the front-end says --------------------------------------------------------------------------------------

    def command(self, key: str, request: Request, *, cancels: bool = False) -> None:
        """Ask for a command. Raises RequestError for a key that was used, Exhausted."""
        self._ask(_Call(key, request), cancels)

    def external(self, key: str, name: str, *, safe: bool = False, cancels: bool | None = None) -> None:
        """Ask for the turn of a tool that the front-end runs. What is known of the tool counts where the call does not
        say: it runs beside others when either says that it may; `cancels` None = as declared. Raises as `command`."""
        tool = toolbox.find(name, self._session.tools)
        if cancels is None:
            cancels = tool is not None and tool.cancels
        self._ask(_Call(key, None, safe or (tool is not None and tool.concurrency_safe), tool), cancels)

    def external_finished(self, key: str, *, failed: bool = False, output: str | None = None) -> None:
        """An external call has ended; `output` is what a model is to read of it, within the tool's budget and the batch's.
        Raises RequestError when it has no turn, or gave too much."""
        call = self._calls.get(key)
        if call is None or call.request is not None or not call.running or call.ended.is_set():
            raise RequestError(f"no external call `{key}` runs", field="key", fix="wait until it may start")
        if output is not None:
            data = output.encode()
            if len(data) > MAX_GIVEN:
                raise RequestError(f"`{key}` gave {len(data)} bytes", field="output", fix=f"send at most {MAX_GIVEN}")
            limit = None if call.tool is None else call.tool.max_result_chars
            call.given = Given(self._session.id, f"t-{secrets.token_hex(8)}", data, limit)
        call.failed = failed
        call.ended.set()

    def interrupt(self) -> None:
        """The user spoke up."""
        self._inbox.put_nowait(Interrupted())

    def discard(self, reason: str = "") -> None:
        """The batch is superseded."""
        self._inbox.put_nowait(Discarded(reason) if reason else Discarded())

    def no_more(self) -> None:
        """Nothing else will be asked or said. An external call that has not ended counts as failed."""
        for call in self._calls.values():
            if call.request is None and not call.ended.is_set():
                call.failed = True
                call.ended.set()
        self._inbox.put_nowait(NoMore())

    def fail(self, error: SandboxdError) -> None:
        """The front-end said what makes no sense: the messages end with this error."""
        self._out.put_nowait(error)

    def _ask(self, call: _Call, cancels: bool) -> None:
        if not call.key:
            raise RequestError("the call has no key", field="key", fix="give it one")
        if call.key in self._calls:
            raise RequestError(f"the key `{call.key}` was used in this batch", field="key", fix="use a new one")
        if len(self._calls) >= MAX_CALLS:
            raise Exhausted(f"a batch has at most {MAX_CALLS} calls", fix="open another one")
        self._calls[call.key] = call
        self._inbox.put_nowait(Asked(call.key, call.request is None, cancels))

    # -- what it is told ----------------------------------------------------------------------------------------------

    async def messages(self) -> AsyncIterator[Message]:
        """Everything that happens, to the end of the batch. Raises what `fail` was given."""
        while True:
            message = await self._out.get()
            if message is None:
                return
            if isinstance(message, SandboxdError):
                raise message
            if isinstance(message, Happened):
                self._slots.release()
            yield message

    async def close(self) -> None:
        """End what still runs and wait for it. Idempotent."""
        self._driver.cancel()
        for call in self._calls.values():
            if call.job is not None:
                self._engine.executions.cancel(call.job.execution, CALLER_LEFT)
            if call.task is not None:
                call.task.cancel()
        await asyncio.gather(self._driver, *self._tasks(), return_exceptions=True)
        for call in self._calls.values():
            if call.job is not None:
                await call.job.execution.done.wait()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [call.task for call in self._calls.values() if call.task is not None]

    # -- the machine's hands ------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            while True:
                for instruction in self._machine.handle(await self._inbox.get()):
                    if isinstance(instruction, Done):
                        await self._finish()
                        return
                    await self._carry_out(instruction)
        except SandboxdError as error:
            self._out.put_nowait(error)

    async def _carry_out(self, instruction: Instruction) -> None:
        assert not isinstance(instruction, Done)
        call = self._calls[instruction.key]
        match instruction:
            case Begin():
                await self._begin(call)
            case Enter():
                call.open.set()
            case Cancel():
                self._cancel(call, instruction.cause)
            case Deliver():
                call.cause = instruction.cause
                self._out.put_nowait(Delivered(call.key, self._result(call)))

    async def _begin(self, call: _Call) -> None:
        turn = Turn(call.open, lambda: self._inbox.put_nowait(Entered(call.key)))
        if call.request is None:
            call.task = asyncio.create_task(self._external(call, turn))
            return
        try:
            execution = await self._engine.start(call.request, self._session, turn)
        except SandboxdError as error:
            call.refused = Result(EndKind.FAILED, 125, cause=str(error))
            self._inbox.put_nowait(Finished(call.key, How.OTHER))
            return
        call.job = self._engine.executions.job(execution)
        call.task = asyncio.create_task(self._follow(call, execution))

    async def _follow(self, call: _Call, execution: Execution) -> None:
        async with contextlib.aclosing(execution.events()) as events:  # type: ignore[type-var]  # it is a generator
            async for event in events:
                await self._slots.acquire()
                self._out.put_nowait(Happened(call.key, execution, event))
        assert call.job is not None
        assert execution.result is not None
        self._inbox.put_nowait(Finished(call.key, _how(call.job, execution.result)))

    async def _external(self, call: _Call, turn: Turn) -> None:
        async with self._engine.processing.turn(self._session, call.safe, None, turn):
            call.running = True
            self._out.put_nowait(MayStart(call.key))
            await call.ended.wait()
            call.running = False
        self._inbox.put_nowait(Finished(call.key, How.ERROR if call.failed else How.FINE))

    def _cancel(self, call: _Call, cause: str) -> None:
        if call.job is not None:
            self._engine.executions.cancel(call.job.execution, cause)
        elif call.running:
            self._out.put_nowait(MustStop(call.key, cause))  # it has its turn until it has stopped
        elif call.task is not None:
            call.task.cancel()

    def _result(self, call: _Call) -> Result:
        if call.cause:
            return Result(EndKind.CANCELLED, 130, cause=call.cause, cwd=self._session.cwd)
        if call.refused is not None:
            return call.refused
        if call.job is None:
            return Result(EndKind.EXITED, int(call.failed), cwd=self._session.cwd)
        assert call.job.execution.result is not None
        return call.job.execution.result

    async def _finish(self) -> None:
        """Wait until what was cancelled is dead, then say what a model reads."""
        for call in self._calls.values():
            if call.job is not None and call.task is not None:
                await asyncio.wait([call.task])
        shown = {call.key: source for call in self._calls.values() if not call.cause and (source := call.job or call.given)}
        texts = await outputs.batch_view(tuple(shown.values()), self._engine.sessions.spills, self._engine.config.run)
        read = dict(zip(shown, texts, strict=True))
        for call in self._calls.values():
            if call.key in read:
                self._out.put_nowait(Read(call.key, read[call.key]))
            elif call.request is not None:
                said = call.cause or ("" if call.refused is None else call.refused.cause)
                self._out.put_nowait(Read(call.key, ModelText(said, whole=True)))
        self._out.put_nowait(None)


def _how(job: Job, result: Result) -> How:
    """What the end of a command means for its siblings."""
    if result.end is EndKind.DENIED:
        human = job.decision is not None and job.decision.reason == "approval.denied"
        return How.REJECTED if human else How.OTHER
    if result.end in (EndKind.CANCELLED, EndKind.DAEMON_RESTART):
        return How.OTHER
    programs = () if job.admitted is None else job.admitted.programs
    return How.ERROR if is_failure(result, *programs) else How.FINE
