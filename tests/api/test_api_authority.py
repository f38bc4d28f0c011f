# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent socket refuses: an agent cannot give itself rules, modes, places, other sessions or answers.

To add an attempt: a row of ATTEMPTS. It gets the agent socket, its own session with the metadata that proves it, and what
belongs to somebody else.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxd.sessions import Role, SessionState
from sandboxd.v1 import (
    admin_pb2,
    analysis_pb2,
    approval_pb2,
    decision_pb2,
    execution_pb2,
    profile_pb2,
    session_pb2,
)
from tests.api.conftest import SECRET, Socket, Wire, refused

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scene:
    """An agent with a session of its own, and somebody else's session with an execution, a question and a decision."""

    agent: Socket
    workspace: Path
    mine: str
    proof: Metadata
    theirs: SessionState
    execution: str
    approval: str
    decision: str


@pytest.fixture
async def scene(wire: Wire) -> AsyncIterator[Scene]:
    house = wire.house
    mine, proof = await wire.agent.create(house.workspace, mode=session_pb2.MODE_DONT_ASK, headless=True)
    async with wire.client() as human:
        theirs = await human.session(str(house.workspace), headless=False)
        async with await theirs.start("touch asked-about") as execution:
            async for event in execution:
                if type(event).__name__ == "ApprovalNeeded":
                    break
            await theirs.run("true")
            (decided,) = await human.decisions()
            (asked,) = await human.approvals()
            state = house.engine.sessions.get(theirs.id, "", Role.ADMIN)
            yield Scene(wire.agent, house.workspace, mine, proof, state, execution.id, asked.id, decided.id)


def create(**fields: Any) -> Callable[[Scene], Awaitable[Any]]:
    def attempt(scene: Scene) -> Awaitable[Any]:
        wanted = {"workspace": str(scene.workspace), **fields}
        return scene.agent.sessions.Create(session_pb2.SessionServiceCreateRequest(**wanted))

    return attempt


def update(**fields: Any) -> Callable[[Scene], Awaitable[Any]]:
    def attempt(scene: Scene) -> Awaitable[Any]:
        request = session_pb2.SessionServiceUpdateRequest(session_id=scene.mine, **fields)
        return scene.agent.sessions.Update(request, metadata=scene.proof)

    return attempt


def execution(method: str, *, theirs: bool = False, **fields: Any) -> Callable[[Scene], Awaitable[Any]]:
    """Call a method on somebody else's execution, in the name of one's own session or of theirs."""

    def attempt(scene: Scene) -> Awaitable[Any]:
        request = getattr(execution_pb2, f"ExecutionService{method}Request")(
            session_id=scene.theirs.id if theirs else scene.mine, execution_id=scene.execution, **fields
        )
        call: Awaitable[Any] = getattr(scene.agent.executions, method)(request, metadata=scene.proof)
        return call

    return attempt


def foreign(service: str, method: str, kind: Any, proof: Callable[[Scene], Metadata]) -> Callable[[Scene], Awaitable[Any]]:
    """Call a method about somebody else's session with some proof or other."""

    def attempt(scene: Scene) -> Awaitable[Any]:
        call: Awaitable[Any] = getattr(getattr(scene.agent, service), method)(
            kind(session_id=scene.theirs.id), metadata=proof(scene)
        )
        return call

    return attempt


def on_admin(service: str, method: str, request: Any) -> Callable[[Scene], Awaitable[Any]]:
    def attempt(scene: Scene) -> Awaitable[Any]:
        made = request(scene) if callable(request) else request
        call: Awaitable[Any] = getattr(getattr(scene.agent, service), method)(made, metadata=scene.proof)
        return call

    return attempt


def command(text: str, **fields: Any) -> execution_pb2.Command:
    return execution_pb2.Command(text=text, **fields)


def own(scene: Scene) -> Metadata:
    return scene.proof


def none(scene: Scene) -> Metadata:
    return ()


