# SPDX-License-Identifier: GPL-3.0-or-later
"""What an answer is bound to, what a change of mode does to a question, who is asked for a child session."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd import config as settings
from sandboxd import trust
from sandboxd.config import PolicySettings
from sandboxd.consult.approvals import Change
from sandboxd.errors import Forbidden, NotFound, RequestError
from sandboxd.model import ApprovalNeeded, Behavior, Decided, EndKind, Mode, ModelText, Queued, Request, Started, Strategy
from sandboxd.run.execution import Execution
from sandboxd.sessions import MAX_DEPTH, Role, SessionSpec, SessionState
from tests.engine.conftest import House, finish
from tests.engine.test_engine_hooks import answer, hooked

pytestmark = pytest.mark.needs("bwrap", "userns")


async def asked(house: House, text: str, session: SessionState, count: int = 1) -> tuple[Execution, str]:
    """Start a command and wait for its question (the `count`-th); its execution and the approval's id."""
    execution = await house.engine.start(Request(text, session.id), session)
    return execution, await question(execution, count)


async def question(execution: Execution, count: int = 1) -> str:
    async for event in execution.events():
        if isinstance(event, ApprovalNeeded):
            count -= 1
            if count == 0:
                return event.approval_id
    raise AssertionError("it was not asked")


def allow(house: House, approval: str, who: str = "ada") -> None:
    house.engine.consulting.resolve(approval, Behavior.ALLOW, "once", who)


def script(house: House, name: str, text: str) -> Path:
    path = house.workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("job.sh", "bash job.sh"),
        ("job.sh", "./job.sh"),
        ("deep/job.sh", "cd deep && ./job.sh"),
        ("job.py", "python3 job.py"),
        ("Makefile", "make"),
        ("sub/Makefile", "make -C sub"),
    ],
)
async def test_a_changed_script_is_asked_anew(house: House, name: str, command: str) -> None:
    """What a human agreed to is the content of the file that runs: changed between question and start, it is asked again."""
    text = "all:\n\t@echo {0}\n" if name.endswith("Makefile") else "print('{0}')\n" if name.endswith("py") else "echo {0}\n"
    path = script(house, name, text.format("seen"))
    execution, first = await asked(house, command, house.session(headless=False))
    path.write_text(text.format("swapped"))
    allow(house, first)
    second = await question(execution, 2)
    assert second != first
    allow(house, second)
    result, said, _ = await finish(execution)
    assert (result.code, "swapped" in said) == (0, True)
    assert any("asked again" in note for note in result.notes)


async def test_a_script_that_appears_is_asked_anew(house: House) -> None:
    """A GNUmakefile that appears while a human reads the Makefile is what make would run: it is asked again."""
    script(house, "Makefile", "all:\n\t@echo seen\n")
    execution, first = await asked(house, "make", house.session(headless=False))
    script(house, "GNUmakefile", "all:\n\t@echo other\n")
    allow(house, first)
    second = await question(execution, 2)
    house.engine.consulting.resolve(second, Behavior.DENY, "once", "ada")
    assert (await finish(execution))[0].end is EndKind.DENIED


async def test_an_unchanged_ground_is_not_asked_twice(house: House) -> None:
    """Other files may change and allow rules may come: one answer is enough."""
    script(house, "job.sh", "echo ran\n")
    execution, first = await asked(house, "bash job.sh", house.session(headless=False))
    script(house, "other.sh", "echo other\n")
    Path(house.engine.dirs.user_rules).write_text('[permissions]\nallow = ["Bash(ls)"]\n')
    allow(house, first)
    result, text, events = await finish(execution)
    assert (result.code, text) == (0, "ran\n")
    assert sum(isinstance(event, ApprovalNeeded) for event in events) == 1


async def test_a_new_deny_rule_counts_over_an_answer(house: House) -> None:
    """A rule that comes while a human thinks is obeyed: deny denies, ask asks again."""
    session = house.session(headless=False)
    execution, first = await asked(house, "touch made", session)
    Path(house.engine.dirs.user_rules).write_text('[permissions]\ndeny = ["Bash(touch:*)"]\n')
    allow(house, first)
    assert (await finish(execution))[0].end is EndKind.DENIED
    Path(house.engine.dirs.user_rules).write_text("")
    execution, first = await asked(house, "touch made", session)
    Path(house.engine.dirs.user_rules).write_text('[permissions]\nask = ["Bash(touch:*)"]\n')
    allow(house, first)
    allow(house, await question(execution, 2))
    assert (await finish(execution))[0].code == 0


