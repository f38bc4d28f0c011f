# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools over the real sockets: judged, declared, described and found, for the session whose secret comes along."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.errors import Forbidden, NotFound, RequestError
from sandboxd.model import Behavior, Tool
from sandboxd.sessions import Role
from sandboxd.v1 import admin_pb2, admin_pb2_grpc, execution_pb2, session_pb2, tool_pb2, tool_pb2_grpc
from tests.api.conftest import Wire, refused

pytestmark = pytest.mark.needs("bwrap", "userns")

LOOKUP = Tool(
    "mcp__wiki__lookup",
    "Looks a word up.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    aliases=("Lookup",),
    read_only=True,
    concurrency_safe=True,
    classifier_input=("word",),
    cancels=True,
    max_result_chars=1000,
    search_hint="dictionary",
)
DEPLOY = Tool("Deploy", "Puts it online.", {"type": "object"}, destructive=True, deferred=True)


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[AsyncClient]:
    async with wire.client(Role.AGENT) as client:
        yield client


@pytest.fixture
async def session(wire: Wire, client: AsyncClient) -> AsyncSession:
    return await client.session(wire.place, headless=False, deny=["Edit(private/**)", "WebSearch"])


async def test_uses_are_judged_and_recorded(wire: Wire, session: AsyncSession) -> None:
    """The answer says what is decided, why and what it does; it is recorded as a decision of no execution."""
    check = await session.check_tool("Write", {"file_path": "private/x", "content": "secret words"})
    assert (check.decision.behavior, check.decision.step) == (Behavior.DENY, "1d")
    assert not check.allowed
    assert (check.text, check.analysis.destructive) == ("Write(private/x)", True)
    assert [effect.target for effect in check.analysis.effects] == [f"{wire.place}/private/x"]
    async with wire.client() as human:
        record = await human.decision(check.decision_id)
        assert (record.execution_id, record.session_id, record.text) == ("", session.id, "Write(private/x)")
        assert record.decision == check.decision
        checked = await session.check("rm -r build")
        assert (await human.decision(checked.decision_id)).text == "rm -r build"
    assert (await session.check_tool("Read", {"file_path": "x"})).allowed
    assert not (wire.house.workspace / "private").exists()


async def test_the_tool_bash_is_a_command(session: AsyncSession) -> None:
    """Bash goes the way of CheckCommand; what a command may not ask for, its tool may not either."""
    check = await session.check_tool("Bash", {"command": "ls | head", "timeout": 5000, "description": "lists"})
    assert (check.decision.step, check.text) == ("2e", "ls | head")
    assert check.decision.promise
    assert check.steering == ""
    check = await session.check_tool("Bash", {"command": "mv a b"})
    assert check.decision.behavior is Behavior.ASK
    assert check.steering.startswith("a person must agree because `mv a b`")
    assert check.steering == (await session.check("mv a b")).steering
    with pytest.raises(Forbidden):
        await session.check_tool("Bash", {"command": "ls", "dangerouslyDisableSandbox": True})


async def test_a_search_is_told_what_to_leave_out(wire: Wire, client: AsyncClient) -> None:
    """Who goes through directories learns which paths are kept from it."""
    session = await client.session(wire.place, deny=["Read(private/**)"])
    check = await session.check_tool("Grep", {"pattern": "x"})
    assert check.allowed
    assert f"{wire.place}/private/**" in check.exclude


@pytest.mark.parametrize(
    ("tool", "given", "field"),
    [
        ("", {}, "tool"),
        ("Read", {}, "input.file_path"),
        ("Read", {"file_path": ["a"]}, "input.file_path"),
        ("mcp__wiki__lookup", {}, "input.word"),
    ],
)
async def test_invalid_uses_name_their_field(tool: str, given: dict[str, Any], field: str, session: AsyncSession) -> None:
    """What does not fit the schema is an error that names the property."""
    await session.declare_tools([LOOKUP])
    with pytest.raises(RequestError) as caught:
        await session.check_tool(tool, given)
    assert caught.value.field == field


async def test_numbers_that_are_none(wire: Wire) -> None:
    """A number that JSON does not have is refused on the wire."""
    session, proof = await wire.agent.create(wire.house.workspace)
    given = Struct()
    given.fields["n"].number_value = float("nan")
    request = execution_pb2.ExecutionServiceCheckToolUseRequest(session_id=session, tool="mcp__a__b", input=given)
    code, error = await refused(wire.agent.executions.CheckToolUse(request, metadata=proof))
    assert (code, getattr(error, "field", "")) == ("INVALID_ARGUMENT", "input")


