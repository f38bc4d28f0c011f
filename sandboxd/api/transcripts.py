# SPDX-License-Identifier: GPL-3.0-or-later
"""What a front-end tells of a conversation, read strictly: user messages and tool calls, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from sandboxd.consult.transcript import MAX_ADDED, Entry, UserMessage, tool_call
from sandboxd.errors import Forbidden, RequestError
from sandboxd.sessions import Role, SessionState
from sandboxd.v1 import session_pb2


def entries(request: session_pb2.SessionServiceAddTranscriptRequest, session: SessionState, role: Role) -> tuple[Entry, ...]:
    """The entries of a request. Raises RequestError for none, too many, an empty one, or one with fields that are unknown:
    text of another kind must not come in under another name. Raises Forbidden for user messages of a child session on the
    agent socket: what stands there was written by the parent's agent."""
    if not 1 <= len(request.entries) <= MAX_ADDED:
        raise RequestError(f"{len(request.entries)} entries", field="entries", fix=f"send 1 to {MAX_ADDED}")
    found = tuple(_entry(f"entries[{number}]", entry) for number, entry in enumerate(request.entries))
    if role is Role.AGENT and session.parent is not None and any(isinstance(entry, UserMessage) for entry in found):
        raise Forbidden("a child session has no user of its own", field="entries", fix="tell the topmost session")
    return found


def _entry(field: str, entry: session_pb2.TranscriptEntry) -> Entry:
    kind = entry.WhichOneof("entry")
    inner: Iterable[Message] = (entry,) if kind is None else (entry, getattr(entry, kind))
    if any(len(UnknownFieldSet(message)) for message in inner):
        raise RequestError("an entry has unknown fields", field=field, fix="send user messages and tool calls only")
    if kind == "user" and entry.user.text:
        return UserMessage(entry.user.text)
    if kind == "tool_call" and entry.tool_call.tool:
        return tool_call(entry.tool_call.tool, json_format.MessageToDict(entry.tool_call.input))
    raise RequestError("an entry is empty", field=field, fix="give it a user message or a tool call")