async def test_several_approvers(house: House) -> None:
    """The first answer counts; the second is refused by name, and every watcher hears of it once."""
    heard: list[list[tuple[Change, str]]] = [[], []]

    async def watch(into: list[tuple[Change, str]]) -> None:
        changes = house.engine.approvals.watch()
        while True:
            change = await anext(changes)
            into.append((change.kind, change.resolution.who if change.resolution else ""))

    watching = [asyncio.create_task(watch(into)) for into in heard]
    execution, approval = await asked(house, "touch made", house.session(headless=False))
    allow(house, approval, "ada")
    with pytest.raises(RequestError, match="allow by ada"):
        house.engine.consulting.resolve(approval, Behavior.DENY, "once", "bob")
    assert (await finish(execution))[0].code == 0
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    assert heard == [[(Change.ADDED, ""), (Change.RESOLVED, "ada")]] * 2
    assert [row.who for row in house.engine.record.approvals()] == ["ada"]


async def test_a_question_outlives_its_reader(house: House) -> None:
    """Whoever reads the events may go and come back: the question is still there, in the events and to be answered."""
    execution, approval = await asked(house, "touch made", house.session(headless=False))
    assert await question(execution) == approval
    assert [pending.id for pending in house.engine.approvals.list()] == [approval]
    allow(house, approval)
    assert (await finish(execution))[0].code == 0


async def test_an_unanswered_question_is_a_deny(house: House) -> None:
    """Nobody answers in time: DENY, recorded without a name, and no rule came of it."""
    config = house.engine.config
    house.engine.sessions.config = type(config)(approvals=type(config.approvals)(expires=0.05))
    result, _, _ = await house.run("touch made", house.session(headless=False))
    assert result.end is EndKind.DENIED
    assert "approval_expired" in result.cause
    (row,) = house.engine.record.approvals()
    assert (row.verdict, row.who) == (Behavior.DENY, "")
    assert not Path(house.engine.dirs.user_rules).exists()


async def test_cancelling_closes_the_question_at_once(house: House) -> None:
    """From the moment of a cancel no answer is taken any more."""
    execution, approval = await asked(house, "touch made", house.session(headless=False))
    house.engine.executions.cancel(execution, "caller_left")
    with pytest.raises((RequestError, NotFound)):
        allow(house, approval)
    assert (await finish(execution))[0].end is EndKind.CANCELLED
    assert [row.reason for row in house.engine.record.approvals()] == ["approval_cancelled: caller_left"]


async def test_a_steering_text_reaches_the_model(house: House) -> None:
    """What denied it and what to do instead, in one line of the result."""
    result, _, _ = await house.run("rm -rf /", house.session(Mode.BYPASS))
    assert result.cause.startswith("blocked because ")
    assert "; instead: " in result.cause
    assert "\n" not in result.cause
    text = await house.engine.executions.model_text(house.engine.executions.list(None)[-1])
    assert text == ModelText(result.cause, whole=True)


# -- the mode changes under a question ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "end"),
    [
        (Mode.DEFAULT, Mode.BYPASS, EndKind.EXITED),
        (Mode.DEFAULT, Mode.ACCEPT_EDITS, EndKind.EXITED),
        (Mode.DEFAULT, Mode.PLAN, EndKind.DENIED),
        (Mode.DEFAULT, Mode.DONT_ASK, EndKind.DENIED),
    ],
)
async def test_a_mode_that_would_not_ask_answers(house: House, before: Mode, after: Mode, end: EndKind) -> None:
    """The new mode's own answer counts at once, and the question is withdrawn."""
    session = house.session(before, headless=False)
    execution, approval = await asked(house, "touch made", session)
    house.engine.sessions.update(session, Role.ADMIN, mode=after)
    assert (await finish(execution))[0].end is end
    with pytest.raises((RequestError, NotFound)):
        allow(house, approval)


async def test_an_answer_that_the_new_mode_would_not_have_asked_for_is_discarded(house: House) -> None:
    """A denial in the same moment as a loosening: the mode decides, not the answer to a question it would not ask."""
    session = house.session(headless=False)
    execution, approval = await asked(house, "touch made", session)
    house.engine.consulting.resolve(approval, Behavior.DENY, "once", "ada")
    house.engine.sessions.update(session, Role.ADMIN, mode=Mode.BYPASS)
    assert (await finish(execution))[0].end is EndKind.EXITED


