# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks: real shell commands that answer well, badly, late, too much or not at all."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from sandboxd.consult import hooks
from sandboxd.consult.hookdefs import Hook, HookEvent, parse_hooks_claude, parse_hooks_toml
from sandboxd.errors import ConfigError, RuleError
from sandboxd.model import Behavior, Source

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY


def hook(command: str, event: HookEvent = HookEvent.PRE_TOOL_USE, **more: object) -> Hook:
    return Hook(event, command, Source.USER, "f:1", **more)  # type: ignore[arg-type]  # the test's own keywords


async def reply(one: Hook, **payload: object) -> hooks.Reply:
    replies = await hooks.ask((one,), one.event, payload, tool="Bash", workspace="/w", cwd="/")
    (only,) = replies.replies
    return only


def says(**own: object) -> str:
    return f"printf '%s' '{json.dumps({'hookSpecificOutput': {'hookEventName': 'PreToolUse', **own}})}'"


# command, verdict, reason (a part of it), failure (a part of it)
ANSWERS: list[tuple[str, Behavior | None, str, str]] = [
    ("true", None, "", ""),
    ("echo not json", None, "", ""),
    ("echo no >&2; exit 2", DENY, "no", ""),
    ("exit 2", DENY, "exit status 2", ""),
    ("echo broken >&2; exit 1", None, "", "exit status 1: broken"),
    ("kill -9 $$", None, "", "exit status -9"),
    ("exec /nonexistent", None, "", "exit status 127"),
    (says(permissionDecision="allow", permissionDecisionReason="fine"), ALLOW, "fine", ""),
    (says(permissionDecision="deny", permissionDecisionReason="no prod"), DENY, "no prod", ""),
    (says(permissionDecision="ask"), ASK, "", ""),
    (says(permissionDecision="maybe"), None, "", "unknown decision"),
    (says(permissionDecisionReason=7, permissionDecision="allow"), None, "", "must be strings"),
    (says(updatedInput=["x"]), None, "", "updatedInput"),
    ('printf \'%s\' \'{"hookSpecificOutput":{"hookEventName":"PostToolUse"}}\'', None, "", "answers `PostToolUse`"),
    ("printf '%s' '{\"hookSpecificOutput\": 1}'", None, "", "must be an object"),
    ('printf \'%s\' \'{"decision":"block","reason":"old form"}\'', DENY, "old form", ""),
    ("printf '%s' '{\"decision\":\"approve\"}'", ALLOW, "", ""),
    ('printf \'%s\' \'{"continue":false,"stopReason":"enough"}\'', DENY, "enough", ""),
    ("printf '%s' '{\"decision\":'", None, "", "not understood"),
]


@pytest.mark.parametrize(("command", "verdict", "reason", "failure"), ANSWERS)
async def test_answers(command: str, verdict: Behavior | None, reason: str, failure: str) -> None:
    """Each way to answer gives its verdict; what is not understood is a failure, never an allow."""
    got = await reply(hook(command))
    assert got.verdict is verdict
    assert reason in got.reason
    assert failure in got.failure
    assert bool(got.failure) is bool(failure)


@pytest.mark.parametrize("command", ["exit 1", "echo '{'", "exec sleep 60"])
async def test_a_failed_hook_never_allows(command: str) -> None:
    """A failure is no opinion, or a deny where the definition says that it blocks."""
    ignoring = await reply(hook(command, timeout=0.3))
    assert ignoring.opinion is not None
    assert ignoring.opinion.failed
    blocking = await reply(hook(command, timeout=0.3, blocks=True))
    assert blocking.opinion is not None
    assert (blocking.opinion.verdict, blocking.opinion.failed) == (DENY, False)