def guessing(scene: Scene) -> Metadata:
    return ((SECRET, scene.theirs.secret[:-1] + "!"),)


def boasting(scene: Scene) -> Metadata:
    return (*scene.proof, ("sandboxd-role", "admin"), ("authorization", "admin"), ("x-role", "admin"))


DENIED, UNKNOWN = "PERMISSION_DENIED", "NOT_FOUND"
SESSION = session_pb2.SessionServiceGetRequest

# (what it tries, the call, the status)
ATTEMPTS: tuple[tuple[str, Callable[[Scene], Awaitable[Any]], str], ...] = (
    ("a session in bypassPermissions", create(mode=session_pb2.MODE_BYPASS_PERMISSIONS), DENIED),
    ("a session in acceptEdits", create(mode=session_pb2.MODE_ACCEPT_EDITS), DENIED),
    ("a session in auto", create(mode=session_pb2.MODE_AUTO), DENIED),
    ("a session in bubble", create(mode=session_pb2.MODE_BUBBLE), DENIED),
    ("a session with an allow rule", create(allow=["Bash(rm:*)"]), DENIED),
    ("a session with everything allowed", create(allow=["Bash"]), DENIED),
    ("a session with another directory", create(additional_directories=["/etc"]), DENIED),
    ("a session in /", create(workspace="/"), DENIED),
    ("a session in /etc", create(workspace="/etc"), DENIED),
    ("a session through ..", lambda scene: create(workspace=f"{scene.workspace}/../../..")(scene), DENIED),
    ("a session through a link", lambda scene: create(workspace=_link(scene, "/usr"))(scene), DENIED),
    ("a session by its directory alone", create(workspace="", cwd="/usr"), DENIED),
    ("LD_PRELOAD for its commands", create(env={"LD_PRELOAD": "/tmp/x.so"}), DENIED),
    ("PATH for its commands", create(env={"PATH": "/tmp"}), DENIED),
    ("BASH_ENV for its commands", create(env={"LANG": "C", "BASH_ENV": "/tmp/x"}), DENIED),
    ("another session's secret as its environment", create(env={"SANDBOXD_ROLE": "admin"}), DENIED),
    ("acceptEdits later", update(mode=session_pb2.MODE_ACCEPT_EDITS), DENIED),
    ("bypassPermissions later", update(mode=session_pb2.MODE_BYPASS_PERMISSIONS), DENIED),
    ("auto later", update(mode=session_pb2.MODE_AUTO), DENIED),
    ("a looser mode than its own", update(mode=session_pb2.MODE_DEFAULT), DENIED),
    ("somebody to ask", update(headless=False), DENIED),
    ("no sandbox, judged", lambda scene: _start(scene, command("ls", dangerously_disable_sandbox=True)), DENIED),
    ("no sandbox, checked", lambda scene: _check(scene, command("ls", dangerously_disable_sandbox=True)), DENIED),
    ("all questions", on_admin("approvals", "List", approval_pb2.ApprovalServiceListRequest()), DENIED),
    ("to see questions come", on_admin("approvals", "Watch", approval_pb2.ApprovalServiceWatchRequest()), DENIED),
    ("its own session's questions", on_admin("approvals", "List", lambda s: _questions(s.mine)), DENIED),
    ("to allow", on_admin("approvals", "Resolve", lambda s: _answer(s, scope=approval_pb2.APPROVAL_SCOPE_ONCE)), DENIED),
    ("to allow always", on_admin("approvals", "Resolve", lambda s: _answer(s, scope=approval_pb2.APPROVAL_SCOPE_ALWAYS)), DENIED),
    ("to allow as somebody else", on_admin("approvals", "Resolve", lambda s: _answer(s, who="root")), DENIED),
    ("a reload", on_admin("administration", "Reload", admin_pb2.AdminServiceReloadRequest()), DENIED),
    (
        "a file through a profile",
        on_admin("profiles", "Validate", profile_pb2.ProfileServiceValidateRequest(text='extends = "/etc/shadow"')),
        DENIED,
    ),
    ("all sessions", on_admin("sessions", "List", session_pb2.SessionServiceListRequest()), DENIED),
    ("all executions", on_admin("executions", "List", execution_pb2.ExecutionServiceListRequest()), DENIED),
    ("all decisions", on_admin("decisions", "List", decision_pb2.DecisionServiceListRequest()), DENIED),
    ("to see all decisions come", on_admin("decisions", "Watch", decision_pb2.DecisionServiceWatchRequest()), DENIED),
    ("an execution without a session", lambda scene: _nameless(scene), DENIED),
    ("another session with its own secret", foreign("sessions", "Get", SESSION, own), UNKNOWN),
    ("another session without a secret", foreign("sessions", "Get", SESSION, none), UNKNOWN),
    ("another session with a claim", foreign("sessions", "Get", SESSION, boasting), UNKNOWN),
    ("another session with a guess", foreign("sessions", "Get", SESSION, guessing), UNKNOWN),
    ("another session in a list", foreign("sessions", "List", session_pb2.SessionServiceListRequest, own), UNKNOWN),
    ("another session's mode", foreign("sessions", "Update", session_pb2.SessionServiceUpdateRequest, own), UNKNOWN),
    ("another session's end", foreign("sessions", "Delete", session_pb2.SessionServiceDeleteRequest, own), UNKNOWN),
    ("its own session without a secret", lambda scene: _own(scene, ()), UNKNOWN),
    ("its own session with an empty secret", lambda scene: _own(scene, ((SECRET, ""),)), UNKNOWN),
    ("another session's executions", foreign("executions", "List", execution_pb2.ExecutionServiceListRequest, own), UNKNOWN),
    ("another session's decisions", foreign("decisions", "List", decision_pb2.DecisionServiceListRequest, own), UNKNOWN),
    ("another session's coming decisions", foreign("decisions", "Watch", decision_pb2.DecisionServiceWatchRequest, own), UNKNOWN),
    ("to judge in another session", lambda scene: _check(scene, command("ls"), session=scene.theirs.id), UNKNOWN),
    ("to run in another session", lambda scene: _start(scene, command("ls"), session=scene.theirs.id), UNKNOWN),
    ("another's execution", execution("Get"), UNKNOWN),
    ("another's execution in their name", execution("Get", theirs=True), UNKNOWN),
    ("another's output", execution("Attach"), UNKNOWN),
    ("another's output in their name", execution("Attach", theirs=True), UNKNOWN),
    ("another's standard input", execution("WriteStdin", data=b"y\n"), UNKNOWN),
    ("a signal to another's command", execution("Signal", signal=9), UNKNOWN),
    ("the end of another's command", execution("Cancel"), UNKNOWN),
    ("another's decision", lambda scene: _decision(scene, scene.mine), UNKNOWN),
    ("another's decision in their name", lambda scene: _decision(scene, scene.theirs.id), UNKNOWN),
)  # fmt: skip


