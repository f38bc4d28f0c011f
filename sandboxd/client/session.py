# SPDX-License-Identifier: GPL-3.0-or-later
"""One conversation with the daemon: commands and batches of them, in one workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from sandboxd.client import decode, values
from sandboxd.client.administration import Administration
from sandboxd.client.batch import AsyncBatch
from sandboxd.client.connection import metadata
from sandboxd.client.execution import MAX_OUTPUT, AsyncExecution
from sandboxd.client.tools import AsyncTools
from sandboxd.client.transcripts import AsyncTranscripts
from sandboxd.errors import NotFound, RequestError, Unavailable
from sandboxd.model import UNLIMITED, Mode, ModelText, WindowSize
from sandboxd.v1 import execution_pb2, session_pb2


class AsyncSession(AsyncTools, AsyncTranscripts):
    """One conversation: a workspace, a directory that follows `cd`, a mode, rules. Leaving `async with` deletes it."""

    def __init__(self, client: Administration, info: values.SessionInfo, secret: str) -> None:
        self._client = client
        self.info = info
        self.secret = secret

    @property
    def id(self) -> str:
        return self.info.id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.delete()

    async def run(self, text: str, *, stdin: bytes | None = None, max_output: int = MAX_OUTPUT, **options: Any) -> values.Run:
        """Run a command, collect its output (at most `max_output` bytes) and wait for its end. Options as in `start`."""
        async with await self.start(text, stdin=stdin is not None, **options) as execution:
            return await execution.wait(stdin=stdin, max_output=max_output)

    async def start(
        self,
        text: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  it bounds the command, not this call
        stdin: bool = False,
        request_id: str = "",
        background: bool = False,
        keep_on_disconnect: bool = False,
        detach_ttl: float | None = None,
        terminal: WindowSize | None = None,
        max_result_chars: int | None = None,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
    ) -> AsyncExecution:
        """Start a command. `timeout` in seconds of running; `stdin`: keep standard input open for `write_stdin`;
        `request_id` makes a retry follow the first try; `background` ends the events at Started;
        `keep_on_disconnect`: it goes on when this client goes, at most `detach_ttl` seconds with nobody following;
        `terminal`: run it on one; `max_result_chars`: what a model is shown, UNLIMITED = everything; `allow`, `ask` and
        `deny`: rules for this command alone, above the session's (an agent's socket takes no `allow`).
        """
        request = execution_pb2.ExecutionServiceStartRequest(
            session_id=self.id,
            request_id=request_id,
            command=command(
                text,
                cwd,
                timeout=timeout,
                stdin=stdin,
                terminal=terminal,
                max_result_chars=max_result_chars,
                allow=allow,
                ask=ask,
                deny=deny,
            ),
            background=background,
            keep_on_disconnect=keep_on_disconnect,
            bundle=True,
        )
        if detach_ttl is not None:
            request.detach_ttl.FromNanoseconds(round(detach_ttl * 1e9))
        messages = self._client._stream(self._client._executions.Start, request, self.secret)
        try:
            first = await anext(messages)  # it always comes; an error that stands before it is raised here
        except StopAsyncIteration:
            raise Unavailable("the daemon ended the stream before its first event", fix="see the daemon's log") from None
        return AsyncExecution(self._client, self.id, self.secret, text, first.event.execution_id, messages, first)

    async def attach(self, execution_id: str, *, from_sequence: int = 1) -> AsyncExecution:
        """Follow an execution of this session from an event on."""
        known = await self.execution(execution_id)
        request = execution_pb2.ExecutionServiceAttachRequest(
            session_id=self.id, execution_id=execution_id, from_sequence=from_sequence
        )
        messages = self._client._stream(self._client._executions.Attach, request, self.secret)
        return AsyncExecution(self._client, self.id, self.secret, known.text, execution_id, messages)

    def batch(self) -> SessionBatch:
        """Open a batch: the calls of one turn of a model, as they become known."""
        call = self._client._executions.RunBatch(metadata=metadata(self.secret))
        return SessionBatch(call, self.id)

    async def execution(self, execution_id: str) -> values.ExecutionInfo:
        """How an execution of this session stands."""
        request = execution_pb2.ExecutionServiceGetRequest(session_id=self.id, execution_id=execution_id)
        answer = await self._call(self._client._executions.Get, request)
        text = decode.model_text(answer.model_text) if answer.HasField("model_text") else None
        return values.execution_info(answer.execution, text)

    async def model_text(self, execution_id: str) -> ModelText | None:
        """What a model reads of an execution; None before its end."""
        return (await self.execution(execution_id)).model_text

    async def check(
        self,
        text: str,
        *,
        cwd: str | None = None,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
    ) -> values.Check:
        """What would be decided now; nothing runs. `allow`, `ask` and `deny` as in `start`."""
        answer = await self._call(
            self._client._executions.CheckCommand,
            execution_pb2.ExecutionServiceCheckCommandRequest(
                session_id=self.id, command=command(text, cwd, allow=allow, ask=ask, deny=deny)
            ),
        )
        analysis = decode.analysis(answer.analysis, text, cwd or self.info.cwd)
        return values.Check(decode.decision(answer.decision, text), analysis, answer.decision_id, answer.steering)

    async def update(
        self, *, mode: Mode | str | None = None, cwd: str | None = None, headless: bool | None = None
    ) -> values.SessionInfo:
        """Change what is given."""
        request = session_pb2.SessionServiceUpdateRequest(session_id=self.id, cwd=cwd, headless=headless)
        if mode is not None:
            request.mode = decode.MODE_NUMBER[Mode(mode)]
        self.info = values.session_info((await self._call(self._client._sessions.Update, request)).session)
        return self.info

    async def refresh(self) -> values.SessionInfo:
        """Ask the daemon how the session stands."""
        request = session_pb2.SessionServiceGetRequest(session_id=self.id)
        self.info = values.session_info((await self._call(self._client._sessions.Get, request)).session)
        return self.info

    async def executions(self) -> tuple[values.ExecutionInfo, ...]:
        request = execution_pb2.ExecutionServiceListRequest(session_id=self.id)
        answer = await self._call(self._client._executions.List, request)
        return tuple(values.execution_info(item) for item in answer.executions)

    async def delete(self) -> None:
        """End the session and everything it runs. Idempotent."""
        with contextlib.suppress(NotFound):
            await self._call(self._client._sessions.Delete, session_pb2.SessionServiceDeleteRequest(session_id=self.id))

    async def _call(self, method: Any, request: Any) -> Any:
        return await self._client._call(method, request, self.secret)


class SessionBatch(AsyncBatch):
    """A batch of a session."""

    async def run(self, key: str, text: str, *, cancel_on_interrupt: bool = False, **options: Any) -> None:
        """Ask for a command. Options: `cwd`, `timeout`, `stdin`, `terminal`, `max_result_chars` and rules, as in `start`."""
        await self.command(key, command(text, options.pop("cwd", None), **options), cancel_on_interrupt=cancel_on_interrupt)


def command(
    text: str,
    cwd: str | None,
    *,
    timeout: float | None = None,
    stdin: bool = False,
    terminal: WindowSize | None = None,
    max_result_chars: int | None = None,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
) -> execution_pb2.Command:
    try:
        made = execution_pb2.Command(text=text, cwd=cwd or "", stdin=stdin, allow=allow, ask=ask, deny=deny)
    except (ValueError, UnicodeEncodeError):
        raise RequestError("the command is not valid Unicode", field="command.text", fix="send UTF-8") from None
    if timeout is not None:
        made.timeout.FromNanoseconds(round(timeout * 1e9))
    if terminal is not None:
        made.terminal.rows, made.terminal.columns = terminal.rows, terminal.columns
    if max_result_chars == UNLIMITED:
        made.unlimited_result = True
    elif max_result_chars is not None:
        made.max_result_chars = max_result_chars
    return made
