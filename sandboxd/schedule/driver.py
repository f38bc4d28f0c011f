# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes on asyncio: `admit` waits for its turn, and gives it back whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable

from sandboxd.schedule.lanes import Hold, Instruction, Left, Machine, Start, Submitted

PER_CORE = 8  # commands at once for each core, most of which wait for the disk or the network
AT_LEAST = 16


class Lanes:
    """All lanes of a daemon. Belongs to one event loop. `total` bounds what runs at once; 0 = by the number of cores."""

    def __init__(self, total: int = 0) -> None:
        self._machine = Machine(total or max(AT_LEAST, PER_CORE * (os.cpu_count() or 1)))
        self._tickets = itertools.count(1)
        self._turns: dict[int, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def admit(
        self,
        workspace: str,
        session_id: str,
        safe: bool,
        limit: int,
        on_wait: Callable[[str], None] | None = None,
        on_enter: Callable[[], None] | None = None,
    ) -> AsyncIterator[None]:
        """Wait for the turn, hold it for the `async with` block.

        `safe`: concurrency-safe, may run beside others that are. `limit`: how many the session may run at once.
        `on_enter` is called when it stands in its lane, `on_wait` then with the reason when it does not start at once.
        Being cancelled gives the turn back.
        """
        ticket = next(self._tickets)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[ticket] = turn
        try:
            instructions = self._carry_out(self._machine.handle(Submitted(ticket, workspace, session_id, safe, limit)))
            if on_enter is not None:
                on_enter()
            for instruction in instructions:
                if isinstance(instruction, Hold) and on_wait is not None:
                    on_wait(instruction.why.value)
            await turn
            yield
        finally:
            del self._turns[ticket]
            self._carry_out(self._machine.handle(Left(ticket)))

    def _carry_out(self, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        for instruction in instructions:
            if isinstance(instruction, Start):
                turn = self._turns.get(instruction.ticket)
                if turn is not None and not turn.done():
                    turn.set_result(None)
        return instructions


class Place:
    """One command's place among those of its session that have come and not yet entered their lane."""

    __slots__ = ("_leave", "open")

    def __init__(self, leave: Callable[[Place], None]) -> None:
        self.open = asyncio.Event()  # set when nobody before it is left, and when it has left
        self._leave = leave

    def leave(self) -> None:
        """It has entered its lane, has ended, or waits for somebody, which must hold up nobody else. Idempotent."""
        self._leave(self)


class Arrivals:
    """Commands enter their lane in the order in which they came, though some are judged faster than others."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Place, None]] = {}

    def arrive(self, session_id: str) -> Place:
        """The next place of the session."""
        places = self._places.setdefault(session_id, {})

        def leave(place: Place) -> None:
            place.open.set()
            if place in places:
                del places[place]
                self._next(session_id)

        place = Place(leave)
        places[place] = None
        self._next(session_id)
        return place

    def _next(self, session_id: str) -> None:
        places = self._places[session_id]
        first = next(iter(places), None)
        if first is not None:
            first.open.set()
        else:
            del self._places[session_id]
