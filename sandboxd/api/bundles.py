# SPDX-License-Identifier: GPL-3.0-or-later
"""Events as they go out, serialized: output without the two copies that protobuf makes of it, one into the message and one
out of it again, which take longer than all else that is done with a chunk.

A serialized message is its fields one behind the other, in any order, each a tag and a value; a message within it is its
length and its bytes (protobuf's encoding guide). So what is small is serialized by protobuf, and joined with the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandboxd import model
from sandboxd.api import convert
from sandboxd.v1 import execution_pb2 as pb

_BYTES = 2  # wire type: a length, then so many bytes


def _tag(message: Any, field: str) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | _BYTES)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_OUTPUT = _tag(pb.Event, "output")
_DATA = _tag(pb.Output, "data")
_EVENT = _tag(pb.ExecutionServiceStartResponse, "event")
_MORE = _tag(pb.ExecutionServiceStartResponse, "more")
_ATTACHED = _tag(pb.ExecutionServiceAttachResponse, "event")
_IN_BATCH = _tag(pb.ExecutionServiceRunBatchResponse, "event")


def started(events: Sequence[model.Event], execution_id: str, text: str) -> bytes:
    """An ExecutionServiceStartResponse of one event or more."""
    parts: list[bytes] = []
    for event in events:
        _add(parts, _MORE if parts else _EVENT, event, execution_id, text)
    return b"".join(parts)


def attached(event: model.Event, execution_id: str, text: str) -> bytes:
    """An ExecutionServiceAttachResponse."""
    parts: list[bytes] = []
    _add(parts, _ATTACHED, event, execution_id, text)
    return b"".join(parts)


def in_batch(key: str, event: model.Event, execution_id: str, text: str) -> bytes:
    """An ExecutionServiceRunBatchResponse about an event of the call `key`."""
    parts = [pb.ExecutionServiceRunBatchResponse(key=key).SerializeToString()]
    _add(parts, _IN_BATCH, event, execution_id, text)
    return b"".join(parts)


def serialize(message: Any) -> bytes:
    """What a method answers, serialized; these functions have done it already."""
    serialized: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return serialized


def _add(parts: list[bytes], tag: bytes, event: model.Event, execution_id: str, text: str) -> None:
    """Append a field that holds the event."""
    if not isinstance(event, model.Output):
        body = convert.event(event, execution_id, text).SerializeToString()
        parts += (tag, _varint(len(body)), body)
        return
    data = event.data
    about = convert.output(event).SerializeToString() + _DATA + _varint(len(data))
    size = len(about) + len(data)
    head = pb.Event(sequence=event.seq, execution_id=execution_id).SerializeToString() + _OUTPUT + _varint(size)
    parts += (tag, _varint(len(head) + size), head, about, data)
