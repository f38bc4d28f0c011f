# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions below sessions and front-ends that may prompt, over the agent socket: what each secret opens, and nothing more."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from sandboxd.model import Behavior
from sandboxd.v1 import analysis_pb2, approval_pb2, execution_pb2, session_pb2
from tests.api.conftest import SECRET, Wire, refused

pytestmark = pytest.mark.needs("bwrap", "userns")

APPROVAL = "sandboxd-approval-secret"
Metadata = tuple[tuple[str, str], ...]


def may_prompt(wire: Wire) -> None:
    engine = wire.house.engine
    approvals = dataclasses.replace(engine.config.approvals, front_end=True)
    engine.sessions.config = dataclasses.replace(engine.config, approvals=approvals)


async def create(wire: Wire, proof: Metadata = (), **fields: Any) -> session_pb2.SessionServiceCreateResponse:
    if "parent_session_id" not in fields:
        fields.setdefault("workspace", wire.place)
    request = session_pb2.SessionServiceCreateRequest(**fields)
    answer: session_pb2.SessionServiceCreateResponse = await wire.agent.sessions.Create(request, metadata=proof)
    return answer


async def asked(wire: Wire, made: session_pb2.SessionServiceCreateResponse, text: str = "touch made") -> tuple[Any, str]:
    """Start a command and wait for its question; the call and the approval's id."""
    request = execution_pb2.ExecutionServiceStartRequest(
        session_id=made.session.session_id, command=execution_pb2.Command(text=text)
    )
    call = wire.agent.executions.Start(request, metadata=((SECRET, made.session_secret),))
    while True:
        answer: Any = await call.read()
        if answer.event.HasField("approval_needed"):
            return call, answer.event.approval_needed.approval_id


def resolve(wire: Wire, approval: str, key: str, **fields: Any) -> Any:
    request = approval_pb2.ApprovalServiceResolveRequest(approval_id=approval, verdict=analysis_pb2.BEHAVIOR_ALLOW, **fields)
    return wire.agent.approvals.Resolve(request, metadata=((APPROVAL, key),) if key else ())


def listed(wire: Wire, session: str, *metadata: tuple[str, str]) -> Any:
    return wire.agent.approvals.List(approval_pb2.ApprovalServiceListRequest(session_id=session), metadata=metadata)


async def ended(call: Any) -> execution_pb2.Result:
    while True:
        answer: Any = await call.read()
        if answer.event.HasField("exited"):
            result: execution_pb2.Result = answer.event.exited.result
            return result


async def test_without_the_configuration_no_front_end_prompts(wire: Wire) -> None:
    """No approval secret is given, and no secret whatever opens an approval on the agent socket."""
    made = await create(wire)
    assert made.approval_secret == ""
    call, approval = await asked(wire, made)
    key = wire.house.engine.sessions.list()[0].approval_secret
    for attempt in (resolve(wire, approval, key), listed(wire, made.session.session_id, (APPROVAL, key))):
        code, error = await refused(attempt)
        assert code == "PERMISSION_DENIED"
        assert "front_end" in error.fix
    call.cancel()


async def test_a_front_end_answers_its_own_sessions_questions(wire: Wire) -> None:
    """With its approval secret it lists, watches and answers; the record says that a front-end answered."""
    may_prompt(wire)
    made = await create(wire)
    key = made.approval_secret
    assert key not in ("", made.session_secret)
    watch: Any = wire.agent.approvals.Watch(
        approval_pb2.ApprovalServiceWatchRequest(session_id=made.session.session_id), metadata=((APPROVAL, key),)
    )
    call, approval = await asked(wire, made)
    assert (await watch.read()).raised.approval_id == approval
    found = await listed(wire, made.session.session_id, (APPROVAL, key))
    assert [item.approval_id for item in found.approvals] == [approval]
    await resolve(wire, approval, key, who="ada")
    assert (await ended(call)).exit_code == 0
    assert (await watch.read()).settled.who == "front-end: ada"
    (row,) = wire.house.engine.record.approvals()
    assert (row.who, row.verdict) == ("front-end: ada", Behavior.ALLOW)
    code, error = await refused(resolve(wire, approval, key))
    assert (code, "front-end: ada" in str(error)) == ("INVALID_ARGUMENT", True)
    watch.cancel()


@pytest.mark.parametrize(
    "key",
    [
        lambda mine, theirs: "",
        lambda mine, theirs: mine.session_secret,
        lambda mine, theirs: mine.approval_secret,
        lambda mine, theirs: theirs.session_secret,
        lambda mine, theirs: theirs.approval_secret[:-1],
        lambda mine, theirs: theirs.approval_secret + "x",
    ],
    ids=["none", "own session's", "own approvals'", "its session's", "cut", "longer"],
)
async def test_a_front_end_reaches_no_other_question(wire: Wire, key: Any) -> None:
    """Another session's question looks as if it did not exist, whatever secret comes with the call."""
    may_prompt(wire)
    mine, theirs = await create(wire), await create(wire)
    call, approval = await asked(wire, theirs)
    given = key(mine, theirs)
    for attempt in (resolve(wire, approval, given), listed(wire, theirs.session.session_id, (APPROVAL, given))):
        code, error = await refused(attempt)
        assert code == "NOT_FOUND"
        assert theirs.approval_secret not in str(error)
    assert (await refused(listed(wire, "", (APPROVAL, mine.approval_secret))))[0] == "INVALID_ARGUMENT"
    assert [pending.id for pending in wire.house.engine.approvals.list()] == [approval]
    call.cancel()


