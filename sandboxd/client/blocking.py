# SPDX-License-Identifier: GPL-3.0-or-later
"""The blocking client: the asynchronous one, driven by an event loop of its own in the caller's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from sandboxd.client import values
from sandboxd.client.aio import AsyncClient
from sandboxd.client.asking import Answer, Ask, OnAsk
from sandboxd.client.batch import BatchMessage, Outcome
from sandboxd.client.connection import TIMEOUT
from sandboxd.client.execution import MAX_OUTPUT, AsyncExecution
from sandboxd.client.session import AsyncSession, SessionBatch
from sandboxd.client.tools import Described, Format
from sandboxd.client.transcripts import ToolUse, UserMessage
from sandboxd.model import Behavior, Event, Mode, ModelText, Profile, Tool, WindowSize

_T = TypeVar("_T")


class Client:
    """A connection to the daemon, for programs that do not use asyncio.

        with Client() as client:
            run = client.run("git status")
            print(run.exit_code, run.output)

    Arguments and errors as for `AsyncClient`; `on_ask` is a plain function. Use it from one thread, and not where an
    event loop runs.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        admin: bool | None = None,
        on_ask: Callable[[Ask], Answer | bool] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(
            address, admin=admin, on_ask=None if on_ask is None else _in_this_thread(on_ask), timeout=timeout
        )

    def __enter__(self) -> Self:
        try:
            self._do(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End what this client started, unless it was started to be kept, and close the connection. Idempotent."""
        if self._loop.is_closed():
            return
        try:
            self._do(self._client.close())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, text: str, **options: Any) -> values.Run:
        """Run a command and wait for its end. Options as in `AsyncSession.run`."""
        return self._do(self._client.run(text, **options))

    def start(self, text: str, **options: Any) -> Execution:
        """Start a command and iterate over its events. Options as in `AsyncSession.start`."""
        return Execution(self._do, self._do(self._client.start(text, **options)))

    def check(self, text: str, **options: Any) -> values.Check:
        """What would be decided now; nothing runs. Options as in `AsyncSession.check`."""
        return self._do(self._client.check(text, **options))

    def session(self, workspace: str = "", **options: Any) -> Session:
        """Open a session. Options as in `AsyncClient.session`."""
        return Session(self._do, self._do(self._client.session(workspace, **options)))

    def attach_session(self, session_id: str, secret: str = "") -> Session:
        """A session that exists already."""
        return Session(self._do, self._do(self._client.attach_session(session_id, secret)))

    def attach_execution(self, execution_id: str, session_id: str = "", secret: str = "", *, from_sequence: int = 1) -> Execution:
        """Follow an execution, also of an earlier daemon. Arguments as in `AsyncClient.attach_execution`."""
        attached = self._client.attach_execution(execution_id, session_id, secret, from_sequence=from_sequence)
        return Execution(self._do, self._do(attached))

    def execution(self, execution_id: str, session_id: str = "", secret: str = "") -> values.ExecutionInfo:
        return self._do(self._client.execution(execution_id, session_id, secret))

    def sessions(self) -> tuple[values.SessionInfo, ...]:
        return self._do(self._client.sessions())

    def executions(self) -> tuple[values.ExecutionInfo, ...]:
        return self._do(self._client.executions())

    def approvals(self) -> tuple[values.Approval, ...]:
        return self._do(self._client.approvals())

    def watch_approvals(self) -> Iterator[values.Approval | values.Settled]:
        return _iterate(self._do, self._client.watch_approvals())

    def resolve(self, approval_id: str, answer: Answer, *, who: str = "") -> None:
        self._do(self._client.resolve(approval_id, answer, who=who))

    def decisions(
        self, *, session_id: str = "", behaviors: Sequence[Behavior] = (), limit: int = 100
    ) -> tuple[values.DecisionRecord, ...]:
        return self._do(self._client.decisions(session_id=session_id, behaviors=behaviors, limit=limit))

    def decision(self, decision_id: str) -> values.DecisionRecord:
        return self._do(self._client.decision(decision_id))

    def watch_decisions(self) -> Iterator[values.DecisionRecord]:
        return _iterate(self._do, self._client.watch_decisions())

    def profiles(self) -> tuple[Profile, ...]:
        return self._do(self._client.profiles())

    def profile(self, name: str) -> Profile:
        return self._do(self._client.profile(name))

    def validate_profile(self, text: str) -> tuple[values.Problem, ...]:
        return self._do(self._client.validate_profile(text))

    def status(self) -> values.DaemonStatus:
        return self._do(self._client.status())

    def reload(self) -> None:
        self._do(self._client.reload())

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run one piece of work to its end; an interrupt cancels it and waits until it has let go."""
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)
            raise