async def test_a_mode_that_still_asks_keeps_the_question(house: House) -> None:
    """A looser mode that asks all the same leaves the question open, and its answer counts."""
    session = house.session(headless=False)
    (house.workspace / ".git").mkdir()
    execution, approval = await asked(house, "echo x >> .git/config", session)
    house.engine.sessions.update(session, Role.ADMIN, mode=Mode.BYPASS)
    allow(house, approval)
    result, _, events = await finish(execution)
    assert result.code == 0
    assert sum(isinstance(event, ApprovalNeeded) for event in events) == 1


async def test_a_tightened_mode_asks_anew(house: House) -> None:
    """What was asked under a looser mode is judged again under the stricter one."""
    session = house.session(Mode.ACCEPT_EDITS, headless=False)
    script(house, "job.sh", "echo ran\n")
    execution, first = await asked(house, "bash job.sh", session)
    house.engine.sessions.update(session, Role.ADMIN, mode=Mode.DEFAULT)
    second = await question(execution, 2)
    with pytest.raises((RequestError, NotFound)):
        allow(house, first)
    allow(house, second)
    assert (await finish(execution))[0].code == 0


# -- sessions below sessions -------------------------------------------------------------------------------------------


def child(house: House, parent: SessionState, role: Role = Role.ADMIN, **more: object) -> SessionState:
    spec = SessionSpec(parent_id=parent.id, **more)  # type: ignore[arg-type]  # the test's own keywords
    return house.engine.sessions.create(spec, role, parent.secret)


async def test_bubble_asks_the_parents_approvers(house: House) -> None:
    """The question of a child in bubble is the parent's, and the child runs when the parent's approver says so."""
    parent = house.session(headless=False)
    below = child(house, child(house, parent, mode=Mode.BUBBLE), mode=Mode.BUBBLE, headless=True)
    execution, approval = await asked(house, "touch made", below)
    assert [pending.session_id for pending in house.engine.approvals.list(parent.id)] == [parent.id]
    assert house.engine.approvals.list(below.id) == ()
    allow(house, approval)
    assert (await finish(execution))[0].code == 0
    parent.headless = True
    assert (await house.run("touch more", below))[0].end is EndKind.DENIED


async def test_a_child_is_never_looser_than_its_parent(house: House) -> None:
    """Neither at its making nor later, and it follows when the parent is tightened, also while it waits."""
    parent = house.session(Mode.ACCEPT_EDITS, headless=False)
    with pytest.raises(Forbidden):
        child(house, parent, mode=Mode.BYPASS)
    below = child(house, parent, mode=Mode.ACCEPT_EDITS)
    assert (await house.run("touch made", below))[0].code == 0
    with pytest.raises(Forbidden):
        house.engine.sessions.update(below, Role.ADMIN, mode=Mode.BYPASS)
    script(house, "job.sh", "echo ran\n")
    execution, _ = await asked(house, "bash job.sh", below)
    house.engine.sessions.update(parent, Role.ADMIN, mode=Mode.PLAN)
    assert (await finish(execution))[0].end is EndKind.DENIED
    assert below.mode_in_force is Mode.PLAN
    assert (await house.run("touch more", below))[0].end is EndKind.DENIED
    (row, *_) = house.engine.record.decisions()
    assert row.mode == "plan"


async def test_a_child_keeps_its_parents_rules(house: House) -> None:
    """Deny and ask rules of the parent hold below it, with the paths they meant there; allow rules are only narrowed."""
    (house.workspace / "sub").mkdir()
    (house.workspace / "secrets").mkdir()
    (house.workspace / "secrets" / "a").write_text("x")
    parent = house.session(deny=("Bash(touch no:*)", "Read(secrets/**)"), allow=("Bash(touch yes)", "Bash(mkdir:*)"))
    below = child(house, parent, workspace=f"{house.workspace}/sub", deny=("Bash(wc:*)",))
    for text in ("touch no", "cat ../secrets/a", "wc -l x"):
        assert (await house.run(text, below))[0].end is EndKind.DENIED, text
    assert (await house.run("touch yes", below))[0].code == 0
    narrow = child(house, parent, allow=("Bash(touch yes)",))
    assert (await house.run("touch yes", narrow))[0].code == 0
    assert (await house.run("mkdir d", narrow))[0].end is EndKind.DENIED
    with pytest.raises(Forbidden):
        child(house, parent, allow=("Bash(rm:*)",))
    house.engine.sessions.update(parent, Role.ADMIN, mode=Mode.DEFAULT)
    Path(house.engine.dirs.user_rules).write_text('[permissions]\ndeny = ["Bash(touch yes)"]\n')
    assert (await house.run("touch yes", below))[0].end is EndKind.DENIED


