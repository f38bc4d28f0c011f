# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands that run without a sandbox: only where the configuration permits it at all, and only when a human agrees."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sandboxd.errors import ConfigError, Forbidden
from sandboxd.model import ApprovalNeeded, Behavior, Consultant, Decided, EndKind, Mode, Opinion, Request, Started
from sandboxd.run.execution import Execution
from sandboxd.session import SessionState
from tests.engine.conftest import House, finish
from tests.engine.test_engine_asking import allow, asked
from tests.engine.test_engine_hooks import answer, hooked
from tests.policy.policy_cases import decide

pytestmark = pytest.mark.needs("bwrap", "userns")


def permit(house: House, **policy: object) -> None:
    config = house.engine.config
    policy_settings = dataclasses.replace(config.policy, **policy)  # type: ignore[arg-type]  # the test's own keywords
    house.engine.reload(dataclasses.replace(config, policy=policy_settings))


async def bare(house: House, text: str, session: SessionState) -> tuple[Execution, str]:
    """Start a command that asks to run without a sandbox, and wait for its question."""
    execution = await house.engine.start(Request(text, session.id, unsandboxed=True), session)
    async for event in execution.events():
        if isinstance(event, ApprovalNeeded):
            return execution, event.approval_id
    raise AssertionError("it was not asked")


async def test_it_is_refused_where_the_configuration_says_nothing(house: House) -> None:
    """As shipped nobody may even ask for it."""
    with pytest.raises(Forbidden, match="not permitted") as caught:
        await house.engine.start(Request("ls", "s", unsandboxed=True), house.session(Mode.BYPASS, headless=False))
    assert "policy.allow_unsandboxed" in caught.value.fix


@pytest.mark.parametrize("mode", [Mode.DEFAULT, Mode.BYPASS, Mode.AUTO])
async def test_a_human_agrees_to_it(mode: Mode, house: House, tmp_path: Path) -> None:
    """It asks in every mode, and once agreed to, that one command runs on the host itself, as its result says."""
    permit(house, allow_unsandboxed=True)
    session = house.session(mode, headless=False)
    outside = tmp_path / "outside"
    execution, approval = await bare(house, f"echo x > {outside}", session)
    assert not outside.exists()
    allow(house, approval)
    result, _, events = await finish(execution)
    assert (result.end, result.code) == (EndKind.EXITED, 0), result
    assert outside.read_text() == "x\n"
    (decided,) = (event for event in events if isinstance(event, Decided))
    assert (decided.decision.step, decided.decision.behavior) == ("1e", Behavior.ALLOW)
    (started,) = (event for event in events if isinstance(event, Started))
    assert (started.enforcement.backend, started.enforcement.overall.value) == ("none", "none")
    assert result.enforcement is not None
    result, _, _ = await house.run("pwd", session)
    assert result.enforcement is not None
    assert result.enforcement.backend == "native"


async def test_nobody_else_agrees(house: House) -> None:
    """Neither a headless session, nor allow rules, nor a hook, nor a classifier lets it run."""
    permit(house, allow_unsandboxed=True)
    session = house.session(Mode.BYPASS, allow=("Bash", "Bash(touch made)"))
    execution = await house.engine.start(Request("touch made", session.id, unsandboxed=True), session)
    assert (await finish(execution))[0].end is EndKind.DENIED
    session = hooked(house, "PreToolUse", answer("PreToolUse", permissionDecision="allow"), Mode.BYPASS)
    execution = await house.engine.start(Request("touch made", session.id, unsandboxed=True), session)
    assert (await finish(execution))[0].end is EndKind.DENIED
    said = Opinion(Consultant.CLASSIFIER, Behavior.ALLOW, "")
    assert decide("touch made", unsandboxed="request", mode=Mode.AUTO, opinions=(said,)).behavior is Behavior.ASK
    assert not (house.workspace / "made").exists()


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("touch made", True),
        ("touch made && touch other", True),
        ("timeout 5 touch made", True),
        ("touch made; pwd", False),
        ("touch $(pwd)/made", False),
        ("PATH=. touch made", False),
        ("sudo touch made", False),
        ("bash -c 'touch made'", False),
        ("pwd", False),
    ],
)
async def test_excluded_commands(text: str, asks: bool, house: House) -> None:
    """A line of nothing but excluded commands would run without a sandbox, so it asks; any other runs in one as ever."""
    permit(house, excluded_commands=("touch:*",))
    session = house.session(Mode.BYPASS, headless=False)
    checked = await house.engine.check(Request(text, session.id), session)
    assert (checked.decision.reason == "interaction.unsandboxed") is asks, checked.decision.message


async def test_an_excluded_command_runs_bare_when_agreed_to(house: House, tmp_path: Path) -> None:
    """What was agreed to is that it runs outside."""
    permit(house, excluded_commands=("cp:*",))
    (house.workspace / "a").write_text("x")
    execution, approval = await asked(house, f"cp a {tmp_path}/b", house.session(headless=False))
    allow(house, approval)
    result, _, events = await finish(execution)
    assert result.code == 0
    assert (tmp_path / "b").read_text() == "x"
    assert [event.enforcement.backend for event in events if isinstance(event, Started)] == ["none"]


@pytest.mark.parametrize("text", ["", "*", ":*", "a:*b"])
def test_a_wrong_excluded_command_is_an_error(text: str, house: House) -> None:
    """What would exclude everything, or nothing, is refused, and what was in force stays."""
    with pytest.raises(ConfigError, match=r"policy\.excluded_commands"):
        permit(house, excluded_commands=(text,))
    assert house.engine.catalog.excluded == ()