class Session:
    """A session; leaving `with` deletes it."""

    def __init__(self, do: Any, session: AsyncSession) -> None:
        self._do = do
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def secret(self) -> str:
        return self._session.secret

    @property
    def info(self) -> values.SessionInfo:
        return self._session.info

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.delete()

    def run(self, text: str, **options: Any) -> values.Run:
        run: values.Run = self._do(self._session.run(text, **options))
        return run

    def start(self, text: str, **options: Any) -> Execution:
        return Execution(self._do, self._do(self._session.start(text, **options)))

    def attach(self, execution_id: str, *, from_sequence: int = 1) -> Execution:
        return Execution(self._do, self._do(self._session.attach(execution_id, from_sequence=from_sequence)))

    def batch(self) -> Batch:
        """Open a batch: the calls of one turn of a model, as they become known."""
        return Batch(self._do, self._do(_made(self._session.batch)))

    def execution(self, execution_id: str) -> values.ExecutionInfo:
        info: values.ExecutionInfo = self._do(self._session.execution(execution_id))
        return info

    def model_text(self, execution_id: str) -> ModelText | None:
        text: ModelText | None = self._do(self._session.model_text(execution_id))
        return text

    def check(self, text: str, **options: Any) -> values.Check:
        check: values.Check = self._do(self._session.check(text, **options))
        return check

    def add_transcript(self, *entries: UserMessage | ToolUse) -> tuple[str, ...]:
        ids: tuple[str, ...] = self._do(self._session.add_transcript(*entries))
        return ids

    def check_tool(self, tool: str, input: Mapping[str, Any]) -> values.ToolCheck:
        check: values.ToolCheck = self._do(self._session.check_tool(tool, input))
        return check

    def declare_tools(self, tools: Iterable[Tool] = (), *, remove: Iterable[str] = ()) -> tuple[str, ...]:
        names: tuple[str, ...] = self._do(self._session.declare_tools(tools, remove=remove))
        return names

    def report_tool(
        self, decision_id: str, response: Mapping[str, Any] | None = None, *, failed: bool = False
    ) -> tuple[str, ...]:
        notes: tuple[str, ...] = self._do(self._session.report_tool(decision_id, response, failed=failed))
        return notes

    def search_tools(self, query: str, *, most: int = 0, style: Format = "anthropic") -> Described:
        found: Described = self._do(self._session.search_tools(query, most=most, style=style))
        return found

    def describe_tools(self, style: Format = "anthropic", *, deferred: bool = False) -> Described:
        described: Described = self._do(self._session.describe_tools(style, deferred=deferred))
        return described

    def update(
        self, *, mode: Mode | str | None = None, cwd: str | None = None, headless: bool | None = None
    ) -> values.SessionInfo:
        info: values.SessionInfo = self._do(self._session.update(mode=mode, cwd=cwd, headless=headless))
        return info

    def refresh(self) -> values.SessionInfo:
        info: values.SessionInfo = self._do(self._session.refresh())
        return info

    def executions(self) -> tuple[values.ExecutionInfo, ...]:
        found: tuple[values.ExecutionInfo, ...] = self._do(self._session.executions())
        return found

    def delete(self) -> None:
        self._do(self._session.delete())


class Execution:
    """A started command: iterate over its events once, or `wait`. Leaving `with` lets go of it."""

    def __init__(self, do: Any, execution: AsyncExecution) -> None:
        self._do = do
        self._execution = execution

    @property
    def id(self) -> str:
        return self._execution.id

    @property
    def text(self) -> str:
        return self._execution.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return _iterate(self._do, aiter(self._execution))

    def wait(self, *, stdin: bytes | None = None, max_output: int = MAX_OUTPUT) -> values.Run:
        run: values.Run = self._do(self._execution.wait(stdin=stdin, max_output=max_output))
        return run

    def write_stdin(self, data: bytes, *, eof: bool = False) -> None:
        self._do(self._execution.write_stdin(data, eof=eof))

    def resize(self, size: WindowSize) -> None:
        self._do(self._execution.resize(size))

    def signal(self, number: int) -> None:
        self._do(self._execution.signal(number))

    def cancel(self, cause: str = "") -> None:
        self._do(self._execution.cancel(cause))

    def close(self) -> None:
        self._do(self._execution.close())


class Batch:
    """An open batch, as `AsyncBatch`. Leaving `with` before the end kills what it runs.

    What the daemon has to say is heard while you iterate. With external calls, ask first, then iterate, and between two
    messages run what may start and call `finished`; the commands of the batch run meanwhile.
    """

    def __init__(self, do: Any, batch: SessionBatch) -> None:
        self._do = do
        self._batch = batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._do(self._batch.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[BatchMessage]:
        return _iterate(self._do, aiter(self._batch))

    def run(self, key: str, text: str, **options: Any) -> None:
        """Ask for a command. Options as in `SessionBatch.run`."""
        self._do(self._batch.run(key, text, **options))

    def external(self, key: str, tool: str, **options: Any) -> None:
        """Ask for the turn of a tool that you run. Options as in `AsyncBatch.external`."""
        self._do(self._batch.external(key, tool, **options))

    def finished(self, key: str, *, failed: bool = False, output: str | None = None) -> None:
        self._do(self._batch.finished(key, failed=failed, output=output))

    def interrupt(self) -> None:
        self._do(self._batch.interrupt())

    def discard(self, reason: str = "") -> None:
        self._do(self._batch.discard(reason))

    def close(self) -> None:
        self._do(self._batch.close())

    def outcome(self) -> Outcome:
        outcome: Outcome = self._do(self._batch.outcome())
        return outcome


async def _made(make: Callable[[], _T]) -> _T:
    """What can only be made where a loop runs."""
    return make()


def _iterate(do: Any, items: AsyncIterator[_T]) -> Iterator[_T]:
    """An asynchronous generator, one `do` a step; closed when the loop over it is left."""
    end: Any = object()

    async def step() -> Any:
        return await anext(items, end)

    try:
        while (item := do(step())) is not end:
            yield item
    finally:
        do(items.aclose())  # type: ignore[attr-defined]  # all of ours are generators


def _in_this_thread(on_ask: Callable[[Ask], Answer | bool]) -> OnAsk:
    """The loop serves this caller only, so a question may hold it: Ctrl-C then reaches whoever is being asked."""

    async def ask(question: Ask) -> Answer | bool:
        return on_ask(question)

    return ask
