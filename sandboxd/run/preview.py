# SPDX-License-Identifier: GPL-3.0-or-later
"""Output as a model reads it: how much of it, and which parts. Pure.

Three budgets, decided in this order: a call that exempts itself (`UNLIMITED`: a reader that budgets itself) has none,
whatever is configured, so that no setting can make a loop of "stored in a file", "read the file". Then characters of one
result, bytes of one result (absolute), and characters of all results of a batch, where the largest go first.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandboxd.model import UNLIMITED, Stream

PREVIEW = 4000  # characters shown of a result over its budget: half from its head, half from its tail
WINDOW = 1 << 16  # bytes of a long output that a half is cut from

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and other strings
    r"|\x1b[ -/]*[0-~]"  # the rest of ECMA-48
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Budgets:
    """`result` and `batch` in characters, `absolute` in bytes of one result."""

    result: int = 50_000
    batch: int = 200_000
    absolute: int = 400_000

    def of(self, max_result_chars: int | None) -> int | None:
        """Characters that one result may have; None = exempt. A call may ask for any budget that `absolute` can hold."""
        if max_result_chars == UNLIMITED:
            return None
        return min(self.result if max_result_chars is None else max_result_chars, self.absolute)


def clean(text: str) -> str:
    """Without terminal sequences and control characters; every line end is a line feed. Cleaning twice changes nothing."""
    if "\x1b" in text or not text.isascii():
        text = _SEQUENCE.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)


def decode(chunks: Iterable[tuple[Stream, bytes]], *, cut: bool = False) -> str:
    """Both streams in the order of arrival, cleaned; what is not UTF-8 becomes U+FFFD.

    A character may be cut between two chunks of a stream. `cut`: more follows, so one that is cut at the end is left out.
    """
    decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in Stream}
    parts = [decoders[stream].decode(data) for stream, data in chunks]
    if not cut:
        parts += [decoder.decode(b"", final=True) for decoder in decoders.values()]
    return clean("".join(parts))


def whole_characters(data: bytes) -> bytes:
    """`data`, cut out of UTF-8 text, from its first whole character on."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def preview(head: str, tail: str, budget: int, notice: str) -> str:
    """The beginning of `head`, the notice on a line of its own, the end of `tail`; both cut at line ends where they have one.

    Of the output at most `budget` characters are shown, and at most PREVIEW. `head` and `tail` are cleaned; either may be
    the whole text, which has more characters than are shown.
    """
    half = min(PREVIEW, budget) // 2
    first, last = head[:half], tail[len(tail) - min(half, len(tail)) :]
    end = first.rfind("\n") + 1
    if end:
        first = first[:end]
    begin = last.find("\n") + 1
    if 0 < begin < len(last):
        last = last[begin:]
    if first and not first.endswith("\n"):
        first += "\n"
    return f"{first}{notice}\n{last}"


def over(sizes: Sequence[int | None], budget: int) -> frozenset[int]:
    """Which results of a batch must be stored instead, as indexes: the largest first, until the rest fits.

    A size is in characters; None is a result that does not count (exempt, or stored already). One that is not larger
    than a preview is never stored: that would gain nothing.
    """
    total = sum(size for size in sizes if size is not None)
    chosen: set[int] = set()
    counted = [(size, number) for number, size in enumerate(sizes) if size is not None and size > PREVIEW]
    for size, number in sorted(counted, key=lambda each: (-each[0], each[1])):
        if total <= budget:
            break
        total -= size - PREVIEW
        chosen.add(number)
    return frozenset(chosen)