async def test_a_childs_own_files_allow_nothing_more(house: House) -> None:
    """An allow rule in a trusted file below is inert unless the parent has it too."""
    sub = house.workspace / "sub"
    folder = sub / ".sandboxd"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text('[permissions]\nallow = ["Bash(touch made)"]\n')
    places = settings.rule_places(house.engine.dirs, str(sub), claude=False)
    trust.change(house.engine.dirs, settings.read_rules(places[:1]), trusted=True)
    alone = house.engine.sessions.create(SessionSpec(workspace=str(sub), headless=True), Role.ADMIN)
    assert (await house.run("touch made", alone))[0].code == 0
    below = child(house, house.session(), workspace=str(sub), headless=True)
    assert (await house.run("touch made", below))[0].end is EndKind.DENIED
    assert [rule.text for rule in below.rules.inert] == ["Bash(touch made)"]


async def test_children_end_with_their_parent_or_outlive_it(house: House) -> None:
    """Sync children and what they run end with the parent; one made to outlive it goes on, with nobody to bubble to."""
    parent = house.session(Mode.BYPASS, headless=False)
    bound = child(house, parent, mode=Mode.BYPASS)
    deeper = child(house, bound, mode=Mode.BYPASS)
    free = child(house, parent, mode=Mode.BUBBLE, outlives=True)
    running = await house.engine.start(Request("sleep 60", deeper.id), deeper)
    waiting, _ = await asked(house, "touch made", free)
    await house.engine.end_session(parent)
    assert running.result is not None
    assert running.result.end is EndKind.CANCELLED
    assert house.engine.sessions.list() == (free,)
    assert (await finish(waiting))[0].end is EndKind.DENIED
    assert (await house.run("touch made", free))[0].end is EndKind.DENIED
    assert (await house.run("pwd", free))[0].code == 0


async def test_places_profile_and_depth_of_a_child(house: House) -> None:
    """A child stays in its parent's places and profile, and the tree has a bound."""
    parent = house.session()
    for wrong in ({"workspace": str(house.workspace.parent)}, {"profile": "network"}, {"additional": ("/usr",)}):
        with pytest.raises(Forbidden):
            child(house, parent, **wrong)
    with pytest.raises(NotFound):
        house.engine.sessions.create(SessionSpec(parent_id=parent.id), Role.AGENT, "wrong")
    for _ in range(MAX_DEPTH - 1):
        parent = child(house, parent)
    with pytest.raises(RequestError):
        child(house, parent)


async def test_an_agent_reaches_its_children_only(house: House) -> None:
    """A session's secret opens what is below it, never what is above or beside it."""
    sessions = house.engine.sessions
    parent, other = house.session(), house.session()
    below = child(house, parent)
    assert sessions.get(below.id, parent.secret, Role.AGENT) is below
    for state, key in ((parent, below.secret), (below, other.secret), (other, parent.secret), (below, below.approval_secret)):
        with pytest.raises(NotFound):
            sessions.get(state.id, key, Role.AGENT)
    assert sessions.family(parent) == (parent, below)


async def test_denials_of_the_classifier_are_counted(house: House) -> None:
    """Three in a row open the breaker; a successful run and a human's answer close it."""
    session = house.session(headless=False)
    for _ in range(3):
        session.denials = session.denials.denied()
    assert session.denials.open
    await house.run("pwd", session)
    assert (session.denials.open, session.denials.total) == (False, 3)
    session.denials = session.denials.denied().denied().denied()
    execution, approval = await asked(house, "touch made", session)
    house.engine.consulting.resolve(approval, Behavior.DENY, "once", "ada")
    await finish(execution)
    assert not session.denials.open


async def test_a_hooks_script_is_guarded(house: House) -> None:
    """The file that a trusted hook runs outside every box is protected like a hook of git's: asked about, and read-only."""
    hook = script(house, "checks/hook.sh", "exit 0\n")
    Path(house.engine.dirs.user_rules).write_text(f"[[hook]]\nevent = 'PreToolUse'\ncommand = 'sh {hook}'\n")
    result, _, _ = await house.run(f"echo 'exit 2' > {hook}", house.session(Mode.BYPASS))
    assert result.end is EndKind.DENIED
    script(house, "sly.py", f"open({str(hook)!r}, 'w').write('exit 2')\n")
    result, _, _ = await house.run("python3 sly.py", house.session(Mode.BYPASS))
    assert result.code != 0
    assert hook.read_text() == "exit 0\n"


