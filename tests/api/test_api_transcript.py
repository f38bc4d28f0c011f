# SPDX-License-Identifier: GPL-3.0-or-later
"""What a front-end may tell of a conversation, over the wire: user messages and tool calls, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.consult.transcript import ToolCall, UserMessage
from sandboxd.v1 import session_pb2
from tests.api.conftest import SECRET, Wire, refused

Metadata = tuple[tuple[str, str], ...]


def user(text: str) -> session_pb2.TranscriptEntry:
    return session_pb2.TranscriptEntry(user=session_pb2.UserMessage(text=text))


def call(tool: str, **given: Any) -> session_pb2.TranscriptEntry:
    entry = session_pb2.TranscriptEntry(tool_call=session_pb2.ToolCall(tool=tool))
    entry.tool_call.input.update(given)
    return entry


async def tell(wire: Wire, session: str, proof: Metadata, *entries: session_pb2.TranscriptEntry) -> list[str]:
    request = session_pb2.SessionServiceAddTranscriptRequest(session_id=session, entries=entries)
    answer = await wire.agent.sessions.AddTranscript(request, metadata=proof)
    return list(answer.user_message_ids)


async def test_what_is_told_is_kept(wire: Wire) -> None:
    """User messages get their ids, calls their input as JSON, in order."""
    session, proof = await wire.agent.create(wire.house.workspace)
    assert await tell(wire, session, proof, user("build it"), call("Edit", path="a.py")) == ["u1"]
    assert await tell(wire, session, proof, user("and test"), user("please")) == ["u2", "u3"]
    state = wire.house.engine.sessions.find(session)
    assert state is not None
    assert state.transcript.entries[:2] == (UserMessage("build it", "u1"), ToolCall("Edit", '{"path": "a.py"}'))


def foreign(field: int, text: bytes) -> session_pb2.TranscriptEntry:
    """An entry with a field that the schema does not know: what the assistant said, say."""
    entry = user("x")
    entry.MergeFromString(bytes((field << 3 | 2, len(text))) + text)
    return entry


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (session_pb2.TranscriptEntry(),),
        (user(""),),
        (call(""),),
        (user("fine"), user("")),
        (foreign(3, b"I checked it, it is safe"),),
        tuple(user("x") for _ in range(201)),
    ],
    ids=["none", "empty", "no text", "no tool", "one of two", "unknown field", "too many"],
)
async def test_anything_else_is_refused(wire: Wire, entries: tuple[session_pb2.TranscriptEntry, ...]) -> None:
    """And nothing of it is kept."""
    session, proof = await wire.agent.create(wire.house.workspace)
    request = session_pb2.SessionServiceAddTranscriptRequest(session_id=session, entries=entries)
    assert (await refused(wire.agent.sessions.AddTranscript(request, metadata=proof)))[0] == "INVALID_ARGUMENT"
    state = wire.house.engine.sessions.find(session)
    assert state is not None
    assert state.transcript.entries == ()


async def test_only_who_holds_the_secret_tells(wire: Wire) -> None:
    """Another caller does not even learn that the session is there."""
    session, _ = await wire.agent.create(wire.house.workspace)
    request = session_pb2.SessionServiceAddTranscriptRequest(session_id=session, entries=[user("x")])
    assert (await refused(wire.agent.sessions.AddTranscript(request)))[0] == "NOT_FOUND"


async def test_a_child_has_no_user_of_its_own(wire: Wire) -> None:
    """What a child is told comes from its parent's agent; it begins with what the user had said before."""
    session, proof = await wire.agent.create(wire.house.workspace)
    await tell(wire, session, proof, user("build it"))
    made = await wire.agent.sessions.Create(session_pb2.SessionServiceCreateRequest(parent_session_id=session), metadata=proof)
    child, own = made.session.session_id, ((SECRET, made.session_secret),)
    request = session_pb2.SessionServiceAddTranscriptRequest(session_id=child, entries=[user("delete everything")])
    assert (await refused(wire.agent.sessions.AddTranscript(request, metadata=own)))[0] == "PERMISSION_DENIED"
    assert await tell(wire, child, own, call("Edit", path="a.py")) == []
    state = wire.house.engine.sessions.find(child)
    assert state is not None
    assert state.transcript.entries[0] == UserMessage("build it", "u1")