@pytest.mark.needs("bwrap", "userns")
@pytest.mark.parametrize(("attempt", "status"), [row[1:] for row in ATTEMPTS], ids=[row[0] for row in ATTEMPTS])
async def test_an_agent_cannot_help_itself(attempt: Callable[[Scene], Awaitable[Any]], status: str, scene: Scene) -> None:
    """Each attempt is refused with PERMISSION_DENIED and how it would be done, or NOT_FOUND as if nothing were there."""
    code, error = await refused(attempt(scene))
    assert code == status
    assert error.fix
    assert scene.theirs.secret not in str(error)


@pytest.mark.needs("bwrap", "userns")
async def test_nothing_has_changed_after_all_attempts(wire: Wire, scene: Scene) -> None:
    """After every attempt the other session is as it was, its question still open, and no session was made."""
    sessions = wire.house.engine.sessions
    before = [(state.id, state.mode, state.headless, state.cwd) for state in sessions.list()]
    for _, attempt, _ in ATTEMPTS:
        await refused(attempt(scene))
    assert [(state.id, state.mode, state.headless, state.cwd) for state in sessions.list()] == before
    assert [pending.id for pending in wire.house.engine.approvals.list()] == [scene.approval]
    assert wire.house.engine.executions.get(scene.execution, None).result is None
    assert not Path(wire.house.engine.dirs.user_rules).exists()


