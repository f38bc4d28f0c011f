# SPDX-License-Identifier: GPL-3.0-or-later
"""RPC errors as the exceptions of `sandboxd.errors` that the daemon raised."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # googleapis ships no stubs

from sandboxd import errors
from sandboxd.errors import ConfigError, Exhausted, RequestError, SandboxdError, Unavailable

_DETAILS = "grpc-status-details-bin"  # where gRPC carries a google.rpc.Status


def _all_kinds(kind: type[SandboxdError]) -> dict[str, type[SandboxdError]]:
    found = {kind.reason: kind}
    for child in kind.__subclasses__():
        found.update(_all_kinds(child))
    return found


_KINDS = _all_kinds(errors.SandboxdError)


def translate(error: grpc.aio.AioRpcError) -> SandboxdError:
    """The error that the daemon raised, with its field, origin and fix; what is not the daemon's becomes Unavailable."""
    message = error.details() or error.code().name.lower()
    info, retry_after = _details(error)
    if info is None:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable("the daemon did not answer in time", fix="try again with a longer deadline")
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return errors.NotYet("the daemon does not know this call", fix="run a daemon of the client's version")
        return Unavailable(f"the daemon cannot be reached: {message}", fix="start one with `sandboxd serve`")
    fix, field, origin = (info.metadata.get(key, "") for key in ("fix", "field", "origin"))
    message = message.removesuffix(f"; {fix}") if fix else message
    kind = _KINDS.get(info.reason, SandboxdError)
    if issubclass(kind, RequestError):
        return kind(message, field=field, fix=fix)
    if issubclass(kind, ConfigError):
        return kind(message.removeprefix(f"{origin}: ") if origin else message, origin=origin, fix=fix)
    if kind is Exhausted:
        return Exhausted(message, retry_after=retry_after, fix=fix)
    return kind(message, fix=fix)


def _details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, float]:
    """The daemon's ErrorInfo (None when the error is not the daemon's) and the seconds of its RetryInfo."""
    info, retry_after = None, 1.0
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS or not isinstance(value, bytes):
            continue
        for detail in status_pb2.Status.FromString(value).details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                retry_after = delay.seconds + delay.nanos / 1e9
    return (info if info is not None and info.domain == "sandboxd" else None), retry_after
