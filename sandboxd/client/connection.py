# SPDX-License-Identifier: GPL-3.0-or-later
"""One channel to the daemon: its calls and streams, with the daemon's errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc

from sandboxd.client import address as addresses
from sandboxd.client.failure import translate
from sandboxd.v1 import (
    admin_pb2_grpc,
    approval_pb2_grpc,
    decision_pb2_grpc,
    execution_pb2_grpc,
    profile_pb2_grpc,
    session_pb2_grpc,
    tool_pb2_grpc,
)

SECRET_KEY = "sandboxd-session-secret"  # noqa: S105  the name of a metadata key
TIMEOUT = 30.0  # seconds one plain call may take
MAX_MESSAGE = 64 << 20  # bytes of one answer: a page of decisions with their traces

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment has no business between us and our socket
)

_LARGE = 8 << 20  # bytes

_T = TypeVar("_T")


class Connection:
    """`address` is a gRPC target, None finds the user's daemon; `timeout` bounds plain calls, in seconds."""

    def __init__(self, address: str | None, admin: bool, timeout: float) -> None:
        self._address = address
        self._admin = admin
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._streams: set[Any] = set()  # calls that still deliver

    def connect(self) -> None:
        """Open the channel; nothing is sent yet. Raises Unavailable when no daemon listens."""
        if self._channel is not None:
            return
        target = self._address or addresses.find(admin=self._admin)
        # The C library gives the memory of every message back to the kernel and fetches it again, page by page, which takes
        # longer than all copies of it; unless it has seen that so large a block comes and goes (mallopt(3), M_MMAP_THRESHOLD).
        bytearray(_LARGE)
        channel = self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._sessions = session_pb2_grpc.SessionServiceStub(channel)
        self._executions = execution_pb2_grpc.ExecutionServiceStub(channel)
        self._approvals = approval_pb2_grpc.ApprovalServiceStub(channel)
        self._profiles = profile_pb2_grpc.ProfileServiceStub(channel)
        self._decisions = decision_pb2_grpc.DecisionServiceStub(channel)
        self._administration = admin_pb2_grpc.AdminServiceStub(channel)
        self._tools = tool_pb2_grpc.ToolServiceStub(channel)

    async def _call(self, method: Any, request: Any, secret: str = "") -> Any:
        try:
            return await method(request, metadata=metadata(secret), timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None

    async def _stream(self, method: Any, request: Any, secret: str = "") -> AsyncIterator[Any]:
        call = method(request, metadata=metadata(secret))
        self._streams.add(call)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        finally:
            self._streams.discard(call)
            call.cancel()


def metadata(secret: str) -> tuple[tuple[str, str], ...]:
    return ((SECRET_KEY, secret),) if secret else ()


async def stop(task: asyncio.Future[_T]) -> None:
    """Cancel a task and wait until it is over; its outcome no longer matters."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
