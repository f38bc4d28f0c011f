# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine: one request from text to result, and every way that it can end."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from sandboxd import analyze
from sandboxd.errors import Exhausted, Forbidden, NotFound, RequestError, Unavailable
from sandboxd.model import Analysis, ApprovalNeeded, Behavior, Decided, EndKind, Mode, Queued, Request, Started
from sandboxd.policy import waterfall
from sandboxd.run.execution import Execution
from sandboxd.sessions import Role, SessionSpec, SessionState
from tests.engine.conftest import House, finish

pytestmark = pytest.mark.needs("bwrap", "userns")


async def asked(house: House, text: str, session: SessionState) -> tuple[Execution, str]:
    """Start a command and follow it to its question."""
    execution = await house.engine.start(Request(text, session.id), session)
    async for event in execution.events():
        if isinstance(event, ApprovalNeeded):
            return execution, event.approval_id
    raise AssertionError("nothing was asked")


async def test_a_reader_runs_under_the_promise(house: House) -> None:
    """A read is allowed by 2e, runs, and its events come in order, the terminal one last."""
    (house.workspace / "a.txt").write_text("hello\n")
    result, text, events = await house.run("cat a.txt", house.session())
    assert (result.end, result.code, text) == (EndKind.EXITED, 0, "hello\n")
    kinds = [type(event) for event in events]
    assert kinds[0] is Queued
    assert kinds.index(Decided) < kinds.index(Started)
    (decided,) = (event for event in events if isinstance(event, Decided))
    assert (decided.decision.step, decided.decision.promise) == ("2e", True)
    assert result.enforcement is not None
    assert result.enforcement.backend == "native"


async def test_a_writer_is_denied_headless_and_nothing_is_written(house: House) -> None:
    """Headless, an ASK is a DENY with exit status 126; the record has it."""
    result, _, events = await house.run("echo hi > out.txt", house.session())
    assert (result.end, result.code) == (EndKind.DENIED, 126)
    assert not (house.workspace / "out.txt").exists()
    assert not any(isinstance(event, Started) for event in events)
    (row,) = house.engine.record.decisions()
    assert row.decision.behavior is Behavior.DENY


@pytest.mark.parametrize(
    ("mode", "written"), [(Mode.ACCEPT_EDITS, True), (Mode.BYPASS, True), (Mode.PLAN, False), (Mode.DONT_ASK, False)]
)
async def test_modes(house: House, mode: Mode, written: bool) -> None:
    """acceptEdits and bypassPermissions write, plan and dontAsk do not."""
    await house.run("echo hi > out.txt", house.session(mode))
    assert (house.workspace / "out.txt").exists() is written


async def test_a_human_allows_once(house: House) -> None:
    """An approval lets this command run, and the next one is asked about again."""
    session = house.session(headless=False)
    execution, approval = await asked(house, "echo hi > out.txt", session)
    assert house.answer(Behavior.ALLOW) == approval
    result, _, _ = await finish(execution)
    assert result.code == 0
    assert (house.workspace / "out.txt").read_text() == "hi\n"
    second, _ = await asked(house, "echo hi > out.txt", session)
    house.answer(Behavior.DENY)
    result, _, _ = await finish(second)
    assert result.end is EndKind.DENIED


async def test_an_answer_is_applied_once(house: House) -> None:
    """A second answer to the same question is refused, and an unknown one is not found."""
    execution, approval = await asked(house, "echo hi > out.txt", house.session(headless=False))
    house.answer(Behavior.DENY)
    with pytest.raises(RequestError):
        house.engine.consulting.resolve(approval, Behavior.ALLOW, "once", "tester")
    with pytest.raises(NotFound):
        house.engine.consulting.resolve("a-none", Behavior.ALLOW, "once", "tester")
    result, _, _ = await finish(execution)
    assert result.end is EndKind.DENIED
    assert not (house.workspace / "out.txt").exists()


