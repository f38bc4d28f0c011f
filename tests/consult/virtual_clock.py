# SPDX-License-Identifier: GPL-3.0-or-later
"""An event loop whose clock only moves when the test says so."""

from __future__ import annotations

import asyncio


class VirtualLoop(asyncio.SelectorEventLoop):
    """No real time passes: `advance` moves the clock, `step` runs what is ready, once. Timers fire by the virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def step(self, rounds: int = 1) -> None:
        """Run `rounds` turns of the loop; what a turn schedules runs in the next one."""
        for _ in range(rounds):
            self.call_soon(self.stop)
            self.run_forever()

    def advance(self, seconds: float) -> None:
        self.now += seconds
