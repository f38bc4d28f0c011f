# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors on the wire: every exception of the tree, through a real server and the client, keeps its kind and its details."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandboxd import errors
from sandboxd.api.interceptors import LONGEST, Guard
from sandboxd.client.failure import translate
from sandboxd.errors import SandboxdError
from sandboxd.sessions import Role
from sandboxd.v1 import decision_pb2, decision_pb2_grpc, profile_pb2, profile_pb2_grpc


class Failing(profile_pb2_grpc.ProfileServiceServicer):
    """Raises what the test puts here."""

    error: BaseException = SandboxdError("unset")

    async def Get(self, request: Any, context: Any) -> Any:
        raise self.error

    async def List(self, request: Any, context: Any) -> Any:
        raise self.error

    async def Validate(self, request: Any, context: Any) -> Any:
        return profile_pb2.ProfileServiceValidateResponse()


class Streaming(decision_pb2_grpc.DecisionServiceServicer):
    """One reply, then the error, or no end; says when it was closed."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.closed = asyncio.Event()

    async def Get(self, request: Any, context: Any) -> Any:
        return decision_pb2.DecisionServiceGetResponse()

    async def List(self, request: Any, context: Any) -> Any:
        return decision_pb2.DecisionServiceListResponse()

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            yield decision_pb2.DecisionServiceWatchResponse()
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.closed.set()


class House:
    """A server with the guard of one role, and a channel to it."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}/s"
        self.failing = Failing()
        self.streaming = Streaming()
        self.servers: list[grpc.aio.Server] = []
        self.channel = grpc.aio.insecure_channel(self.address)
        self.profiles = profile_pb2_grpc.ProfileServiceStub(self.channel)
        self.decisions = decision_pb2_grpc.DecisionServiceStub(self.channel)

    async def start(self, role: Role) -> House:
        server = grpc.aio.server(interceptors=[Guard(role)])
        profile_pb2_grpc.add_ProfileServiceServicer_to_server(self.failing, server)
        decision_pb2_grpc.add_DecisionServiceServicer_to_server(self.streaming, server)
        server.add_insecure_port(self.address)
        await server.start()
        self.servers.append(server)
        return self

    async def get(self) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.profiles.Get(profile_pb2.ProfileServiceGetRequest())
        return caught.value


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    await made.channel.close()
    for server in made.servers:
        await server.stop(None)


ERRORS: tuple[tuple[Callable[[], SandboxdError], str], ...] = (
    (lambda: errors.RequestError("bad `x`", field="command.text", fix="mend it"), "INVALID_ARGUMENT"),
    (lambda: errors.RequestError("no fix"), "INVALID_ARGUMENT"),
    (lambda: errors.NotFound("no session `s`", field="session_id", fix="create one"), "NOT_FOUND"),
    (lambda: errors.Forbidden("not here", field="mode", fix="use the admin socket"), "PERMISSION_DENIED"),
    (lambda: errors.NotYet("later", fix="wait"), "UNIMPLEMENTED"),
    (lambda: errors.ConfigError("wrong", origin="/etc/x:3", fix="correct it"), "FAILED_PRECONDITION"),
    (lambda: errors.RuleError("malformed", origin="--allow", fix="close it"), "FAILED_PRECONDITION"),
    (lambda: errors.ProfileError("unknown key", origin="p.toml:1"), "FAILED_PRECONDITION"),
    (lambda: errors.TableError("no example", origin="rm.toml:9"), "FAILED_PRECONDITION"),
    (lambda: errors.IsolationError("no sandbox", fix="install bubblewrap"), "FAILED_PRECONDITION"),
    (lambda: errors.Exhausted("too many", retry_after=2.5, fix="wait"), "RESOURCE_EXHAUSTED"),
    (lambda: errors.Unavailable("draining", fix="retry"), "UNAVAILABLE"),
    (lambda: errors.SandboxdError("impossible", fix="report it"), "INTERNAL"),
    (lambda: errors.RequestError("nicht möglich: “ü” 𝔘", fix="schreibe „u“"), "INVALID_ARGUMENT"),
)


