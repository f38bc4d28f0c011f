# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers that are kept for when the same is asked again, as long as they fit.

A count of entries is no bound where whoever asks chooses how large they are: a text of 60 KB can hold 2,000 commands, and
what is known of them takes 3 MB.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Memory(Generic[V]):
    """For several threads. `room`: bytes, roughly; when it is full, all is forgotten at once."""

    __slots__ = ("_kept", "_room", "_taken")

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: dict[Hashable, V] = {}
        self._taken = 0

    def get(self, question: Hashable) -> V | None:
        return self._kept.get(question)

    def keep(self, question: Hashable, answer: V, size: int) -> V:
        """The answer, which is remembered if it leaves room for others. `size` in bytes."""
        if size <= self._room // 8:
            if self._taken + size > self._room:
                self.clear()
            self._kept[question] = answer
            self._taken += size
        return answer

    def clear(self) -> None:
        self._kept.clear()  # in one step: others may be asking
        self._taken = 0

    def __len__(self) -> int:
        return len(self._kept)


def size_of(text: str, commands: int, words: int) -> int:
    """Bytes that the reading of a text takes with so many commands and their effects, or words where it could not be read: as
    measured, rounded up."""
    return 2_000 + 2 * len(text) + 1_500 * commands + 70 * words
