# SPDX-License-Identifier: GPL-3.0-or-later
"""ExecutionService: judge, run, follow and steer commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sandboxd import model
from sandboxd.api import convert, requests
from sandboxd.api.access import Access, followed
from sandboxd.errors import NotYet
from sandboxd.run.execution import Execution
from sandboxd.v1 import execution_pb2 as pb
from sandboxd.v1 import execution_pb2_grpc

CALLER_LEFT = "caller_left"  # the cause of an execution that ended because nobody followed it any more
CALLER_CANCELLED = "cancelled by the caller"


class Executions(execution_pb2_grpc.ExecutionServiceServicer):
    """To add a method: describe it in execution.proto, generate, and answer it here in a few lines."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def CheckCommand(
        self, request: pb.ExecutionServiceCheckCommandRequest, context: Any
    ) -> pb.ExecutionServiceCheckCommandResponse:
        session = self._access.session(request.session_id, context)
        checked = await self._engine.check(requests.check_request(request), session)
        return pb.ExecutionServiceCheckCommandResponse(
            decision=convert.decision(checked.decision, request.command.text),
            analysis=convert.analysis(checked.judged.analysis),
        )

    async def CheckToolUse(
        self, request: pb.ExecutionServiceCheckToolUseRequest, context: Any
    ) -> pb.ExecutionServiceCheckToolUseResponse:
        raise NotYet("judging the use of tools other than Bash comes with a later version", fix="use CheckCommand for commands")

    async def Start(
        self, request: pb.ExecutionServiceStartRequest, context: Any
    ) -> AsyncIterator[pb.ExecutionServiceStartResponse]:
        session = self._access.session(request.session_id, context)
        execution = await self._engine.start(requests.start_request(request), session)
        left = not (request.keep_on_disconnect or request.background)
        try:
            async with followed(execution.events()) as events:
                async for event in events:
                    yield pb.ExecutionServiceStartResponse(event=convert.event(event, execution.id, execution.text))
                    if request.background and isinstance(event, model.Started):
                        return
            left = False
        finally:
            if left:
                self._engine.cancel(execution, CALLER_LEFT)

    async def Attach(
        self, request: pb.ExecutionServiceAttachRequest, context: Any
    ) -> AsyncIterator[pb.ExecutionServiceAttachResponse]:
        execution = self._execution(request, context)
        async with followed(execution.events(request.from_sequence or 1)) as events:
            async for event in events:
                yield pb.ExecutionServiceAttachResponse(event=convert.event(event, execution.id, execution.text))

    async def RunBatch(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ExecutionServiceRunBatchResponse]:
        raise NotYet("batches come with a later version", fix="call Start once a command")
        yield  # type: ignore[unreachable]  # makes it an async generator, as every streaming method is

    async def WriteStdin(
        self, request: pb.ExecutionServiceWriteStdinRequest, context: Any
    ) -> pb.ExecutionServiceWriteStdinResponse:
        execution = self._execution(request, context)
        offset = execution.write_stdin(request.offset, requests.stdin_data(request), request.eof)
        return pb.ExecutionServiceWriteStdinResponse(offset=offset)

    async def Resize(self, request: pb.ExecutionServiceResizeRequest, context: Any) -> pb.ExecutionServiceResizeResponse:
        raise NotYet("terminals come with a later version", fix="run it without a terminal")

    async def Signal(self, request: pb.ExecutionServiceSignalRequest, context: Any) -> pb.ExecutionServiceSignalResponse:
        self._execution(request, context).signal(request.signal)
        return pb.ExecutionServiceSignalResponse()

    async def Cancel(self, request: pb.ExecutionServiceCancelRequest, context: Any) -> pb.ExecutionServiceCancelResponse:
        self._engine.cancel(self._execution(request, context), request.cause or CALLER_CANCELLED)
        return pb.ExecutionServiceCancelResponse()

    async def Get(self, request: pb.ExecutionServiceGetRequest, context: Any) -> pb.ExecutionServiceGetResponse:
        return pb.ExecutionServiceGetResponse(execution=_described(self._execution(request, context)))

    async def List(self, request: pb.ExecutionServiceListRequest, context: Any) -> pb.ExecutionServiceListResponse:
        session = self._access.scope(request.session_id, context)
        found = self._engine.list_executions(session)
        return pb.ExecutionServiceListResponse(executions=[_described(execution) for execution in reversed(found)])

    def _execution(self, request: Any, context: Any) -> Execution:
        session = self._access.scope(request.session_id, context)
        return self._engine.execution(requests.required(request.execution_id, "execution_id"), session)


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
        result=None if execution.result is None else convert.result(execution.result),
    )
