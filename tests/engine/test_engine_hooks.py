# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks and trust in the engine: what a hook may change, what it may not, and whose hooks count."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sandboxd import config as settings
from sandboxd import trust
from sandboxd.model import ApprovalNeeded, Behavior, EndKind, Mode, Request
from sandboxd.sessions import Role, SessionSpec, SessionState
from tests.engine.conftest import House, finish

pytestmark = pytest.mark.needs("bwrap", "userns")


def answer(event: str, **own: object) -> str:
    return f"printf '%s' '{json.dumps({'hookSpecificOutput': {'hookEventName': event, **own}})}'"


def hooked(
    house: House, event: str, command: str, mode: Mode = Mode.DEFAULT, *, headless: bool = True, more: str = ""
) -> SessionState:
    """A session under one hook of the user's."""
    text = f"[[hook]]\nevent = {event!r}\ncommand = '''{command}'''\n{more}\n"
    Path(house.engine.dirs.user_rules).write_text(text)
    return house.session(mode, headless=headless)


async def test_a_hook_denies_what_everything_else_allows(house: House) -> None:
    """Exit 2 of a PreToolUse hook stops a reader, also in bypassPermissions, with its reason."""
    session = hooked(house, "PreToolUse", "echo not today >&2; exit 2", Mode.BYPASS)
    result, _, _ = await house.run("pwd", session)
    assert result.end is EndKind.DENIED
    assert "not today" in result.cause


async def test_a_hook_allows_an_ordinary_write(house: House) -> None:
    """A hook's allow answers step 2c."""
    session = hooked(house, "PreToolUse", answer("PreToolUse", permissionDecision="allow"))
    result, _, _ = await house.run("echo hi > out.txt", session)
    assert result.code == 0
    (row,) = house.engine.record.decisions()
    assert row.decision.step == "2c"


@pytest.mark.parametrize("command", ["echo x >> .git/config", "sudo id", "rm -rf /"])
async def test_a_hook_never_allows_what_is_immune(house: House, command: str) -> None:
    """Killswitch, privilege and catastrophe stand above a hook's allow."""
    (house.workspace / ".git").mkdir()
    session = hooked(house, "PreToolUse", answer("PreToolUse", permissionDecision="allow"))
    assert (await house.run(command, session))[0].end is EndKind.DENIED


async def test_a_rewritten_command_is_judged_anew_and_runs(house: House) -> None:
    """What runs is what the hook wrote, and it is judged as such: a rewrite into a write is denied headless."""
    session = hooked(house, "PreToolUse", answer("PreToolUse", updatedInput={"command": "echo two"}))
    result, text, _ = await house.run("echo one", session)
    assert text == "two\n"
    assert any("rewrote the command to `echo two`" in note for note in result.notes)
    session = hooked(house, "PreToolUse", answer("PreToolUse", updatedInput={"command": "echo x > made"}))
    assert (await house.run("echo one", session))[0].end is EndKind.DENIED
    assert not (house.workspace / "made").exists()


async def test_a_failing_hook_is_reported_and_blocks_only_where_it_says_so(house: House) -> None:
    """No opinion and a note; with on_failure = block a denial."""
    session = hooked(house, "PreToolUse", "exit 1")
    result, _, _ = await house.run("pwd", session)
    assert result.code == 0
    assert any("exit status 1" in note for note in result.notes)
    session = hooked(house, "PreToolUse", "exit 1", more='on_failure = "block"')
    assert (await house.run("pwd", session))[0].end is EndKind.DENIED


async def test_a_permission_request_hook_answers_headless(house: House) -> None:
    """Headless, what would ask goes to the hook; without its answer it is denied."""
    session = hooked(house, "PermissionRequest", answer("PermissionRequest", decision={"behavior": "allow"}))
    assert (await house.run("echo hi > out.txt", session))[0].code == 0
    session = hooked(house, "PermissionRequest", "true")
    assert (await house.run("echo hi > two.txt", session))[0].end is EndKind.DENIED
    session = hooked(house, "PermissionRequest", answer("PermissionRequest", decision={"behavior": "allow"}))
    (house.workspace / ".git").mkdir()
    assert (await house.run("echo hi > .git/config", session))[0].end is EndKind.DENIED


