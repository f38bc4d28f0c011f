# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules that come with one command: the source `command`, between the session's and those of its making."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.errors import Forbidden, RequestError
from sandboxd.model import Behavior, EndKind, Strategy
from sandboxd.sessions import Role
from sandboxd.v1 import session_pb2
from tests.api.conftest import Wire

pytestmark = pytest.mark.needs("bwrap", "userns")

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY


async def test_they_hold_for_that_command_alone(wire: Wire) -> None:
    """What a command brings is judged with the session's rules, named as its source, and gone with it."""
    async with wire.client() as client:
        session = await client.session(wire.place, headless=True)
        check = await session.check("touch made", allow=["Bash(touch:*)"])
        assert check.decision.behavior is ALLOW
        assert [item.source for item in check.decision.evidence] == ["command"]
        assert (await session.check("touch made")).decision.behavior is DENY
        assert (await session.run("touch made", allow=["Bash(touch:*)"])).ok
        denied = await session.run("pwd", deny=["Bash(pwd)"])
        assert denied.result.end is EndKind.DENIED
        assert "(command, command.deny)" in denied.result.cause
        assert (await session.run("pwd")).ok


async def test_an_agent_only_tightens(wire: Wire) -> None:
    """Over the agent socket no command brings an allow rule, and what it asks replaces no deny, however sources are ordered."""
    engine = wire.house.engine
    engine.reload(
        dataclasses.replace(engine.config, policy=dataclasses.replace(engine.config.policy, strategy=Strategy.SOURCE_ORDER))
    )
    async with wire.client(Role.AGENT) as agent:
        session = await agent.session(wire.place, headless=False, deny=["Bash(rm:*)"])
        for call in (session.check, session.run):
            with pytest.raises(Forbidden) as caught:
                await call("touch made", allow=["Bash(touch:*)"])
            assert caught.value.fix
        assert (await session.check("rm a", ask=["Bash(rm:*)"])).decision.behavior is DENY
        assert (await session.check("pwd", ask=["Bash(pwd)"])).decision.step == "1f"
        assert (await session.check("pwd", deny=["Bash(pwd)"])).decision.step == "1d"


async def test_the_order_of_sources(wire: Wire) -> None:
    """Where sources are ordered, a command's rules stand below those the session was made with and above all others."""
    engine = wire.house.engine
    engine.reload(
        dataclasses.replace(engine.config, policy=dataclasses.replace(engine.config.policy, strategy=Strategy.SOURCE_ORDER))
    )
    async with wire.client() as client:
        Path(engine.dirs.user_rules).write_text('[permissions]\ndeny = ["Bash(touch:*)"]\n')
        session = await client.session(wire.place, deny=["Bash(make:*)"])
        assert (await session.check("touch made", allow=["Bash(touch:*)"])).decision.behavior is ALLOW
        assert (await session.check("make x", allow=["Bash(make:*)"])).decision.behavior is DENY


async def test_a_child_is_not_loosened_by_them(wire: Wire) -> None:
    """A command of a child session brings no more than its parent has."""
    engine = wire.house.engine
    async with wire.client() as client:
        parent = await client.session(wire.place, headless=True)
        state = engine.sessions.get(parent.id, "", Role.ADMIN)
        below = await _child(client, wire, parent.id)
        assert (await below.check("touch made", allow=["Bash(touch:*)"])).decision.behavior is DENY
        assert (await below.check("pwd", deny=["Bash(pwd)"])).decision.behavior is DENY
        assert state.rules.rules == ()


async def _child(client: AsyncClient, wire: Wire, parent: str) -> AsyncSession:
    made = await wire.admin.sessions.Create(session_pb2.SessionServiceCreateRequest(parent_session_id=parent, headless=True))
    return await client.attach_session(made.session.session_id)


@pytest.mark.parametrize("rules", [{"deny": ["Bash(a"]}, {"ask": [""]}, {"deny": ["Bash(a)"] * 101}, {"allow": ["Bash(a:*b)"]}])
async def test_a_wrong_rule_names_its_field(rules: dict[str, Any], wire: Wire) -> None:
    """It is the request that is wrong."""
    async with wire.client() as client:
        session = await client.session(wire.place)
        with pytest.raises(RequestError) as caught:
            await session.check("pwd", **rules)
        assert caught.value.field.startswith("command")