async def test_session_and_always_rules_are_narrow_and_hold(house: House) -> None:
    """`session` and `always` take only a suggested rule; with it the same command is not asked about again."""
    session = house.session(headless=False)
    execution, approval = await asked(house, "touch made.txt", session)
    with pytest.raises(Forbidden):
        house.engine.consulting.resolve(approval, Behavior.ALLOW, "always", "tester", "Bash(*)")
    pending = house.engine.approvals.get(approval)
    rule = pending.decision.suggestions[0]
    house.answer(Behavior.ALLOW, "session", rule)
    assert (await finish(execution))[0].code == 0
    result, _, _ = await house.run("touch made.txt", session)
    assert result.code == 0
    other = house.session(headless=True)
    assert (await house.run("touch made.txt", other))[0].end is EndKind.DENIED
    execution, _ = await asked(house, "touch other.txt", session)
    rule = house.engine.approvals.list()[0].decision.suggestions[0]
    house.answer(Behavior.ALLOW, "always", rule)
    assert (await finish(execution))[0].code == 0
    assert (await house.run("touch other.txt", other))[0].code == 0
    assert rule in Path(house.engine.dirs.user_rules).read_text()


async def test_what_was_agreed_to_is_what_runs(house: House) -> None:
    """When the file that a human agreed to write becomes a protected one meanwhile, they are asked again."""
    (house.workspace / ".claude").mkdir()
    (house.workspace / ".claude" / "settings.json").write_text("{}")
    session = house.session(headless=False)
    execution, first = await asked(house, "echo x > notes", session)
    (house.workspace / "notes").symlink_to(".claude/settings.json")
    house.answer(Behavior.ALLOW)
    async for event in execution.events():
        if isinstance(event, ApprovalNeeded) and event.approval_id != first:
            assert event.decision.protected
            break
    house.answer(Behavior.DENY)
    result, _, _ = await finish(execution)
    assert result.end is EndKind.DENIED
    assert (house.workspace / ".claude" / "settings.json").read_text() == "{}"


async def test_start_is_idempotent_by_request_id(house: House) -> None:
    """The same request_id gives the same execution; with another command it is an error."""
    session = house.session()
    first = await house.engine.start(Request("pwd", session.id, request_id="r1"), session)
    again = await house.engine.start(Request("pwd", session.id, request_id="r1"), session)
    assert first is again
    with pytest.raises(RequestError):
        await house.engine.start(Request("ls", session.id, request_id="r1"), session)
    await finish(first)


async def test_the_directory_follows_a_command_that_ran_alone(house: House) -> None:
    """`cd` persists; a failed one does not; a removed directory falls back to the workspace and says so."""
    (house.workspace / "sub" / "deep").mkdir(parents=True)
    session = house.session(Mode.ACCEPT_EDITS)
    assert (await house.run("cd sub && cd deep", session))[0].cwd == f"{house.workspace}/sub/deep"
    assert (await house.run("pwd", session))[1] == f"{house.workspace}/sub/deep\n"
    assert (await house.run("cd nowhere", session))[0].cwd == f"{house.workspace}/sub/deep"
    (house.workspace / "sub" / "deep").rmdir()
    result, text, _ = await house.run("pwd", session)
    assert text == f"{house.workspace}\n"
    assert any("no longer exists" in note for note in result.notes)


async def test_the_reported_directory_is_not_believed_out_of_scope(house: House) -> None:
    """A command cannot move its session out of the workspace."""
    session = house.session(Mode.BYPASS)
    result, _, _ = await house.run("cd /usr", session)
    assert result.cwd == str(house.workspace)
    assert any("outside the workspace" in note for note in result.notes)


async def test_a_directory_that_became_a_link_is_not_believed(house: House) -> None:
    """The command that ended there may have put a link in its place, or removed it: the session stays where it was."""
    session = house.session(Mode.BYPASS)
    result, _, _ = await house.run("mkdir a && cd a && rmdir ../a && ln -s /usr ../a", session)
    assert result.cwd == str(house.workspace)
    result, _, _ = await house.run("mkdir e && cd e && rmdir ../e", session)
    assert result.cwd == str(house.workspace)


async def test_cancel_ends_a_command_wherever_it_is(house: House) -> None:
    """Cancelled while it waits for a human, and while it runs: the terminal event says so, the question is gone."""
    execution, _ = await asked(house, "echo hi > out.txt", house.session(headless=False))
    house.engine.executions.cancel(execution, "client_gone")
    result, _, _ = await finish(execution)
    assert (result.end, result.cause) == (EndKind.CANCELLED, "client_gone")
    assert house.engine.approvals.list() == ()
    session = house.session(Mode.BYPASS)
    running = await house.engine.start(Request("echo up; sleep 60", session.id), session)
    async for event in running.events():
        if isinstance(event, Started):
            house.engine.executions.cancel(running, "client")
    assert running.result is not None
    assert running.result.end is EndKind.CANCELLED


