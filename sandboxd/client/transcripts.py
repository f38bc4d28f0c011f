# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a session that tells a classifier about the conversation: the user's words and the tools that were called.

There is nothing here for what the agent wrote or what a tool printed: the daemon takes neither. Commands that run in the
session are added by the daemon itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxd.client import decode
from sandboxd.errors import RequestError
from sandboxd.v1 import session_pb2


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user wrote, word for word."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that the agent called, and with what."""

    tool: str
    input: Mapping[str, Any] = field(default_factory=dict)


class AsyncTranscripts(ABC):
    """What `AsyncSession` can do with the conversation; the session says who it is and how it calls the daemon."""

    _client: Any  # an AsyncClient, which knows the stubs

    @property
    @abstractmethod
    def id(self) -> str:
        """Of the session."""

    @abstractmethod
    async def _call(self, method: Any, request: Any) -> Any:
        """One plain call with the session's secret. Raises the errors of `sandboxd.errors`."""

    async def add_transcript(self, *entries: UserMessage | ToolUse) -> tuple[str, ...]:
        """Tell what happened, oldest first, all or nothing; the ids that verdicts use for the user messages among it.

        Raises RequestError for none, for more than the daemon takes at once, and for an empty one; Forbidden for user
        messages of a child session on the agent socket.
        """
        request = session_pb2.SessionServiceAddTranscriptRequest(session_id=self.id, entries=[_entry(each) for each in entries])
        return tuple((await self._call(self._client._sessions.AddTranscript, request)).user_message_ids)


def _entry(entry: UserMessage | ToolUse) -> session_pb2.TranscriptEntry:
    try:
        if isinstance(entry, UserMessage):
            return session_pb2.TranscriptEntry(user=session_pb2.UserMessage(text=entry.text))
        call = session_pb2.ToolCall(tool=entry.tool, input=decode.struct(entry.input, "entries.tool_call.input"))
        return session_pb2.TranscriptEntry(tool_call=call)
    except (ValueError, UnicodeEncodeError):
        raise RequestError("an entry is not valid Unicode", field="entries", fix="send UTF-8") from None
