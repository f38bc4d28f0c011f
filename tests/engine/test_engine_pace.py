# SPDX-License-Identifier: GPL-3.0-or-later
"""Where blocking work is done."""

from __future__ import annotations

import threading

import pytest

from sandboxd.pace import QUICK, Pace

SLOW = QUICK * 2
# How long each piece of work takes, and whether it is done on the loop's thread: the first never is.
COURSES: tuple[tuple[tuple[float, bool], ...], ...] = (
    ((0.0, False), (0.0, True), (0.0, True)),
    ((SLOW, False), (SLOW, False), (0.0, False), (0.0, True)),
    ((0.0, False), (SLOW, True), (0.0, True), (SLOW, True), (0.0, True)),
    ((0.0, False), (SLOW, True), (SLOW, True), (SLOW, False), (0.0, False), (SLOW, True)),
)


@pytest.mark.parametrize("course", COURSES)
async def test_slow_work_holds_nobody_up_for_long(course: tuple[tuple[float, bool], ...]) -> None:
    """What was quick is done at once; what is slow twice in a row is done on another thread until it is quick again."""
    now = 0.0
    pace = Pace(lambda: now)

    def work(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return threading.current_thread() is threading.main_thread()

    assert [await pace.do(work, seconds) for seconds, _ in course] == [here for _, here in course]


async def test_what_fails_is_timed_as_well() -> None:
    """An error comes through, and the time until it counts."""
    now = 0.0
    pace = Pace(lambda: now)

    def fail() -> None:
        nonlocal now
        now += SLOW
        raise OSError("no such luck")

    await pace.do(int)
    for _ in range(2):
        with pytest.raises(OSError, match="no such luck"):
            await pace.do(fail)
    assert not pace.quick