async def test_timeout_keeps_the_output(house: House) -> None:
    """124, with all output so far."""
    result, text, _ = await house.run("echo before; sleep 60", house.session(Mode.BYPASS), timeout=1.0)
    assert (result.end, result.code, text) == (EndKind.TIMED_OUT, 124, "before\n")


@pytest.mark.parametrize(
    ("text", "more"),
    [("a\0b", {}), ("x" * 200_000, {}), ("ls", {"timeout": -1.0}), ("ls", {"unsandboxed": True}), ("\ud800", {})],
)
async def test_invalid_requests_are_errors(house: House, text: str, more: dict[str, object]) -> None:
    """What is no valid request is an error that names its field, never a decision."""
    session = house.session()
    with pytest.raises(RequestError) as caught:
        await house.engine.start(Request(text, session.id, **more), session)  # type: ignore[arg-type]  # the test's own keywords
    assert caught.value.field.startswith("command.")
    assert house.engine.record.decisions() == ()


async def test_a_missing_directory_is_an_error(house: House) -> None:
    """A request for a directory that is not there fails and names the field's value."""
    session = house.session()
    result, _, _ = await house.run("ls", session, cwd="/nonexistent")
    assert (result.end, result.code) == (EndKind.FAILED, 125)
    assert "does not exist" in result.cause


async def test_bounds_and_draining(house: House) -> None:
    """Too many executions are RESOURCE_EXHAUSTED, a draining engine is UNAVAILABLE."""
    session = house.session()
    house.engine.sessions.config = type(house.engine.config)(run=type(house.engine.config.run)(max_executions=1))
    first = await house.engine.start(Request("pwd", session.id), session)
    with pytest.raises(Exhausted):
        await house.engine.start(Request("pwd", session.id), session)
    await finish(first)
    await house.engine.drain()
    with pytest.raises(Unavailable):
        await house.engine.start(Request("pwd", session.id), session)


async def test_ending_a_session_ends_its_commands(house: House) -> None:
    """Deleting a session cancels what it runs and removes its temporary directory."""
    session = house.session(Mode.BYPASS)
    running = await house.engine.start(Request("sleep 60", session.id), session)
    async for event in running.events():
        if isinstance(event, Started):
            break
    await house.engine.end_session(session)
    assert running.result is not None
    assert running.result.end is EndKind.CANCELLED
    assert not Path(session.isolation.tmp).exists()
    assert house.engine.sessions.list() == ()


async def test_decisions_are_watched(house: House) -> None:
    """A watcher sees each decision as it is made."""
    seen = []

    async def watch() -> None:
        async for row in house.engine.decisions.watch():
            seen.append(row.text)
            return

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await house.run("pwd", house.session())
    await task
    assert seen == ["pwd"]


async def test_agents_create_only_what_they_may(house: House) -> None:
    """The agent socket gets no looser mode, no allow rule, no foreign workspace, no unlisted environment name."""
    engine = house.engine
    engine.sessions.config = type(engine.config)(sessions=type(engine.config.sessions)(roots=(str(house.workspace.parent),)))
    good = SessionSpec(workspace=str(house.workspace))
    session = engine.sessions.create(good, Role.AGENT)
    for wrong in (
        SessionSpec(workspace=str(house.workspace), mode=Mode.BYPASS),
        SessionSpec(workspace=str(house.workspace), allow=("Bash(ls)",)),
        SessionSpec(workspace=str(house.workspace), env=(("LD_PRELOAD", "x"),)),
        SessionSpec(workspace="/usr"),
    ):
        with pytest.raises(Forbidden):
            engine.sessions.create(wrong, Role.AGENT)
    with pytest.raises(NotFound):
        engine.sessions.get(session.id, "wrong", Role.AGENT)
    assert engine.sessions.get(session.id, session.secret, Role.AGENT) is session
    with pytest.raises(Forbidden):
        engine.sessions.update(session, Role.AGENT, mode=Mode.ACCEPT_EDITS)
    engine.sessions.update(session, Role.ADMIN, mode=Mode.ACCEPT_EDITS)
    assert session.mode is Mode.ACCEPT_EDITS


