# SPDX-License-Identifier: GPL-3.0-or-later
"""A little of every load of benchmarks/load.py, whose whole measure is run by hand: `python -m benchmarks.load`."""

from __future__ import annotations

import pytest

from benchmarks import load

pytestmark = pytest.mark.needs("bwrap", "userns")


async def test_commands_in_a_row_leave_nothing() -> None:
    """One command after the other, some of which fail, are denied or are too long for a model: no descriptor, process or
    mount more, no memory to speak of, and on disk only what the settings allow."""
    assert await load.soak(150, warm=75)


async def test_a_hundred_clients_at_once() -> None:
    """A hundred clients with a session each are all served, each with its own output, and leave nothing."""
    assert await load.clients(100, turns=1)


async def test_readers_that_do_not_read() -> None:
    """A reader that does not read holds up its own command, at a bounded price."""
    assert await load.slow(3)


async def test_a_hundred_megabytes() -> None:
    """A long output comes whole and in order, and the daemon does not grow with it."""
    assert await load.output(100)


@pytest.mark.slow
@pytest.mark.timeout(load.SECONDS + 60)
@pytest.mark.parametrize("what", ["soak", "clients", "slow", "output"])
async def test_the_whole_load(what: str) -> None:
    """The whole measure of each: 10,000 commands, 100 clients, as many slow readers as may run, 1 GB of output."""
    assert await load.LOADS[what]()
