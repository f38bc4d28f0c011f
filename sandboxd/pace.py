# SPDX-License-Identifier: GPL-3.0-or-later
"""Where blocking work is done: on the event loop's own thread while it is quick, else on another one.

To hand work to a thread and to hear of its end takes a third of a millisecond, more than most of the work here; but a large
workspace, or a file system that does not answer, must not hold up everybody.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

QUICK = 0.002  # seconds


class Pace:
    """One kind of work in one place. It is quick as long as the last of it was, or the one before: where the machine is busy
    any work takes longer now and then, and the hand-over would only add to that."""

    __slots__ = ("_before", "_clock", "_last")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = self._before = math.inf  # seconds

    @property
    def quick(self) -> bool:
        """Whether the next of it is done on the loop's thread, at once."""
        return min(self._last, self._before) < QUICK

    async def do(self, work: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`work(*args)`; raises what it raises. On the loop's thread nothing else happens meanwhile."""
        if self.quick:
            return self._timed(work, *args, **kwargs)
        return await asyncio.to_thread(self._timed, work, *args, **kwargs)

    def _timed(self, work: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        began = self._clock()
        try:
            return work(*args, **kwargs)
        finally:
            self._before, self._last = self._last, self._clock() - began