async def test_an_approval_secret_opens_approvals_only(wire: Wire) -> None:
    """It is no session secret: nothing runs and nothing is seen with it; and a session secret answers no question."""
    may_prompt(wire)
    made = await create(wire)
    get = session_pb2.SessionServiceGetRequest(session_id=made.session.session_id)
    for metadata in (((SECRET, made.approval_secret),), ((APPROVAL, made.approval_secret),)):
        assert (await refused(wire.agent.sessions.Get(get, metadata=metadata)))[0] == "NOT_FOUND"
    call, approval = await asked(wire, made)
    assert (await refused(resolve(wire, approval, made.session_secret)))[0] == "NOT_FOUND"
    call.cancel()


async def test_a_bubbling_childs_question_is_the_parents(wire: Wire) -> None:
    """The parent's front-end answers it; the child's own approval secret does not."""
    may_prompt(wire)
    parent = await create(wire)
    proof = ((SECRET, parent.session_secret),)
    child = await create(wire, proof, parent_session_id=parent.session.session_id, mode=session_pb2.MODE_BUBBLE)
    assert child.session.parent_session_id == parent.session.session_id
    call, approval = await asked(wire, child)
    assert (await refused(resolve(wire, approval, child.approval_secret)))[0] == "NOT_FOUND"
    await resolve(wire, approval, parent.approval_secret)
    assert (await ended(call)).exit_code == 0


async def test_an_agent_sees_what_is_below_it(wire: Wire) -> None:
    """A list shows the session and its children; the parent's secret opens the child, the child's not the parent."""
    parent, other = await create(wire), await create(wire)
    proof: Metadata = ((SECRET, parent.session_secret),)
    child = await create(wire, proof, parent_session_id=parent.session.session_id)
    ids = [made.session.session_id for made in (parent, child, other)]
    answer = await wire.agent.sessions.List(session_pb2.SessionServiceListRequest(session_id=ids[0]), metadata=proof)
    assert [item.session_id for item in answer.sessions] == ids[:2]
    await wire.agent.sessions.Get(session_pb2.SessionServiceGetRequest(session_id=ids[1]), metadata=proof)
    up = session_pb2.SessionServiceGetRequest(session_id=ids[0])
    assert (await refused(wire.agent.sessions.Get(up, metadata=((SECRET, child.session_secret),))))[0] == "NOT_FOUND"


DENIED, UNKNOWN = "PERMISSION_DENIED", "NOT_FOUND"
# (what an agent tries through a child, the fields of the child, whose secret it carries, the status)
THROUGH_A_CHILD: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("a child of another session", {}, "other", UNKNOWN),
    ("a child without a secret", {}, "", UNKNOWN),
    ("a looser child", {"mode": session_pb2.MODE_BYPASS_PERMISSIONS}, "own", DENIED),
    ("an editing child", {"mode": session_pb2.MODE_ACCEPT_EDITS}, "own", DENIED),
    ("a child in default below plan", {"mode": session_pb2.MODE_DEFAULT}, "own", DENIED),
    ("a bubbling child below plan", {"mode": session_pb2.MODE_BUBBLE}, "own", DENIED),
    ("a child above the workspace", {"workspace": ".."}, "own", DENIED),
    ("a child beside the workspace", {"workspace": "/tmp"}, "own", DENIED),
    ("a child with another directory", {"additional_directories": ["/usr"]}, "own", DENIED),
    ("a child with a rule of its own", {"allow": ["Bash(rm:*)"]}, "own", DENIED),
    ("a child in another profile", {"profile": "network"}, "own", DENIED),
    ("a child with a preloaded library", {"env": {"LD_PRELOAD": "/x.so"}}, "own", DENIED),
)


@pytest.mark.parametrize(
    ("fields", "whose", "status"), [row[1:] for row in THROUGH_A_CHILD], ids=[row[0] for row in THROUGH_A_CHILD]
)
async def test_nothing_is_gained_through_a_child(wire: Wire, fields: dict[str, Any], whose: str, status: str) -> None:
    """What a session may not do its child may not either; nothing was made by the attempt."""
    parent, other = await create(wire, mode=session_pb2.MODE_PLAN), await create(wire)
    key = {"own": parent.session_secret, "other": other.session_secret, "": ""}[whose]
    if fields.get("workspace") == "..":
        fields = {"workspace": str(wire.house.workspace.parent)}
    before = wire.house.engine.sessions.list()
    attempt = create(wire, ((SECRET, key),), parent_session_id=parent.session.session_id, **fields)
    assert (await refused(attempt))[0] == status
    assert wire.house.engine.sessions.list() == before


async def test_the_end_of_a_session_ends_its_children(wire: Wire) -> None:
    """Deleting the parent cancels what a child waits for and forgets the child."""
    parent = await create(wire)
    proof: Metadata = ((SECRET, parent.session_secret),)
    child = await create(wire, proof, parent_session_id=parent.session.session_id)
    call, _ = await asked(wire, child)
    waiting = asyncio.create_task(ended(call))
    await wire.agent.sessions.Delete(
        session_pb2.SessionServiceDeleteRequest(session_id=parent.session.session_id), metadata=proof
    )
    assert (await waiting).end == execution_pb2.END_CANCELLED
    assert wire.house.engine.sessions.list() == ()
