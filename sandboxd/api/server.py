# SPDX-License-Identifier: GPL-3.0-or-later
"""One gRPC server: every service, health, reflection and the guard, for one role on one address."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sandboxd.api.access import Access
from sandboxd.api.executions import Executions
from sandboxd.api.interceptors import Guard
from sandboxd.api.services import Admin, Approvals, Decisions, Profiles, Sessions, Tools
from sandboxd.engine import Engine
from sandboxd.sessions import Role
from sandboxd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    approval_pb2,
    approval_pb2_grpc,
    decision_pb2,
    decision_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)

STOP_GRACE = 1.0  # seconds that open calls get once the engine has drained

_SERVICES = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in (
        (session_pb2, "SessionService"),
        (execution_pb2, "ExecutionService"),
        (approval_pb2, "ApprovalService"),
        (profile_pb2, "ProfileService"),
        (decision_pb2, "DecisionService"),
        (admin_pb2, "AdminService"),
        (tool_pb2, "ToolService"),
    )
)
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Server:
    """A built server. Start it, say when it serves, and always stop it: an unstopped grpc.aio server hangs the exit."""

    def __init__(self, server: grpc.aio.Server, health_servicer: health.aio.HealthServicer, address: str) -> None:
        self.address = address
        self._server = server
        self._health = health_servicer
        self._setting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind the address and take calls. Health says NOT_SERVING until told otherwise. Raises RuntimeError."""
        await self._set_health(False)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    def set_serving(self, serving: bool) -> None:
        """What the health service answers from now on, for the whole server and for each service."""
        task = asyncio.get_running_loop().create_task(self._set_health(serving))
        self._setting.add(task)
        task.add_done_callback(self._setting.discard)

    async def stop(self, grace: float = STOP_GRACE) -> None:
        """Refuse new calls, give open ones `grace` seconds, then end them."""
        await asyncio.gather(*self._setting)
        await self._server.stop(grace)

    async def _set_health(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *_SERVICES):
            await self._health.set(service, status)


def build_server(engine: Engine, role: Role, address: str) -> Server:
    """A server for one role, not started yet. `address` as gRPC writes it: `unix:/run/…/agent.sock`.

    To add a service: add its servicer to the calls below and its name to `_SERVICES`.
    """
    server = grpc.aio.server(interceptors=[Guard(role)])
    access = Access(engine, role)
    session_pb2_grpc.add_SessionServiceServicer_to_server(Sessions(access), server)
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(Executions(access), server)
    approval_pb2_grpc.add_ApprovalServiceServicer_to_server(Approvals(access), server)
    profile_pb2_grpc.add_ProfileServiceServicer_to_server(Profiles(access), server)
    decision_pb2_grpc.add_DecisionServiceServicer_to_server(Decisions(access), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Admin(access), server)
    tool_pb2_grpc.add_ToolServiceServicer_to_server(Tools(access), server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*_SERVICES, _HEALTH, reflection.SERVICE_NAME), server)
    return Server(server, servicer, address)