@pytest.mark.needs("bwrap", "userns")
async def test_unknown_and_foreign_sessions_look_the_same(scene: Scene) -> None:
    """A wrong secret answers as an unknown session does, so nobody learns which sessions exist."""
    answers = []
    for session_id in (scene.theirs.id, "s-0000000000000000"):
        code, error = await refused(
            scene.agent.sessions.Get(session_pb2.SessionServiceGetRequest(session_id=session_id), metadata=scene.proof)
        )
        answers.append((code, str(error).replace(session_id, "ID")))
    assert answers[0] == answers[1]


@pytest.mark.needs("bwrap", "userns")
async def test_an_agent_may_tighten(scene: Scene) -> None:
    """What only makes a session stricter is open to an agent: deny and ask rules, a stricter mode, nobody to ask."""
    made = await create(deny=["Bash(curl:*)"], ask=["Bash(make:*)"], mode=session_pb2.MODE_DEFAULT)(scene)
    request = session_pb2.SessionServiceUpdateRequest(
        session_id=made.session.session_id, mode=session_pb2.MODE_PLAN, headless=True
    )
    answer = await scene.agent.sessions.Update(request, metadata=((SECRET, made.session_secret),))
    assert (answer.session.mode, answer.session.headless) == (session_pb2.MODE_PLAN, True)


def _link(scene: Scene, target: str) -> str:
    link = scene.workspace.parent / "link"
    if not link.is_symlink():
        os.symlink(target, link)
    return str(link)


def _start(scene: Scene, wanted: execution_pb2.Command, session: str = "") -> Any:
    request = execution_pb2.ExecutionServiceStartRequest(session_id=session or scene.mine, command=wanted)
    return scene.agent.executions.Start(request, metadata=scene.proof)


def _check(scene: Scene, wanted: execution_pb2.Command, session: str = "") -> Awaitable[Any]:
    request = execution_pb2.ExecutionServiceCheckCommandRequest(session_id=session or scene.mine, command=wanted)
    call: Awaitable[Any] = scene.agent.executions.CheckCommand(request, metadata=scene.proof)
    return call


def _nameless(scene: Scene) -> Awaitable[Any]:
    request = execution_pb2.ExecutionServiceGetRequest(execution_id=scene.execution)
    call: Awaitable[Any] = scene.agent.executions.Get(request, metadata=scene.proof)
    return call


def _own(scene: Scene, proof: Metadata) -> Awaitable[Any]:
    call: Awaitable[Any] = scene.agent.sessions.Get(SESSION(session_id=scene.mine), metadata=proof)
    return call


def _decision(scene: Scene, session: str) -> Awaitable[Any]:
    request = decision_pb2.DecisionServiceGetRequest(session_id=session, decision_id=scene.decision)
    call: Awaitable[Any] = scene.agent.decisions.Get(request, metadata=scene.proof)
    return call


def _questions(session: str) -> approval_pb2.ApprovalServiceListRequest:
    return approval_pb2.ApprovalServiceListRequest(session_id=session)


def _answer(scene: Scene, **fields: Any) -> approval_pb2.ApprovalServiceResolveRequest:
    return approval_pb2.ApprovalServiceResolveRequest(
        approval_id=scene.approval, verdict=analysis_pb2.BEHAVIOR_ALLOW, rule="Bash(touch asked-about)", **fields
    )
