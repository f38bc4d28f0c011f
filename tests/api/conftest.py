# SPDX-License-Identifier: GPL-3.0-or-later
"""The real engine behind real servers: one Unix socket a role, as the daemon has them, and stubs that call them."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandboxd.api.server import Server, build_server
from sandboxd.client import AsyncClient
from sandboxd.client.failure import translate
from sandboxd.errors import SandboxdError
from sandboxd.sessions import Role
from sandboxd.v1 import (
    admin_pb2_grpc,
    approval_pb2_grpc,
    decision_pb2_grpc,
    execution_pb2_grpc,
    profile_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from tests.engine.conftest import House
from tests.engine.conftest import house as house
from tests.engine.conftest import probes as probes

SECRET = "sandboxd-session-secret"


class Socket:
    """One socket of the daemon: its address, a channel to it, and every service's stub."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        self.executions = execution_pb2_grpc.ExecutionServiceStub(self.channel)
        self.approvals = approval_pb2_grpc.ApprovalServiceStub(self.channel)
        self.profiles = profile_pb2_grpc.ProfileServiceStub(self.channel)
        self.decisions = decision_pb2_grpc.DecisionServiceStub(self.channel)
        self.administration = admin_pb2_grpc.AdminServiceStub(self.channel)

    async def create(self, workspace: Path, **fields: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Open a session; its id, and the metadata that proves whose it is."""
        request = session_pb2.SessionServiceCreateRequest(workspace=str(workspace), **fields)
        answer = await self.sessions.Create(request)
        return answer.session.session_id, ((SECRET, answer.session_secret),)


@dataclasses.dataclass(frozen=True)
class Wire:
    """Both sockets over one engine. `agent` may open sessions anywhere below the workspace's parent."""

    house: House
    agent: Socket
    admin: Socket

    @property
    def place(self) -> str:
        return str(self.house.workspace)

    def client(self, role: Role = Role.ADMIN, **options: Any) -> AsyncClient:
        socket = self.admin if role is Role.ADMIN else self.agent
        return AsyncClient(socket.address, admin=role is Role.ADMIN, **options)


@pytest.fixture
async def wire(house: House) -> AsyncIterator[Wire]:
    engine = house.engine
    engine.sessions.config = dataclasses.replace(
        engine.config, sessions=dataclasses.replace(engine.config.sessions, roots=(str(house.workspace.parent),))
    )
    # Not below tmp_path: the kernel takes at most 107 bytes as the path of a socket.
    with tempfile.TemporaryDirectory(prefix="sbxd-") as directory:
        servers: list[Server] = []
        for role in Role:
            servers.append(build_server(engine, role, f"unix:{directory}/{role.value}"))
            await servers[-1].start()
            servers[-1].set_serving(True)
        agent, admin = (Socket(f"unix:{directory}/{role.value}") for role in (Role.AGENT, Role.ADMIN))
        try:
            yield Wire(house, agent, admin)
        finally:
            await engine.drain()
            for socket in (agent, admin):
                await socket.channel.close()
            for server in servers:
                await server.stop(0.2)


async def refused(call: Any) -> tuple[str, SandboxdError]:
    """The status name and the error of an RPC that must fail before it answers anything."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if isinstance(call, grpc.aio.UnaryStreamCall) else call)
    return caught.value.code().name, translate(caught.value)
