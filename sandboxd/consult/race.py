# SPDX-License-Identifier: GPL-3.0-or-later
"""Exactly one answer counts: the claim comes before any await, so two answers can never both be applied."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class ResolveOnce(Generic[T]):
    """A question that several may answer. Whoever `claim`s first, and only that one, `settle`s it.

    Both are synchronous. Between them the winner may await (write a rule, say); the losers see at once that they lost.
    """

    __slots__ = ("_claimed", "_settled", "_value")

    def __init__(self) -> None:
        self._claimed = False
        self._settled = asyncio.Event()
        self._value: T | None = None

    @property
    def claimed(self) -> bool:
        return self._claimed

    @property
    def settled(self) -> bool:
        return self._settled.is_set()

    def claim(self) -> bool:
        """True for the first caller, False for every other."""
        if self._claimed:
            return False
        self._claimed = True
        return True

    def settle(self, value: T) -> None:
        """Give the answer; only after a successful claim, and only once."""
        if not self._claimed or self._settled.is_set():
            raise RuntimeError("settled without a claim" if not self._claimed else "settled twice")
        self._value = value
        self._settled.set()

    def peek(self) -> T | None:
        """The answer, or None while there is none."""
        return self._value

    async def wait(self) -> T:
        await self._settled.wait()
        assert self._value is not None
        return self._value