async def test_a_malformed_rule_file_keeps_the_last_good_rules(house: House) -> None:
    """A broken project file is a clear error for a new session, and leaves a running one with its last good rules."""
    folder = house.workspace / ".sandboxd"
    folder.mkdir()
    settings = folder / "settings.toml"
    settings.write_text('[permissions]\ndeny = ["Bash(pwd)"]\n')
    session = house.session()
    assert (await house.run("pwd", session))[0].end is EndKind.DENIED
    settings.write_text('[permissions]\ndeny = ["Bash(pwd"]\n')
    assert (await house.run("pwd", session))[0].end is EndKind.DENIED
    assert any("settings.toml:2" in error for error in house.engine.status().errors)
    with pytest.raises(Exception, match=r"settings\.toml:2"):
        house.session()


async def test_settings_choose_the_mode_and_may_switch_bypass_off(house: House) -> None:
    """A session without a mode takes the user's default; a file that forbids bypassPermissions is obeyed, also later."""
    engine = house.engine
    Path(engine.dirs.user_rules).write_text('[permissions]\ndefault_mode = "plan"\n')
    assert engine.sessions.create(SessionSpec(workspace=str(house.workspace)), Role.ADMIN).mode is Mode.PLAN
    bypass = house.session(Mode.BYPASS)
    folder = house.workspace / ".claude"
    folder.mkdir()
    (folder / "settings.json").write_text('{"permissions": {"disableBypassPermissionsMode": "disable"}}')
    with pytest.raises(Forbidden):
        house.session(Mode.BYPASS)
    assert (await house.run("touch x", bypass))[0].end is EndKind.DENIED
    with pytest.raises(Forbidden):
        engine.sessions.update(bypass, Role.ADMIN, mode=Mode.BYPASS)


async def test_without_a_sandbox_the_question_says_so(house: House) -> None:
    """Where a named profile really runs bare, the result says it, and what only a sandbox makes harmless is denied."""
    engine = house.engine
    folder = Path(engine.dirs.config) / "profiles"
    folder.mkdir()
    (folder / "bare.toml").write_text('[isolation]\nrequire = "none"\nfallback = ["none"]\n')
    engine.reload(engine.config)
    session = house.session(profile="bare")
    result, _, _ = await house.run("pwd", session)
    assert result.enforcement is not None
    assert result.enforcement.backend == "native"
    engine.set_probes(tuple(probe for probe in engine.catalog.probes if probe.backend == "none"))
    result, text, _ = await house.run("pwd", session)
    assert result.enforcement is not None
    assert (result.enforcement.backend, text) == ("none", f"{house.workspace}\n")
    assert (await house.run('cat "$HIDDEN"', session))[0].end is EndKind.DENIED
    row = house.engine.record.decisions()[0]
    assert row.decision.reason == "scope.read_unresolved"
    default = house.session()
    assert (await house.run("pwd", default))[0].end is EndKind.FAILED


async def test_commands_run_in_the_order_in_which_they_came(house: House) -> None:
    """One that takes long to judge is not overtaken by a later one of its session, whatever thread judges it."""
    session = house.session(Mode.ACCEPT_EDITS)
    await house.run("echo begin >> log.txt", session)
    slow = "echo slow >> log.txt; : " + " ".join(f"word{number}" for number in range(3000))
    started = [await house.engine.start(Request(text, session.id), session) for text in (slow, "echo quick >> log.txt")]
    for execution in started:
        await finish(execution)
    assert (house.workspace / "log.txt").read_text().split() == ["begin", "slow", "quick"]


async def test_a_question_holds_up_nobody(house: House) -> None:
    """A command that waits for a human gives up its place: later ones run meanwhile."""
    session = house.session(headless=False)
    execution, _ = await asked(house, "touch made", session)
    result, _, _ = await house.run("echo hi", session)
    assert (result.end, result.code) == (EndKind.EXITED, 0)
    house.engine.executions.cancel(execution, "test")
    await finish(execution)


async def test_a_finished_execution_keeps_no_analysis(house: House) -> None:
    """What is known of a text can be megabytes: beside what is remembered of texts, nothing holds it when its command has
    ended, though the execution can still be asked for."""
    session = house.session(Mode.BYPASS)
    text = "; ".join(f"echo {number}" for number in range(200))
    await house.run(text, session)
    for memory in (analyze._DONE, analyze._READ_TEXTS, waterfall._ANSWERED):
        memory.clear()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Analysis) and each.text == text]
    (execution,) = house.engine.executions.list(session)
    assert execution.result is not None
