# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for every RPC, composed once: who may call it, how its errors look, that its streams are closed."""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]  # googleapis ships no stubs
from grpc_status import rpc_status

from sandboxd.api.bundles import serialize
from sandboxd.errors import ConfigError, Exhausted, Forbidden, RequestError, SandboxdError, Unavailable, status_of
from sandboxd.sessions import Role

log = logging.getLogger("sandboxd.api")

DOMAIN = "sandboxd"
OURS = "/sandboxd."  # our methods, among those of libraries (health, reflection)
LONGEST = 1000  # characters of one text in an error: all trailing metadata together must stay below gRPC's 8 KiB

# Services (with a trailing slash) and methods that only the admin socket answers.
# A profile may extend any file that the daemon can read, so checking one is among them. ApprovalService is not: it looks at
# the configuration, which may let front-ends prompt (Access.approver).
ADMIN_ONLY = (
    "/sandboxd.v1.AdminService/Reload",
    "/sandboxd.v1.ProfileService/Validate",
)

_UNAVAILABLE_RETRY = 1.0  # seconds: a restarting daemon is back about then


def rich_status(error: BaseException, incident: str = "") -> status_pb2.Status:
    """Any exception as google.rpc.Status with ErrorInfo, and RetryInfo where a retry helps.

    What is not ours says no more than INTERNAL and `incident`, under which the log has the rest.
    """
    name, _ = status_of(error)
    if not isinstance(error, SandboxdError):
        message, reason = f"internal error {incident}", "INTERNAL"
        metadata = {"incident": incident, "fix": "look for it in the daemon's log and report it"}
    else:
        message, reason = str(error), error.reason
        metadata = {"fix": error.fix}
        if isinstance(error, RequestError):
            metadata["field"] = error.field
        if isinstance(error, ConfigError):
            metadata["origin"] = error.origin
    info = error_details_pb2.ErrorInfo(
        reason=reason, domain=DOMAIN, metadata={key: _cut(value) for key, value in metadata.items() if value}
    )
    status = status_pb2.Status(code=code_pb2.Code.Value(name), message=_cut(message), details=[_packed(info)])
    if isinstance(error, Exhausted):
        status.details.append(_packed(_retry(error.retry_after)))
    elif isinstance(error, Unavailable):
        status.details.append(_packed(_retry(_UNAVAILABLE_RETRY)))
    return status


class Guard(grpc.aio.ServerInterceptor):
    """The one interceptor of a server: admits by role, maps errors, closes streams when the caller goes.

    A streaming method is an async generator; when its caller goes or its deadline passes, it is closed at once, so its
    `finally` blocks run then and not at some garbage collection.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._made: dict[str, tuple[Any, Any]] = {}  # method -> its handler, and that as it is guarded

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        method = str(handler_call_details.method)
        known, guarded = self._made.get(method, (None, None))
        if known is not handler:
            guarded = self._guarded(method, handler)
            self._made[method] = handler, guarded
        return guarded

    def _guarded(self, method: str, handler: Any) -> Any:
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
            behavior = self._streaming(method, handler.stream_stream or handler.unary_stream)
        else:
            make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
            behavior = self._unary(method, handler.stream_unary or handler.unary_unary)
        return make(behavior, handler.request_deserializer, serialize if method.startswith(OURS) else handler.response_serializer)

    def _admit(self, method: str) -> None:
        if self._role is not Role.ADMIN and method.startswith(ADMIN_ONLY):
            raise Forbidden(f"`{method.lstrip('/')}` is not open on the agent socket", fix="call it on the admin socket")

    def _unary(self, method: str, behavior: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            try:
                self._admit(method)
                return await behavior(request, context)
            except Exception as error:
                await _fail(error, method, context)

        return call

    def _streaming(self, method: str, behavior: Any) -> Any:
        async def call(request: Any, context: Any) -> None:
            try:
                self._admit(method)
                replies = behavior(request, context)
                if not inspect.isasyncgen(replies):
                    await replies  # a library's handler that writes by itself
                    return
                async with aclosing(replies):
                    async for reply in replies:
                        await context.write(reply)
            except Exception as error:
                await _fail(error, method, context)

        return call


async def _fail(error: Exception, method: str, context: Any) -> NoReturn:
    """End the RPC with the error's status; one line in the log, a traceback only for what is not ours."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    incident = ""
    if isinstance(error, SandboxdError):
        level = logging.getLevelNamesMapping()[status_of(error)[1]]
        log.log(level, "%s: %s: %s", method, error.reason, error)
    else:
        incident = secrets.token_hex(4)
        log.error("%s: internal error %s", method, incident, exc_info=error)
    status = rpc_status.to_status(rich_status(error, incident))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort returned")


def _packed(message: Any) -> AnyMessage:
    out = AnyMessage()
    out.Pack(message)
    return out


def _retry(seconds: float) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromNanoseconds(round(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
