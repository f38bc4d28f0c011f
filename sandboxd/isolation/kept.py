# SPDX-License-Identifier: GPL-3.0-or-later
"""Boxes that have run a command and wait for the next one of the same session. Nobody else's command gets one.

How many wait, and how long, `pool` decides; whether one is as it was before its command, its process 1 (`zygote_again`).
"""

from __future__ import annotations

from sandboxd.isolation.nativebox import NativeBox


class Kept:
    """Those of one template. What is returned from here is the caller's to use or to dispose of."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[float, NativeBox]]] = {}

    def add(self, box: NativeBox, now: float) -> None:
        self._waiting.setdefault(box.session, []).append((now, box))

    def of(self, session: str) -> list[NativeBox]:
        return [box for _, box in self._waiting.get(session, ())]

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def since(self) -> tuple[float, ...]:
        """Since when each has waited, the longest first."""
        return tuple(sorted(since for waiting in self._waiting.values() for since, _ in waiting))

    def boxes(self) -> list[NativeBox]:
        return [box for waiting in self._waiting.values() for _, box in waiting]

    def take(self, session: str) -> tuple[NativeBox | None, list[NativeBox]]:
        """The box that this session used last, of those that can be used, and those that cannot be any more."""
        waiting = self._waiting.get(session, [])
        useless: list[NativeBox] = []
        for at in range(len(waiting) - 1, -1, -1):
            _, box = waiting[at]
            box.look()
            if not (box.ready or box.over()):
                continue  # process 1 has not said yet
            self._remove(session, at)
            if box.usable():
                return box, useless
            useless.append(box)
        return None, useless

    def useless(self) -> list[NativeBox]:
        """Give up those that say that they take no other command, and those that have ended."""
        out = []
        for session, waiting in list(self._waiting.items()):
            for at in range(len(waiting) - 1, -1, -1):
                waiting[at][1].look()
                if waiting[at][1].over():
                    out.append(self._remove(session, at))
        return out

    def forget(self, session: str) -> list[NativeBox]:
        """Give up those of a session that has ended."""
        return [box for _, box in self._waiting.pop(session, ())]

    def oldest(self, count: int) -> list[NativeBox]:
        """Give up so many of those that have waited longest."""
        order = sorted((since, session) for session, waiting in self._waiting.items() for since, _ in waiting)
        return [self._remove(session, 0) for _, session in order[:count]]

    def _remove(self, session: str, at: int) -> NativeBox:
        waiting = self._waiting[session]
        _, box = waiting.pop(at)
        if not waiting:
            del self._waiting[session]
        return box