async def test_declared_tools(session: AsyncSession) -> None:
    """A front-end's own tools are judged as declared, described and found, until it takes them back."""
    assert (await session.check_tool("Lookup", {"word": "a"})).decision.step == "3"
    assert await session.declare_tools([LOOKUP, DEPLOY]) == ("Deploy", "mcp__wiki__lookup")
    check = await session.check_tool("Lookup", {"word": "a"})
    assert (check.decision.step, check.analysis.concurrency_safe, check.text) == ("2e", True, 'mcp__wiki__lookup({"word": "a"})')
    described = await session.describe_tools()
    names = [tool.name for tool in described.tools]
    assert names == [*sorted(set(names) - {LOOKUP.name}), LOOKUP.name]
    assert "WebSearch" not in names
    assert "Deploy" not in names
    assert described.tools[-1] == LOOKUP
    assert [item["name"] for item in json.loads(described.json)] == names
    assert (await session.describe_tools()).json == described.json
    every = await session.describe_tools("openai", deferred=True)
    assert {item["function"]["name"] for item in json.loads(every.json)} == {*names, "Deploy"}
    found = await session.search_tools("online")
    assert found.tools == (DEPLOY,)
    assert json.loads(found.json)[0]["name"] == "Deploy"
    assert (await session.search_tools("dictionary")).tools == ()  # it is described already
    assert await session.declare_tools(remove=["Deploy", "never"]) == ("mcp__wiki__lookup",)
    assert (await session.search_tools("online")).tools == ()


async def test_a_refused_declaration_changes_nothing(session: AsyncSession) -> None:
    """Declaring is all or nothing, and nobody replaces a tool that is understood here."""
    with pytest.raises(RequestError, match="knows itself"):
        await session.declare_tools([LOOKUP, Tool("Bash", schema={"type": "object"}, read_only=True)])
    with pytest.raises(RequestError, match="not understood"):
        await session.declare_tools([Tool("Mine", schema={"type": "object", "properties": {"a": {"pattern": "x"}}})])
    assert await session.declare_tools() == ()


async def test_a_child_has_its_parents_tools(wire: Wire, session: AsyncSession) -> None:
    """A child session knows the tools of the one above it, and declares none."""
    await session.declare_tools([LOOKUP])
    proof = (("sandboxd-session-secret", session.secret),)
    request = session_pb2.SessionServiceCreateRequest(parent_session_id=session.id)
    made = await wire.agent.sessions.Create(request, metadata=proof)
    check = execution_pb2.ExecutionServiceCheckToolUseRequest(session_id=made.session.session_id, tool="Lookup")
    check.input.update({"word": "a"})
    answer = await wire.agent.executions.CheckToolUse(check, metadata=proof)
    assert answer.decision.step == "2e"
    tools = tool_pb2_grpc.ToolServiceStub(wire.agent.channel)
    register = tool_pb2.ToolServiceRegisterRequest(session_id=made.session.session_id, remove=[LOOKUP.name])
    assert (await refused(tools.Register(register, metadata=proof)))[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize("method", ["Register", "Search", "Report", "DescribeTools", "CheckToolUse"])
async def test_another_session_stays_closed(method: str, wire: Wire, session: AsyncSession) -> None:
    """Without the session's secret there is no such session."""
    tools = tool_pb2_grpc.ToolServiceStub(wire.agent.channel)
    administration = admin_pb2_grpc.AdminServiceStub(wire.agent.channel)
    calls: dict[str, Callable[[], Any]] = {
        "Register": lambda: tools.Register(tool_pb2.ToolServiceRegisterRequest(session_id=session.id)),
        "Report": lambda: tools.Report(tool_pb2.ToolServiceReportRequest(session_id=session.id, decision_id="d-0")),
        "Search": lambda: tools.Search(tool_pb2.ToolServiceSearchRequest(session_id=session.id, query="x")),
        "DescribeTools": lambda: administration.DescribeTools(admin_pb2.AdminServiceDescribeToolsRequest(session_id=session.id)),
        "CheckToolUse": lambda: wire.agent.executions.CheckToolUse(
            execution_pb2.ExecutionServiceCheckToolUseRequest(session_id=session.id, tool="Read")
        ),
    }
    code, error = await refused(calls[method]())
    assert code == "NOT_FOUND"
    assert isinstance(error, NotFound)


@pytest.mark.parametrize(("profile", "allowed"), [("", True), ("read-only", True), ("ci", True), ("network", False)])
async def test_profiles_of_the_agent_socket(profile: str, allowed: bool, wire: Wire) -> None:
    """An agent names only profiles of `sessions.profiles`; the one with network needs the admin socket."""
    request = session_pb2.SessionServiceCreateRequest(workspace=wire.place, profile=profile)
    if allowed:
        await wire.agent.sessions.Create(request)
    else:
        code, error = await refused(wire.agent.sessions.Create(request))
        assert (code, getattr(error, "field", "")) == ("PERMISSION_DENIED", "profile")
        await wire.admin.sessions.Create(request)
