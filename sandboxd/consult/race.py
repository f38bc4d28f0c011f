# SPDX-License-Identifier: GPL-3.0-or-later
"""Exactly one answer counts: the claim comes before any await, so two answers can never both be applied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from sandboxd.model import Behavior, Opinion

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


class Question(Protocol):
    """An open question to a human, as `approvals.Pending` is one."""

    @property
    def resolution(self) -> object | None:
        """The human's answer, None while there is none."""

    async def wait(self) -> Opinion: ...

    def cancel(self, detail: str = "") -> None:
        """Close it, so that a late answer is refused."""


async def first_eligible(
    question: Question | None,
    others: Sequence[Coroutine[Any, Any, Opinion | None]],
    eligible: Callable[[Opinion], bool],
    until: Coroutine[Any, Any, None] | None = None,
) -> Opinion | None:
    """The first opinion that may settle the matter; None when all have spoken and none may, or when `until` ends first.

    A human's answer that has been taken always counts: whoever else comes in the same moment finds the question claimed.
    Of several others in one moment a deny goes first. However this ends, the question is closed before anything is
    awaited, so that no answer is taken which nobody would heed. Losers are cancelled, and gone when this returns.
    """
    tasks = [asyncio.ensure_future(other) for other in others]
    human = None if question is None else asyncio.ensure_future(question.wait())
    end = None if until is None else asyncio.ensure_future(until)
    speakers: set[asyncio.Future[Opinion | None]] = {*tasks, *((human,) if human is not None else ())}
    everyone: set[asyncio.Future[Any]] = {*speakers, *((end,) if end is not None else ())}
    why = "nobody waits for the answer any more"
    try:
        while speakers:
            waiting = {*speakers, *((end,) if end is not None else ())}
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if human is not None and question is not None and question.resolution is not None:
                return await human
            if end is not None and end in done:
                why = "it is no longer asked"
                return end.result()
            said = [opinion for task in tasks if task in done and (opinion := task.result()) is not None and eligible(opinion)]
            if said:
                opinion = next((one for one in said if one.verdict is Behavior.DENY), said[0])
                why = f"answered by {opinion.who.value}"
                return opinion
            speakers -= done
        return None
    finally:
        if question is not None:
            question.cancel(why)
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)
