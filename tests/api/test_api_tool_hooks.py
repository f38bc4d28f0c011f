# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks around the use of a tool that a front-end runs: before the decision, in place of a human, after the report."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.errors import NotFound
from sandboxd.model import Behavior, Mode, Tool
from sandboxd.sessions import Role
from tests.api.conftest import Wire

pytestmark = pytest.mark.needs("bwrap", "userns")

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY
LOOKUP = Tool(
    "mcp__wiki__lookup",
    "Looks a word up.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    aliases=("mcp__other__lookup",),
)


def answer(event: str, **own: Any) -> str:
    return f"printf '%s' '{json.dumps({'hookSpecificOutput': {'hookEventName': event, **own}})}'"


def pre(**own: Any) -> str:
    return answer("PreToolUse", **own)


def permission(**decision: Any) -> str:
    return answer("PermissionRequest", decision=decision)


def hook(event: str, matcher: str, command: str, more: str = "") -> str:
    return f"[[hook]]\nevent = '{event}'\nmatcher = '{matcher}'\ncommand = '''{command}'''\n{more}\n"


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[AsyncClient]:
    async with wire.client(Role.AGENT) as client:
        yield client


async def under(wire: Wire, client: AsyncClient, *hooks: str, headless: bool = True) -> AsyncSession:
    """A session of an agent's under these hooks of the user's."""
    Path(wire.house.engine.dirs.user_rules).write_text("".join(hooks))
    session = await client.session(wire.place, headless=headless)
    await session.declare_tools([LOOKUP])
    return session


@pytest.mark.parametrize(
    ("matcher", "tool", "given", "heard"),
    [
        ("Read", "Read", {"file_path": "a"}, True),
        ("Write|Read", "Read", {"file_path": "a"}, True),
        ("", "Read", {"file_path": "a"}, True),
        ("*", "WebSearch", {"query": "a"}, True),
        ("Rea", "Read", {"file_path": "a"}, False),
        ("Bash", "Read", {"file_path": "a"}, False),
        ("mcp__wiki__lookup", "mcp__wiki__lookup", {"word": "a"}, True),
        ("mcp__wiki__*", "mcp__wiki__lookup", {"word": "a"}, True),
        ("mcp__*", "mcp__wiki__lookup", {"word": "a"}, True),
        ("mcp__.*", "mcp__wiki__lookup", {"word": "a"}, True),
        ("Edit|mcp__wiki__*", "mcp__wiki__lookup", {"word": "a"}, True),
        ("mcp__.*__look(up)?", "mcp__wiki__lookup", {"word": "a"}, True),
        ("mcp__wi__*", "mcp__wiki__lookup", {"word": "a"}, False),
        ("mcp__other__*", "mcp__wiki__lookup", {"word": "a"}, True),
        ("mcp__unknown__*", "mcp__unknown__tool", {}, True),
    ],
)
async def test_matchers(matcher: str, tool: str, given: dict[str, Any], heard: bool, wire: Wire, client: AsyncClient) -> None:
    """A hook hears of the tools that its matcher names: exactly, several, all of a server, by a pattern, by an alias."""
    session = await under(wire, client, hook("PreToolUse", matcher, "echo no >&2; exit 2"))
    check = await session.check_tool(tool, given)
    assert (check.decision.reason == "hook.deny") is heard, check.decision.message
    assert not heard or check.steering.startswith("blocked because ")


@pytest.mark.parametrize(
    ("said", "behavior", "step"),
    [
        (pre(permissionDecision="allow"), ALLOW, "2c"),
        (pre(permissionDecision="ask"), DENY, "3"),  # headless
        (pre(permissionDecision="deny", permissionDecisionReason="not today"), DENY, "2c"),
        ("echo no >&2; exit 2", DENY, "2c"),
        ("exit 1", DENY, "3"),
        ("true", DENY, "3"),
    ],
)
async def test_before(said: str, behavior: Behavior, step: str, wire: Wire, client: AsyncClient) -> None:
    """What a PreToolUse hook says of a write counts as for a command; one that fails says nothing, and is reported."""
    session = await under(wire, client, hook("PreToolUse", "Write", said))
    check = await session.check_tool("Write", {"file_path": "a", "content": "x"})
    assert (check.decision.behavior, check.decision.step) == (behavior, step), check.decision.message
    assert bool(check.notes) is ("exit 1" in said)
    assert (check.steering == "") is check.allowed


@pytest.mark.parametrize("path", [".git/config", ".claude/settings.json", "~/.bashrc"])
async def test_no_hook_allows_what_is_immune(path: str, wire: Wire, client: AsyncClient) -> None:
    """The killswitch stands above a hook's allow, before the decision and in place of a human."""
    hooks = (
        hook("PreToolUse", "", pre(permissionDecision="allow")),
        hook("PermissionRequest", "", permission(behavior="allow")),
    )
    session = await under(wire, client, *hooks)
    check = await session.check_tool("Write", {"file_path": path, "content": "x"})
    assert (check.decision.behavior, check.decision.step) == (DENY, "1g")


