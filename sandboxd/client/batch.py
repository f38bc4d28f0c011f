# SPDX-License-Identifier: GPL-3.0-or-later
"""One turn of a model as a batch: commands, and the front-end's own tools, under one barrier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from sandboxd.client import decode
from sandboxd.client.failure import translate
from sandboxd.errors import Unavailable
from sandboxd.model import Event, ModelText, Result
from sandboxd.v1 import execution_pb2 as pb


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """Something happened to a command, now."""

    key: str
    event: Event


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How a call ended; in the order asked. Of an external call only whether it was cancelled counts."""

    key: str
    result: Result


@dataclass(frozen=True, slots=True)
class ExternalStart:
    """Your tool has its turn: run it, then call `finished`."""

    key: str


@dataclass(frozen=True, slots=True)
class ExternalCancel:
    """Your tool is to stop; call `finished` when it has."""

    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class BatchText:
    """What a model reads of a call; behind all results, in the order asked."""

    key: str
    text: ModelText


BatchMessage = BatchEvent | BatchResult | ExternalStart | ExternalCancel | BatchText


@dataclass(frozen=True, slots=True)
class Outcome:
    """All of a batch, by key, in the order asked."""

    results: dict[str, Result] = field(default_factory=dict)
    texts: dict[str, ModelText] = field(default_factory=dict)


class AsyncBatch:
    """An open batch. Ask while reading; `close` says that no more is asked. Leaving `async with` before the end kills
    what it runs.

        async with session.batch() as batch:
            await batch.run("a", "git status")
            await batch.run("b", "make test", timeout=600)
            await batch.close()
            outcome = await batch.outcome()
    """

    def __init__(self, call: Any, session_id: str) -> None:
        self._call = call
        self._session_id = session_id
        self._texts: dict[str, str] = {}
        self._opened = False
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call.cancel()

    async def command(self, key: str, command: pb.Command, *, cancel_on_interrupt: bool = False) -> None:
        """Ask for a command. `key` is new in the batch."""
        self._texts[key] = command.text
        message = pb.BatchCommand(key=key, command=command, interrupt_behavior=_behavior(cancel_on_interrupt))
        await self._send(command=message)

    async def external(
        self, key: str, tool: str, *, concurrency_safe: bool = False, cancel_on_interrupt: bool | None = None
    ) -> None:
        """Ask for the turn of a tool that you run. `concurrency_safe`: it may run beside others, for this very input.
        Where you do not say, what was declared of the tool counts."""
        message = pb.BatchExternal(
            key=key, tool=tool, concurrency_safe=concurrency_safe, interrupt_behavior=_behavior(cancel_on_interrupt)
        )
        await self._send(external=message)

    async def finished(self, key: str, *, failed: bool = False, output: str | None = None) -> None:
        """Your tool has ended. With its `output`, what a model reads of it comes among the texts, within their budget."""
        await self._send(external_finished=pb.BatchExternalFinished(key=key, failed=failed, output=output))

    async def interrupt(self) -> None:
        """The user spoke up: calls that said so are dropped."""
        await self._send(interrupt=pb.BatchInterrupt())

    async def discard(self, reason: str = "") -> None:
        """The batch is superseded: nothing of it counts."""
        await self._send(discard=pb.BatchDiscard(reason=reason))

    async def close(self) -> None:
        """No more will be asked, and every external call has ended."""
        await self._open()
        await self._call.done_writing()

    async def __aiter__(self) -> AsyncIterator[BatchMessage]:
        """Everything that happens, to the end of the batch. Raises what the daemon refuses."""
        await self._open()
        while True:
            try:
                answer = await self._call.read()
            except grpc.aio.AioRpcError as error:
                raise translate(error) from None
            if answer is grpc.aio.EOF:
                await self._check()
                return
            message = self._decode(answer)
            if message is not None:
                yield message

    async def outcome(self) -> Outcome:
        """Read to the end; all results and texts. Only for batches without external calls, or read by `async for` first."""
        found = Outcome()
        async for message in self:
            if isinstance(message, BatchResult):
                found.results[message.key] = message.result
            elif isinstance(message, BatchText):
                found.texts[message.key] = message.text
        return found

    async def _open(self) -> None:
        async with self._lock:
            if not self._opened:
                self._opened = True
                await self._write(pb.ExecutionServiceRunBatchRequest(open=pb.BatchOpen(session_id=self._session_id)))

    async def _send(self, **message: Any) -> None:
        await self._open()
        async with self._lock:
            await self._write(pb.ExecutionServiceRunBatchRequest(**message))

    async def _write(self, message: pb.ExecutionServiceRunBatchRequest) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        except asyncio.InvalidStateError:
            await self._check()
            raise Unavailable("the batch has ended", fix="open another one") from None

    async def _check(self) -> None:
        """Raises the error that the daemon ended the call with, if it did."""
        if await self._call.code() is not grpc.StatusCode.OK:
            metadata = await self._call.trailing_metadata()
            raise translate(
                grpc.aio.AioRpcError(
                    await self._call.code(), await self._call.initial_metadata(), metadata, await self._call.details()
                )
            )

    def _decode(self, answer: pb.ExecutionServiceRunBatchResponse) -> BatchMessage | None:
        match answer.WhichOneof("message"):
            case "event":
                event = decode.event(answer.event, self._texts.get(answer.key, ""))
                return None if event is None else BatchEvent(answer.key, event)
            case "result":
                return BatchResult(answer.key, decode.result(answer.result))
            case "external_start":
                return ExternalStart(answer.key)
            case "external_cancel":
                return ExternalCancel(answer.key, answer.external_cancel.cause)
            case "model_text":
                return BatchText(answer.key, decode.model_text(answer.model_text))
        return None  # of a newer daemon


def _behavior(cancel: bool | None) -> Any:
    if cancel is None:
        return pb.INTERRUPT_BEHAVIOR_UNSPECIFIED
    return pb.INTERRUPT_BEHAVIOR_CANCEL if cancel else pb.INTERRUPT_BEHAVIOR_BLOCK