async def test_hook_and_human_race(house: House) -> None:
    """The first eligible answer counts: a hook that denies closes the question; a slow one loses to the human."""
    session = hooked(house, "PermissionRequest", "exit 2", headless=False)
    result, _, _ = await house.run("echo hi > out.txt", session)
    assert result.end is EndKind.DENIED
    assert house.engine.approvals.list() == ()
    session = hooked(house, "PermissionRequest", "exec sleep 60", headless=False)
    execution = await house.engine.start(Request("echo hi > out.txt", session.id), session)
    async for event in execution.events():
        if isinstance(event, ApprovalNeeded):
            house.answer(Behavior.ALLOW)
    assert (await finish(execution))[0].code == 0


async def test_hooks_hear_what_happened(house: House, tmp_path: Path) -> None:
    """PostToolUse after success, PostToolUseFailure after failure and denial, SessionStart and SessionEnd around them."""
    log = tmp_path / "log"
    events = ("PostToolUse", "PostToolUseFailure", "SessionStart", "SessionEnd")
    Path(house.engine.dirs.user_rules).write_text(
        "".join(f"[[hook]]\nevent = '{event}'\ncommand = '(cat; echo) >> {log}'\n" for event in events)
    )
    session = await house.engine.create_session(SessionSpec(workspace=str(house.workspace), headless=True), Role.ADMIN)
    for text in ("pwd", "cat missing", "echo x > made"):
        await house.run(text, session)
    await house.engine.end_session(session)
    heard = [json.loads(line) for line in log.read_text().splitlines() if line]
    assert [one["hook_event_name"] for one in heard] == [
        "SessionStart",
        "PostToolUse",
        "PostToolUseFailure",
        "PostToolUseFailure",
        "SessionEnd",
    ]
    assert heard[1]["tool_input"] == {"command": "pwd"}
    assert heard[3]["tool_response"]["end"] == "denied"


async def test_a_workspace_is_inert_until_a_human_trusts_it(house: House) -> None:
    """Allow rules and hooks of workspace files count only for the bytes that were trusted; what tightens counts at once."""
    folder = house.workspace / ".sandboxd"
    folder.mkdir()
    rules = folder / "settings.toml"
    rules.write_text('[permissions]\nallow = ["Bash(touch made)"]\ndeny = ["Bash(pwd)"]\n')
    engine, session = house.engine, house.session()
    assert (await house.run("touch made", session))[0].end is EndKind.DENIED
    assert (await house.run("pwd", session))[0].end is EndKind.DENIED
    places = settings.rule_places(engine.dirs, session.workspace, claude=True)
    trust.change(engine.dirs, tuple(text for text in settings.read_rules(places) if text.place.workspace), trusted=True)
    assert (await house.run("touch made", session))[0].code == 0
    rules.write_text('[permissions]\nallow = ["Bash(touch:*)"]\n')
    assert (await house.run("touch other", session))[0].end is EndKind.DENIED
    assert (await house.run("pwd", session))[0].code == 0


@pytest.mark.parametrize("below", [False, True])
async def test_a_hook_runs_outside_the_workspace(below: bool, house: House, tmp_path: Path) -> None:
    """Its directory is the home, or `/` where the workspace holds the home: no file of the workspace is found by its name."""
    home = house.workspace / "home" if below else tmp_path / "elsewhere"
    home.mkdir()
    house.engine.consulting._dirs = dataclasses.replace(house.engine.dirs, home=str(home))
    session = hooked(house, "PreToolUse", "pwd >&2; exit 2")
    result, _, _ = await house.run("true", session)
    assert ("hook" in result.cause, result.end) == (True, EndKind.DENIED)
    assert (f": {home}" in result.cause) is not below
    assert (": /;" in result.cause) is below
