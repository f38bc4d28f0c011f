# SPDX-License-Identifier: GPL-3.0-or-later
"""A command that was started: its events, and what can be done to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from sandboxd.client import decode, values
from sandboxd.client.administration import Administration
from sandboxd.client.connection import stop
from sandboxd.errors import Exhausted, RequestError, Unavailable
from sandboxd.model import ApprovalNeeded, Decided, Event, Exited, Gap, Output, Started, Stream, WindowSize
from sandboxd.v1 import execution_pb2

MAX_OUTPUT = 64 << 20  # bytes that `wait` collects
STDIN_CHUNK = 1 << 16  # bytes of one WriteStdin


class AsyncExecution:
    """A command that was started. Iterate over its events once, or `wait`; leaving `async with` lets go of it."""

    def __init__(
        self,
        client: Administration,
        session_id: str,
        secret: str,
        text: str,
        execution_id: str,
        messages: AsyncIterator[Any],
        first: Any = None,
    ) -> None:
        self._client = client
        self._session_id = session_id
        self._secret = secret
        self._messages = messages
        self._first = first  # of the messages, when it was read already
        self._offset = 0
        self.text = text
        self.id = execution_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop following it; unless it was started to be kept, the daemon ends it. Idempotent."""
        await self._messages.aclose()  # type: ignore[attr-defined]  # it is the generator of `_stream`

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events to the last. While a question is open, `on_ask` is asked; its errors are raised here."""
        asking: asyncio.Task[None] | None = None
        try:
            message = await self._next(None) if self._first is None else self._first
            while message is not None:
                for each in (message.event, *getattr(message, "more", ())):  # an Attach sends them one by one
                    event = decode.event(each, self.text)
                    if isinstance(event, ApprovalNeeded) and self._client._on_ask is not None:
                        asking = asyncio.create_task(self._client._answer(event, self.text))
                    elif isinstance(event, (Decided, Exited)) and asking is not None:
                        await stop(asking)
                        asking = None
                    if event is not None:
                        yield event
                message = await self._next(asking)
        finally:
            if asking is not None:
                await stop(asking)

    async def _next(self, asking: asyncio.Task[None] | None) -> Any:
        """The next message, None at the end; an error of the question that is being asked comes first."""
        if asking is None:
            return await anext(self._messages, None)
        following = asyncio.ensure_future(anext(self._messages, None))
        try:
            done, _ = await asyncio.wait({following, asking}, return_when=asyncio.FIRST_COMPLETED)
            if following not in done:
                await asking
            return await following
        finally:
            if not following.done():
                await stop(following)

    async def wait(self, *, stdin: bytes | None = None, max_output: int = MAX_OUTPUT) -> values.Run:
        """Follow it to its end, feeding it `stdin`, and say how it went."""
        output = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        decision, profile, left, dropped = None, "", max_output, 0
        feeding = None if stdin is None else asyncio.create_task(self._feed(stdin))
        try:
            async for event in self:
                match event:
                    case Output():
                        kept = event.data[:left]
                        output[event.stream] += kept
                        left -= len(kept)
                        dropped += len(event.data) - len(kept)
                    case Gap():
                        dropped += event.length
                    case Decided():
                        decision = event.decision
                    case Started():
                        profile = event.profile
                    case Exited():
                        return values.Run(
                            text=self.text,
                            result=event.result,
                            decision=decision,
                            profile=profile,
                            stdout=bytes(output[Stream.STDOUT]),
                            stderr=bytes(output[Stream.STDERR]),
                            dropped=dropped,
                        )
        finally:
            if feeding is not None:
                await stop(feeding)
        raise Unavailable("the daemon ended the stream before the command's end", fix="attach to the execution again")

    async def write_stdin(self, data: bytes, *, eof: bool = False) -> None:
        """Feed the command, in pieces, waiting while it does not read. `eof` closes its standard input behind `data`."""
        pieces = [data[at : at + STDIN_CHUNK] for at in range(0, len(data), STDIN_CHUNK)] or [b""]
        for number, piece in enumerate(pieces, 1):
            request = execution_pb2.ExecutionServiceWriteStdinRequest(
                session_id=self._session_id,
                execution_id=self.id,
                offset=self._offset,
                data=piece,
                eof=eof and number == len(pieces),
            )
            while True:
                try:
                    self._offset = (await self._client._call(self._client._executions.WriteStdin, request, self._secret)).offset
                    break
                except Exhausted as error:
                    await asyncio.sleep(error.retry_after)

    async def resize(self, size: WindowSize) -> None:
        """Change the size of its terminal."""
        request = execution_pb2.ExecutionServiceResizeRequest(
            session_id=self._session_id, execution_id=self.id, rows=size.rows, columns=size.columns
        )
        await self._client._call(self._client._executions.Resize, request, self._secret)

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        request = execution_pb2.ExecutionServiceSignalRequest(session_id=self._session_id, execution_id=self.id, signal=number)
        await self._client._call(self._client._executions.Signal, request, self._secret)

    async def cancel(self, cause: str = "") -> None:
        """End it: TERM, then KILL. The events go on to Exited. Idempotent."""
        request = execution_pb2.ExecutionServiceCancelRequest(session_id=self._session_id, execution_id=self.id, cause=cause)
        await self._client._call(self._client._executions.Cancel, request, self._secret)

    async def _feed(self, data: bytes) -> None:
        with contextlib.suppress(RequestError):  # it ended, or was denied, without reading all of it
            await self.write_stdin(data, eof=True)