async def test_a_hook_that_knows_a_tool_by_its_alias_only_tightens(wire: Wire, client: AsyncClient) -> None:
    """The names of a tool are the front-end's choice: by an alias it cannot fetch another tool's allow."""
    session = await under(wire, client, hook("PreToolUse", "mcp__other__lookup", pre(permissionDecision="allow")))
    assert (await session.check_tool("mcp__wiki__lookup", {"word": "a"})).decision.step == "3"
    session = await under(wire, client, hook("PreToolUse", "mcp__wiki__lookup", pre(permissionDecision="allow")))
    assert (await session.check_tool("mcp__other__lookup", {"word": "a"})).decision.step == "2c"


async def test_a_rewritten_input_is_judged_and_handed_back(wire: Wire, client: AsyncClient) -> None:
    """What a hook writes is what is judged, recorded and to be used, and the answer holds it; a use that no hook rewrote
    has none."""
    said = pre(updatedInput={"file_path": "other.txt", "limit": 3}, additionalContext="look here")
    session = await under(wire, client, hook("PreToolUse", "Read", said))
    check = await session.check_tool("Read", {"file_path": "a.txt"})
    assert check.allowed
    assert (check.text, check.updated_input) == ("Read(other.txt)", {"file_path": "other.txt", "limit": 3})
    assert [effect.target for effect in check.analysis.effects] == [f"{wire.place}/other.txt"]
    assert "look here" in check.notes
    assert any("rewrote the input of Read" in note for note in check.notes)
    assert (await session.check_tool("LS", {"path": "."})).updated_input is None
    assert (await session.check_tool("Read", {"file_path": "other.txt", "limit": 3})).updated_input is None


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (pre(updatedInput={"file_path": "~/.ssh/id"}), "which holds secrets"),
        (pre(permissionDecision="allow", updatedInput={}), "what does not fit Read"),
        (pre(permissionDecision="allow", updatedInput={"file_path": 1}), "what does not fit Read"),
        (pre(permissionDecision="allow", updatedInput={"file_path": "a", "more": 1}), "what does not fit Read"),
    ],
)
async def test_a_rewritten_input_gains_nothing(said: str, says: str, wire: Wire, client: AsyncClient) -> None:
    """A rewritten input is checked against the schema and judged like one that came so."""
    session = await under(wire, client, hook("PreToolUse", "Read", said))
    check = await session.check_tool("Read", {"file_path": "a"})
    assert check.decision.behavior is DENY
    assert says in check.decision.message


async def test_hooks_that_rewrite_differently_deny(wire: Wire, client: AsyncClient) -> None:
    """Two hooks that disagree on the input stop it."""
    hooks = [hook("PreToolUse", "Read", pre(updatedInput={"file_path": name})) for name in ("b", "c")]
    check = await (await under(wire, client, *hooks)).check_tool("Read", {"file_path": "a"})
    assert check.decision.behavior is DENY
    assert "rewrite the input differently" in check.decision.message


async def test_a_permission_hook_answers(wire: Wire, client: AsyncClient) -> None:
    """Where it would ask, a PermissionRequest hook may allow or deny; without its word a headless session denies and an
    attended one leaves it to the front-end's human. It is not asked about what needs no answer."""
    log = wire.house.workspace.parent / "asked"
    given = {"file_path": "a", "content": "x"}
    for headless, nothing in ((True, DENY), (False, ASK)):
        allowing = hook("PermissionRequest", "Write", f"echo asked >> {log}; " + permission(behavior="allow"))
        session = await under(wire, client, allowing, headless=headless)
        assert (await session.check_tool("Write", given)).allowed
        assert (await session.check_tool("Read", {"file_path": "a"})).allowed
        assert log.read_text() == "asked\n"
        log.unlink()
        session = await under(wire, client, hook("PermissionRequest", "Write", permission(behavior="deny")), headless=headless)
        assert (await session.check_tool("Write", given)).decision.behavior is DENY
        session = await under(wire, client, hook("PermissionRequest", "Write", "true"), headless=headless)
        assert (await session.check_tool("Write", given)).decision.behavior is nothing
        session = await under(wire, client, hook("PermissionRequest", "Bash", permission(behavior="allow")), headless=headless)
        assert (await session.check_tool("Write", given)).decision.behavior is nothing