def test_table_has_every_error() -> None:
    """No class of the tree is missing from the table below."""

    def tree(kind: type[SandboxdError]) -> set[type[SandboxdError]]:
        return {kind}.union(*(tree(child) for child in kind.__subclasses__()))

    assert {type(make()) for make, _ in ERRORS} == {kind for kind in tree(SandboxdError) if kind.__module__ == "sandboxd.errors"}


@pytest.mark.parametrize(("make", "code"), ERRORS, ids=[type(make()).__name__ for make, _ in ERRORS])
async def test_error_arrives_as_itself(house: House, make: Callable[[], SandboxdError], code: str) -> None:
    """The client raises the class that the daemon raised, with message, field, origin, fix and retry delay."""
    await house.start(Role.ADMIN)
    expected = house.failing.error = make()
    error = await house.get()
    assert error.code().name == code
    got = translate(error)
    assert type(got) is type(expected)
    assert str(got) == str(expected)
    for name in ("message", "fix", "field", "origin", "retry_after", "reason"):
        assert getattr(got, name, None) == getattr(expected, name, None)


async def test_long_errors_arrive(house: House) -> None:
    """An error about a huge command is cut, not lost in the limit on metadata."""
    await house.start(Role.ADMIN)
    house.failing.error = errors.RequestError("ü" * 100_000, field="command.text", fix="“" * 100_000)
    got = translate(await house.get())
    assert type(got) is errors.RequestError
    assert len(got.message) <= LONGEST


async def test_unexpected_error_says_nothing_but_its_number(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """What is not ours is INTERNAL with an incident number; the text and the traceback are in the log, under it."""
    await house.start(Role.ADMIN)
    house.failing.error = KeyError("a secret")
    with caplog.at_level(logging.INFO, "sandboxd.api"):
        error = await house.get()
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "a secret" not in (error.details() or "")
    (record,) = caplog.records
    assert record.exc_info is not None
    number = (error.details() or "").rpartition(" ")[2]
    assert number
    assert number in record.getMessage()


@pytest.mark.parametrize("role", Role)
async def test_admin_methods_are_closed_to_agents(house: House, role: Role) -> None:
    """A method of the admin socket answers PERMISSION_DENIED on the agent socket, with the fix."""
    await house.start(role)
    call = house.profiles.Validate(profile_pb2.ProfileServiceValidateRequest())
    if role is Role.ADMIN:
        await call
        return
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    got = translate(caught.value)
    assert type(got) is errors.Forbidden
    assert "admin socket" in got.fix


async def test_stream_error_comes_after_its_replies(house: House) -> None:
    """An error in the middle of a stream arrives as itself, behind what was sent before it."""
    await house.start(Role.ADMIN)
    house.streaming.error = errors.Exhausted("fell behind", retry_after=0.25)
    call = house.decisions.Watch(decision_pb2.DecisionServiceWatchRequest())
    assert isinstance(await call.read(), decision_pb2.DecisionServiceWatchResponse)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    got = translate(caught.value)
    assert isinstance(got, errors.Exhausted)
    assert got.retry_after == 0.25


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
async def test_left_stream_is_closed_at_once(house: House, leave: str) -> None:
    """When the caller goes or its deadline passes, the method's own generator is closed, not left to the collector."""
    await house.start(Role.ADMIN)
    seconds = 0.2 if leave == "deadline" else None
    call = house.decisions.Watch(decision_pb2.DecisionServiceWatchRequest(), timeout=seconds)
    await call.read()
    if leave == "cancel":
        call.cancel()
    async with asyncio.timeout(10):
        await house.streaming.closed.wait()


async def test_no_daemon_is_unavailable(tmp_path: Path) -> None:
    """Nobody listens: Unavailable, with how to start a daemon."""
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/nobody") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await profile_pb2_grpc.ProfileServiceStub(channel).Get(profile_pb2.ProfileServiceGetRequest())
    got = translate(caught.value)
    assert type(got) is errors.Unavailable
    assert "sandboxd serve" in got.fix