async def test_it_gets_the_payload_and_a_short_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON on stdin, the named variables, and no other one of the daemon's."""
    monkeypatch.setenv("MY_SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("CHECK_LEVEL", "high")
    script = 'printf "%s|%s|%s|%s|" "$MY_SECRET_TOKEN" "$CHECK_LEVEL" "$CLAUDE_PROJECT_DIR" "$PWD" >&2; cat >&2; exit 2'
    got = await reply(hook(script, env=("CHECK_LEVEL",)), tool_name="Bash", tool_input={"command": "ls"})
    head, _, body = got.reason.rpartition("|")
    assert head == "|high|/w|/"
    assert json.loads(body) == {"tool_name": "Bash", "tool_input": {"command": "ls"}, "hook_event_name": "PreToolUse"}


async def test_a_late_hook_is_killed_with_its_children(tmp_path: Path) -> None:
    """After the time-out nothing of its process group is left: the last holder of the FIFO has gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = asyncio.create_task(asyncio.to_thread(fifo.read_text))
    got = await reply(hook(f"exec 3>{fifo}; trap '' TERM; sleep 60 & sleep 60", timeout=0.5))
    assert "no answer within 0.5 s" in got.failure
    assert await reading == ""


async def test_a_child_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    """A hook that leaves a process with its pipes open counts as ended when it ends itself."""
    got = await reply(hook("sleep 60 & exit 2", timeout=30))
    assert got.verdict is DENY
    assert got.latency < 20


async def test_too_much_output_is_a_failure() -> None:
    """Output beyond the bound is a failure; a flood on stderr is cut."""
    got = await reply(hook("yes 1234567890 | head -c 3000000"))
    assert "bytes of output" in got.failure
    flood = await reply(hook("yes 1234567890 | head -c 3000000 >&2; exit 2"))
    assert flood.verdict is DENY
    assert len(flood.reason) <= hooks.MAX_STDERR


async def test_all_hooks_run_at_once_and_only_the_matching_ones() -> None:
    """Hooks of another event or tool are not run; those that match run together."""
    definitions = (
        hook("exit 2", matcher="Edit|Write"),
        hook("exit 2", event=HookEvent.POST_TOOL_USE),
        hook(says(permissionDecision="allow"), matcher="Bash"),
        hook(says(permissionDecision="ask"), matcher="B.*h"),
    )
    got = await hooks.ask(definitions, HookEvent.PRE_TOOL_USE, {}, tool="Bash", workspace="/w", cwd="/")
    assert [one.verdict for one in got.replies] == [ALLOW, ASK]


async def test_rewrites_agree_or_are_an_error() -> None:
    """One rewrite is taken, two equal ones too, two different ones are an error."""
    one = hook(says(updatedInput={"command": "ls -l"}))
    other = hook(says(updatedInput={"command": "pwd"}))
    agree = await hooks.ask((one, one), HookEvent.PRE_TOOL_USE, {}, tool="Bash", workspace="/w", cwd="/")
    assert agree.rewritten("command")[0] == "ls -l"
    differ = await hooks.ask((one, other), HookEvent.PRE_TOOL_USE, {}, tool="Bash", workspace="/w", cwd="/")
    with pytest.raises(ValueError, match="differently"):
        differ.rewritten("command")
    with pytest.raises(ValueError, match="differently"):
        differ.rewritten_input()
    assert agree.rewritten_input()[0] == {"command": "ls -l"}
    number = hook(says(updatedInput={"command": 1}))
    none = await hooks.ask((number,), HookEvent.PRE_TOOL_USE, {}, tool="Bash", workspace="/w", cwd="/")
    with pytest.raises(ValueError, match="no text"):
        none.rewritten("command")


async def test_a_background_hook_is_not_waited_for(tmp_path: Path) -> None:
    """Its answer does not count; it is ended with the daemon."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got = await hooks.ask(
        (hook(f"echo started > {fifo}; exit 2", background=True),),
        HookEvent.PRE_TOOL_USE,
        {},
        tool="Bash",
        workspace="/w",
        cwd="/",
    )
    assert got.replies == ()
    assert await asyncio.to_thread(fifo.read_text) == "started\n"
    await hooks.end_background()


async def test_cancelling_the_caller_kills_the_hook(tmp_path: Path) -> None:
    """Nobody waits for the answer any more: the process is gone."""
    started, held = tmp_path / "started", tmp_path / "held"
    os.mkfifo(started)
    os.mkfifo(held)
    reading = asyncio.create_task(asyncio.to_thread(held.read_text))
    task = asyncio.create_task(reply(hook(f"exec 3>{held}; echo up > {started}; exec sleep 60")))
    assert await asyncio.to_thread(started.read_text) == "up\n"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await reading == ""


