# SPDX-License-Identifier: GPL-3.0-or-later
"""What a classifier may know of a conversation: what the user wrote, and which tools were called with which input. Pure.

There is no entry for what the agent wrote or what a tool printed: the first argues for itself, the second is anybody's
text. Old entries are dropped in large steps, so that what is sent again and again stays the same text (and cached).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from sandboxd.errors import RequestError

MAX_ENTRY = 8_000  # characters of one entry; a longer one keeps its head and tail
MAX_ENTRIES = 400
MAX_TOTAL = 40_000  # characters of all
KEPT = 0.5  # of both, after dropping
MAX_ADDED = 200  # entries of one call


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user wrote. `id` is given by the transcript."""

    text: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that was called. `input` is a JSON object as text; `repeated`: it came more than once in a row."""

    tool: str
    input: str
    repeated: bool = False


Entry = UserMessage | ToolCall


@dataclass(frozen=True, slots=True)
class Transcript:
    """A bounded history, oldest first. A value: `add` gives another one."""

    entries: tuple[Entry, ...] = ()
    messages: int = 0  # user messages so far, which makes their ids
    dropped: int = 0
    _size: int = field(default=0, repr=False)

    def add(self, *added: Entry) -> Transcript:
        """With more entries. A call that repeats the last one only counts it, so that a repetition changes little."""
        entries, messages, size = list(self.entries), self.messages, self._size
        for entry in added:
            if isinstance(entry, UserMessage):
                messages += 1
                entry = UserMessage(_bounded(entry.text), f"u{messages}")
                size += len(entry.text)
            else:
                entry = ToolCall(entry.tool[:200], _bounded(entry.input))
                last = entries[-1] if entries else None
                if isinstance(last, ToolCall) and (last.tool, last.input) == (entry.tool, entry.input):
                    entries[-1] = ToolCall(last.tool, last.input, repeated=True)
                    continue
                size += len(entry.input)
            entries.append(entry)
        dropped = self.dropped
        if len(entries) > MAX_ENTRIES or size > MAX_TOTAL:
            while entries and (len(entries) > MAX_ENTRIES * KEPT or size > MAX_TOTAL * KEPT):
                first = entries.pop(0)
                size -= len(first.text if isinstance(first, UserMessage) else first.input)
                dropped += 1
        return Transcript(tuple(entries), messages, dropped, size)

    @property
    def user_messages(self) -> frozenset[str]:
        """The ids of the user messages that are still there."""
        return frozenset(entry.id for entry in self.entries if isinstance(entry, UserMessage))

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.entries, self.dropped)).encode("utf-8", "surrogatepass")).hexdigest()


def tool_call(tool: str, given: Any) -> ToolCall:
    """A tool call from its name and its input, a JSON object. Raises RequestError."""
    if not tool or not isinstance(given, dict):
        raise RequestError("a tool call needs a name and an object as its input", field="entries.tool_call")
    return ToolCall(tool, json.dumps(given, sort_keys=True))


def _bounded(text: str) -> str:
    if len(text) <= MAX_ENTRY:
        return text
    half = MAX_ENTRY // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:]}"