async def test_a_permission_hook_may_rewrite_once(wire: Wire, client: AsyncClient) -> None:
    """What it allows instead is judged anew; a second rewrite of the same use does not count."""
    instead = permission(behavior="allow", updatedInput={"file_path": "b", "content": "y"})
    session = await under(wire, client, hook("PermissionRequest", "Write", instead))
    check = await session.check_tool("Write", {"file_path": "a", "content": "x"})
    assert check.allowed
    assert (check.text, check.updated_input) == ("Write(b)", {"file_path": "b", "content": "y"})
    evil = permission(behavior="allow", updatedInput={"file_path": ".git/config", "content": "y"})
    session = await under(wire, client, hook("PermissionRequest", "Write", evil))
    assert (await session.check_tool("Write", {"file_path": "a", "content": "x"})).decision.step == "1g"
    first = hook("PreToolUse", "Write", pre(updatedInput={"file_path": "c", "content": "z"}))
    session = await under(wire, client, first, hook("PermissionRequest", "Write", instead))
    check = await session.check_tool("Write", {"file_path": "a", "content": "x"})
    assert (check.decision.behavior, check.text) == (DENY, "Write(c)")
    assert any("rewrote the input again" in note for note in check.notes)


async def test_after(wire: Wire, client: AsyncClient) -> None:
    """Hooks hear how a use ended: once, with the input that was judged, and of a denial at once."""
    log = wire.house.workspace.parent / "log"
    told = f"(cat; echo) >> {log}"
    hooks = [hook(event, "mcp__.*|Read", told) for event in ("PostToolUse", "PostToolUseFailure")]
    deny = '[permissions]\ndeny = ["Read(b)"]\n'
    session = await under(wire, client, deny, *hooks, hook("PostToolUse", "Read", "echo tidy up >&2; exit 2"))
    read = await session.check_tool("Read", {"file_path": "a"})
    assert await session.report_tool(read.decision_id, {"lines": 3}) == ("tidy up",)
    with pytest.raises(NotFound):
        await session.report_tool(read.decision_id)
    read = await session.check_tool("Read", {"file_path": "a"})
    await session.report_tool(read.decision_id, {"error": "gone"}, failed=True)
    assert not (await session.check_tool("Read", {"file_path": "b"})).allowed
    heard = [json.loads(line) for line in log.read_text().splitlines() if line]
    assert [(one["hook_event_name"], one["tool_name"], one["tool_input"]["file_path"]) for one in heard] == [
        ("PostToolUse", "Read", "a"),
        ("PostToolUseFailure", "Read", "a"),
        ("PostToolUseFailure", "Read", "b"),
    ]
    assert heard[0]["tool_response"] == {"lines": 3}
    assert heard[1]["tool_use_id"] == read.decision_id
    assert heard[2]["tool_response"]["error"].startswith("blocked because ")
    assert heard[2]["permission_mode"] == Mode.DEFAULT.value


async def test_nobody_reports_what_is_not_his(wire: Wire, client: AsyncClient) -> None:
    """A use is reported by its own session, and one that was denied or never judged by none."""
    hooks = (hook("PostToolUse", "", "true"), '[permissions]\ndeny = ["Read(b)"]\n')
    session = await under(wire, client, *reversed(hooks))
    other = await client.session(wire.place, headless=True)
    read = await session.check_tool("Read", {"file_path": "a"})
    denied = await session.check_tool("Read", {"file_path": "b"})
    for who, decision in ((other, read.decision_id), (session, denied.decision_id), (session, "d-0000000000000000")):
        with pytest.raises(NotFound):
            await who.report_tool(decision)
    assert await session.report_tool(read.decision_id) == ()
    Path(wire.house.engine.dirs.user_rules).write_text("")
    plain = await client.session(wire.place, headless=True)
    assert await plain.report_tool((await plain.check_tool("Read", {"file_path": "a"})).decision_id) == ()


async def test_the_time_of_hooks_is_recorded(wire: Wire, client: AsyncClient) -> None:
    """Hooks and judgement are stages of the recorded decision, in their order."""
    hooks = (hook("PreToolUse", "", "true"), hook("PermissionRequest", "", "true"))
    session = await under(wire, client, *hooks)
    check = await session.check_tool("Write", {"file_path": "a", "content": "x"})
    async with wire.client() as human:
        record = await human.decision(check.decision_id)
    assert [item.stage for item in record.timings] == ["hooks", "effects", "facts", "waterfall", "permission hooks"]
    assert all(item.seconds >= 0 for item in record.timings)
    assert record.analysis is not None
    assert [effect.target for effect in record.analysis.effects] == [f"{wire.place}/a"]


async def test_bash_has_its_hooks_when_it_starts(wire: Wire, client: AsyncClient) -> None:
    """The hooks of a command run once, by Start: its check asks none of them."""
    log = wire.house.workspace.parent / "log"
    session = await under(wire, client, hook("PreToolUse", "Bash", f"echo heard >> {log}"))
    assert (await session.check_tool("Bash", {"command": "pwd"})).allowed
    assert not log.exists()
    assert (await session.run("pwd")).ok
    assert log.read_text() == "heard\n"