def test_permission_requests_have_their_own_form() -> None:
    """`hookSpecificOutput.decision` answers a PermissionRequest."""
    body = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow", "message": "ok"}}}
    one = hook(f"printf '%s' '{json.dumps(body)}'", event=HookEvent.PERMISSION_REQUEST)
    got = asyncio.run(reply(one))
    assert (got.verdict, got.reason) == (ALLOW, "ok")


WRONG = [
    ("[[hook]]\nevent = 'Nope'\ncommand = 'x'\n", "f:2", "unknown hook event"),
    ("[[hook]]\nevent = 'PreToolUse'\n", "f:1", "needs a `command`"),
    ("[[hook]]\nevent = 'PreToolUse'\ncommand = 'x'\n\ntimeout = 0\n", "f:5", "`timeout`"),
    ("[[hook]]\nevent = 'PreToolUse'\ncommand = 'x'\nmatcher = '('\n", "f:4", "regular expression"),
    ("[[hook]]\nevent = 'PreToolUse'\ncommand = 'x'\non_failure = 'panic'\n", "f:4", "block or ignore"),
    ("[[hook]]\nevent = 'PreToolUse'\ncommand = 'x'\nbackground = 1\n", "f:4", "true or false"),
    ("[[hook]]\nevent = 'PreToolUse'\ncommand = 'x'\nenv = ['A-B']\n", "f:4", "variable names"),
    ("[[hook]]\nevent = 'PreToolUse'\ncommand = 'x'\nshell = true\n", "f:4", "unknown key"),
]


@pytest.mark.parametrize(("text", "where", "what"), WRONG)
def test_a_wrong_definition_names_line_and_fix(text: str, where: str, what: str) -> None:
    """A malformed hook is one error with file:line."""
    with pytest.raises(ConfigError) as caught:
        parse_hooks_toml(text, Source.USER, "f")
    assert str(caught.value).startswith(where)
    assert what in str(caught.value)


def test_defaults_follow_event_and_source() -> None:
    """Session ends wait 1.5 s, others ten minutes; the organisation's hooks block when they fail."""
    text = "[[hook]]\nevent = 'SessionEnd'\ncommand = 'x'\n[[hook]]\nevent = 'PreToolUse'\ncommand = 'y'\n"
    end, pre = parse_hooks_toml(text, Source.USER, "f")
    assert (end.timeout, pre.timeout, pre.blocks) == (1.5, 600.0, False)
    assert all(one.blocks for one in parse_hooks_toml(text, Source.POLICY, "f"))


def test_agents_settings_files_are_read_as_they_are() -> None:
    """The `hooks` block gives the same hooks; what is not known is reported, what is malformed is an error."""
    text = json.dumps(
        {
            "hooks": {
                "PreToolUse": [
                    {"matcher": "Bash", "hooks": [{"type": "command", "command": "x", "timeout": 5}, {"type": "prompt"}]}
                ],
                "Stop": [],
            }
        }
    )
    (only,), ignored = parse_hooks_claude(text, Source.USER, "f")
    assert (only.command, only.timeout, only.matcher, only.event) == ("x", 5.0, "Bash", HookEvent.PRE_TOOL_USE)
    assert len(ignored) == 2
    off, said = parse_hooks_claude(text.replace('{"hooks"', '{"disableAllHooks": true, "hooks"'), Source.USER, "f")
    assert (off, said) == ((), ("f: `disableAllHooks` turns off the hooks of this file, and of no other",))
    on, said = parse_hooks_claude(text.replace('{"hooks"', '{"disableAllHooks": "yes", "hooks"'), Source.USER, "f")
    assert (on, len(said)) == ((only,), 3)
    wrong: tuple[object, ...] = (
        {"PreToolUse": {}},
        {"PreToolUse": [{"hooks": {}}]},
        {"PreToolUse": [{"hooks": [{"type": "command"}]}]},
        [],
    )
    for broken in wrong:
        with pytest.raises(RuleError):
            parse_hooks_claude(json.dumps({"hooks": broken}), Source.USER, "f")