async def test_a_permission_request_hook_may_rewrite_once(house: House) -> None:
    """Its allow is for what it wrote, which is judged anew; what is immune stays so."""
    decision = {"behavior": "allow", "updatedInput": {"command": "echo two > made"}}
    session = hooked(house, "PermissionRequest", answer("PermissionRequest", decision=decision))
    assert (await house.run("echo one > made", session))[0].code == 0
    assert (house.workspace / "made").read_text() == "two\n"
    decision = {"behavior": "allow", "updatedInput": {"command": "sudo id"}}
    session = hooked(house, "PermissionRequest", answer("PermissionRequest", decision=decision))
    result, _, events = await house.run("echo one > made", session)
    assert result.end is EndKind.DENIED
    assert all(event.decision.step == "1e" for event in events if isinstance(event, Decided))


# -- who may take whose place ----------------------------------------------------------------------------------------------


async def test_an_agents_own_ask_replaces_no_deny(house: House) -> None:
    """Where sources are ordered, the rules with which an agent opens its session stand first, and only tighten: what the
    user denies stays denied. A human who opens one may say otherwise."""
    config = dataclasses.replace(house.engine.config, policy=PolicySettings(strategy=Strategy.SOURCE_ORDER))
    config = dataclasses.replace(config, sessions=dataclasses.replace(config.sessions, roots=(str(house.workspace),)))
    house.engine.reload(config)
    Path(house.engine.dirs.user_rules).write_text('[permissions]\ndeny = ["Bash(touch:*)"]\n')
    spec = SessionSpec(workspace=str(house.workspace), ask=("Bash(touch:*)",), deny=("Bash(pwd)",))
    theirs = house.engine.sessions.create(spec, Role.AGENT)
    for text in ("touch made", "pwd"):
        checked = await house.engine.check(Request(text, theirs.id), theirs)
        assert (checked.decision.behavior, checked.decision.step) == (Behavior.DENY, "1d"), text
    ours = house.engine.sessions.create(spec, Role.ADMIN)
    checked = await house.engine.check(Request("touch made", ours.id), ours)
    assert (checked.decision.behavior, checked.decision.step) == (Behavior.ASK, "1f")
    below = child(house, ours, ask=("Bash(touch more)",))
    checked = await house.engine.check(Request("touch more", below.id), below)
    assert checked.decision.behavior is Behavior.ASK


async def test_facts_are_taken_anew_when_the_turn_comes_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing was waited for: what changes between the judgement and the turn, by whoever, is seen."""
    key = Path(house.engine.dirs.home) / ".ssh" / "id"
    key.parent.mkdir(mode=0o700)
    key.write_text("hidden words")
    notes = house.workspace / "notes"
    notes.write_text("shown words\n")
    session = house.session()
    for _ in range(3):  # what was quick before is judged at once
        assert (await house.run("cat notes", session))[0].code == 0
    turn = house.engine.processing.turn

    @contextlib.asynccontextmanager
    async def swapped(*words: Any) -> AsyncIterator[None]:
        async with turn(*words):
            notes.unlink()
            notes.symlink_to(key)
            yield

    monkeypatch.setattr(house.engine.processing, "turn", swapped)
    result, said, events = await house.run("cat notes", session)
    assert (result.end, said) == (EndKind.DENIED, ""), result
    (decided,) = (event for event in events if isinstance(event, Decided))
    assert decided.decision.reason == "scope.secret"


async def test_a_name_that_comes_to_mean_a_secret(house: House) -> None:
    """In [`ln -s KEY notes`, `cat notes`] the second was an ordinary read when it was judged; admitted, it is judged by what
    the name means by then."""
    key = Path(house.engine.dirs.home) / ".ssh" / "id"
    key.parent.mkdir(mode=0o700)
    key.write_text("hidden words")
    (house.workspace / "notes").write_text("shown words\n")
    session = house.session(allow=("Bash(cat:*)", "Bash(ln:*)"))
    text = f"cat > /dev/null; ln -sf {key} notes"
    first = await house.engine.start(Request(text, session.id, stdin=True), session)
    async for event in first.events():
        if isinstance(event, Started):
            break
    second = await house.engine.start(Request("cat notes", session.id), session)
    async for event in second.events():
        if isinstance(event, Queued) and event.reason:
            break
    await house.engine.executions.write_stdin(first, 0, b"", eof=True)
    assert (await finish(first))[0].code == 0
    result, said, events = await finish(second)
    assert (result.end, said) == (EndKind.DENIED, ""), result
    (decided,) = (event for event in events if isinstance(event, Decided))
    assert decided.decision.reason == "scope.secret"
