# SPDX-License-Identifier: GPL-3.0-or-later
"""ExecutionService: judge, run, follow and steer commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sandboxd import batches, model, toolbox, toolcalls
from sandboxd.api import bundles, convert, requests
from sandboxd.api.access import Access, followed
from sandboxd.batches import BatchRun
from sandboxd.engine import Checked
from sandboxd.errors import NotFound, RequestError, SandboxdError
from sandboxd.policy.explain import steer
from sandboxd.run.execution import Execution
from sandboxd.sessions import Role
from sandboxd.v1 import execution_pb2 as pb
from sandboxd.v1 import execution_pb2_grpc

CALLER_CANCELLED = "cancelled by the caller"


class Executions(execution_pb2_grpc.ExecutionServiceServicer):
    """To add a method: describe it in execution.proto, generate, and answer it here in a few lines. Those that send output
    answer in bytes (`bundles`)."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def CheckCommand(
        self, request: pb.ExecutionServiceCheckCommandRequest, context: Any
    ) -> pb.ExecutionServiceCheckCommandResponse:
        session = self._access.session(request.session_id, context)
        checked = await self._engine.check(requests.check_request(request, self._access.role), session)
        return pb.ExecutionServiceCheckCommandResponse(
            decision=convert.decision(checked.decision, request.command.text),
            analysis=convert.analysis(checked.judged.analysis),
            decision_id=checked.decision_id,
            steering=_steering(checked.decision),
        )

    async def CheckToolUse(
        self, request: pb.ExecutionServiceCheckToolUseRequest, context: Any
    ) -> pb.ExecutionServiceCheckToolUseResponse:
        session = self._access.session(request.session_id, context)
        call = toolbox.call(requests.required(request.tool, "tool"), requests.plain(request.input), session.tools)
        if call.name == toolcalls.BASH:
            checked = await self._engine.check(requests.bash_request(session.id, call), session)
            return _checked_use(checked)
        checked, use = await self._engine.check_use(call, session)
        answer = _checked_use(checked)
        answer.exclude.extend(toolcalls.withheld(checked.judged.inputs))
        answer.notes.extend(use.notes)
        if use.rewritten:
            answer.updated_input.update(use.call.input)
        return answer

    async def Start(self, request: pb.ExecutionServiceStartRequest, context: Any) -> AsyncIterator[Any]:
        session = self._access.session(request.session_id, context)
        execution = await self._engine.start(requests.start_request(request, self._access.role), session)
        try:
            async with followed(execution.bundles()) as following:
                async for bundle in following:
                    started = next((at for at, event in enumerate(bundle, 1) if isinstance(event, model.Started)), 0)
                    end = started if request.background and started else len(bundle)
                    for answer in _answers(bundle[:end], execution, request.bundle):
                        yield answer
                    if request.background and started:
                        return
        finally:
            self._engine.executions.let_go(execution, starter=True)

    async def Attach(self, request: pb.ExecutionServiceAttachRequest, context: Any) -> AsyncIterator[Any]:
        execution = self._execution(request, context)
        try:
            async with followed(execution.events(request.from_sequence or 1)) as events:
                async for event in events:
                    yield bundles.attached(event, execution.id, execution.text)
        finally:
            self._engine.executions.let_go(execution, starter=False)

    async def RunBatch(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("open"):
            raise RequestError("a batch begins with `open`", field="open", fix="send it first")
        session = self._access.session(first.open.session_id, context)
        batch = BatchRun(self._engine, session)
        reading = asyncio.create_task(_read(batch, session.id, self._access.role, request_iterator))
        try:
            async with followed(batch.messages()) as messages:
                async for message in messages:
                    yield _said(message)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            await batch.close()

    async def WriteStdin(
        self, request: pb.ExecutionServiceWriteStdinRequest, context: Any
    ) -> pb.ExecutionServiceWriteStdinResponse:
        execution = self._execution(request, context)
        offset = await self._engine.executions.write_stdin(execution, request.offset, requests.stdin_data(request), request.eof)
        return pb.ExecutionServiceWriteStdinResponse(offset=offset)

    async def Resize(self, request: pb.ExecutionServiceResizeRequest, context: Any) -> pb.ExecutionServiceResizeResponse:
        self._execution(request, context).resize(requests.window(request.rows, request.columns))
        return pb.ExecutionServiceResizeResponse()

    async def Signal(self, request: pb.ExecutionServiceSignalRequest, context: Any) -> pb.ExecutionServiceSignalResponse:
        self._execution(request, context).signal(request.signal)
        return pb.ExecutionServiceSignalResponse()

    async def Cancel(self, request: pb.ExecutionServiceCancelRequest, context: Any) -> pb.ExecutionServiceCancelResponse:
        self._engine.executions.cancel(self._execution(request, context), request.cause or CALLER_CANCELLED)
        return pb.ExecutionServiceCancelResponse()

    async def Get(self, request: pb.ExecutionServiceGetRequest, context: Any) -> pb.ExecutionServiceGetResponse:
        execution = self._execution(request, context)
        text = await self._engine.executions.model_text(execution)
        return pb.ExecutionServiceGetResponse(execution=_described(execution), model_text=convert.model_text(text))

    async def List(self, request: pb.ExecutionServiceListRequest, context: Any) -> pb.ExecutionServiceListResponse:
        session = self._access.scope(request.session_id, context)
        found = self._engine.executions.list(session)
        return pb.ExecutionServiceListResponse(executions=[_described(execution) for execution in reversed(found)])

    def _execution(self, request: Any, context: Any) -> Execution:
        execution_id = requests.required(request.execution_id, "execution_id")
        try:
            session = self._access.scope(request.session_id, context)
        except NotFound:
            found = self._access.past(request.session_id, execution_id, context)
            if found is None:
                raise
            return found
        return self._engine.executions.get(execution_id, session)


def _checked_use(checked: Checked) -> pb.ExecutionServiceCheckToolUseResponse:
    return pb.ExecutionServiceCheckToolUseResponse(
        decision=convert.decision(checked.decision, checked.judged.analysis.text),
        analysis=convert.analysis(checked.judged.analysis),
        decision_id=checked.decision_id,
        text=checked.judged.analysis.text,
        steering=_steering(checked.decision),
    )


def _steering(decision: model.Decision) -> str:
    return "" if decision.behavior is model.Behavior.ALLOW else steer(decision)


def _answers(events: tuple[model.Event, ...], execution: Execution, together: bool) -> Iterator[bytes]:
    """The messages of these events: one when they go together, else one each."""
    if together:
        if events:
            yield bundles.started(events, execution.id, execution.text)
        return
    for event in events:
        yield bundles.started((event,), execution.id, execution.text)


async def _read(batch: BatchRun, session_id: str, role: Role, messages: Any) -> None:
    """Hand on what the front-end says, to its end."""
    try:
        async for message in messages:
            match message.WhichOneof("message"):
                case "command":
                    command = message.command
                    cancels = requests.cancels(command.interrupt_behavior)
                    batch.command(command.key, requests.batch_request(session_id, command, role), cancels=cancels)
                case "external":
                    call = message.external
                    said = call.interrupt_behavior != pb.INTERRUPT_BEHAVIOR_UNSPECIFIED
                    drops = requests.cancels(call.interrupt_behavior) if said else None
                    batch.external(call.key, call.tool, safe=call.concurrency_safe, cancels=drops)
                case "external_finished":
                    over = message.external_finished
                    output = over.output if over.HasField("output") else None
                    batch.external_finished(over.key, failed=over.failed, output=output)
                case "interrupt":
                    batch.interrupt()
                case "discard":
                    batch.discard(message.discard.reason)
                case _:
                    raise RequestError("the message is empty, or a second `open`", field="message", fix="send one of the calls")
        batch.no_more()
    except SandboxdError as error:
        batch.fail(error)


def _said(message: batches.Message) -> bytes | pb.ExecutionServiceRunBatchResponse:
    if isinstance(message, batches.Happened):
        return bundles.in_batch(message.key, message.event, message.execution.id, message.execution.text)
    out = pb.ExecutionServiceRunBatchResponse(key=message.key)
    match message:
        case batches.Delivered():
            out.result.CopyFrom(convert.result(message.result))
        case batches.MayStart():
            out.external_start.SetInParent()
        case batches.MustStop():
            out.external_cancel.cause = message.cause
        case batches.Read():
            out.model_text.CopyFrom(pb.ModelText(text=message.text.text, whole=message.text.whole))
            out.model_text.spill_path = message.text.spill_path
    return out


def _described(execution: Execution) -> pb.Execution:
    if execution.result is not None:
        state = pb.EXECUTION_STATE_ENDED
    elif execution.started:
        state = pb.EXECUTION_STATE_RUNNING
    else:
        state = pb.EXECUTION_STATE_WAITING
    return pb.Execution(
        execution_id=execution.id,
        session_id=execution.session_id,
        text=execution.text,
        state=state,
        last_sequence=execution.last_sequence,
        result=None if execution.result is None else convert.result(execution.result),
    )
