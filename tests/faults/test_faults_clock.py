# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine's clock is set while commands run: every limit counts the time that passes, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.client import Answer
from sandboxd.model import ApprovalNeeded, EndKind
from tests.e2e.conftest import Daemon, Place
from tests.faults.conftest import BYPASS, Follower, client

pytestmark = pytest.mark.needs("bwrap", "userns")

YEAR = 366 * 86_400

# The daemon, in a process whose wall clock is off by what the file says. The host's own is never touched.
STEPPED = """
import sys, time
real = time.time
time.time = lambda: real() + float(open({file!r}).read())
from sandboxd.cli.main import main
sys.argv = sys.argv[1:]
sys.exit(main())
"""


@pytest.mark.parametrize("jump", [YEAR, -YEAR], ids=["ahead", "back"])
async def test_the_clock_jumps(jump: int, start_in: Callable[[Callable[[Place], str]], Daemon]) -> None:
    """A jump ends no command and no question, holds up no time-out, removes no result, and what was decided last is still
    listed first."""
    offset = Path()

    def make(place: Place) -> str:
        nonlocal offset
        offset, program = place.home / "offset", place.home / "stepped.py"
        offset.write_text("0")
        program.write_text(STEPPED.format(file=str(offset)))
        return f'set -- {place.person.python} {program} "$@"'

    def step(seconds: int) -> None:
        fresh = offset.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.rename(offset)

    place = start_in(make).place
    trees = [place.workspace() for _ in range(3)]  # so that none waits for another
    async with (
        client(place) as person,
        await person.session(str(trees[0]), mode=BYPASS) as session,
        await person.session(str(trees[1]), mode=BYPASS) as other,
        await person.session(str(trees[2]), headless=False) as asking,
    ):
        long = await session.run("seq 20000")
        text = "echo up; read line; echo $line"
        running = Follower(await other.start(text, stdin=True, timeout=300, keep_on_disconnect=True, detach_ttl=300))
        await running.printed(b"up\n")
        question = Follower(await asking.start("touch agreed"))
        needed = await question.until(ApprovalNeeded)

        step(jump)
        status = await person.status()
        assert 0 <= status.uptime < 3600
        assert os.path.exists(long.result.spill_path)
        await person.resolve(needed.approval_id, Answer(True))
        again = await session.run("seq 20001")  # sweeps what is too old
        assert os.path.exists(long.result.spill_path)
        assert os.path.exists(again.result.spill_path)
        await running.execution.write_stdin(b"down\n", eof=True)
        ended = await running.end()
        assert (ended.end, ended.code, running.output()) == (EndKind.EXITED, 0, b"up\ndown\n")
        assert 0 < ended.usage.wall < 300
        assert (await question.end()).code == 0
        late = await session.run("sleep 60", timeout=1)
        assert (late.exit_code, late.result.end) == (124, EndKind.TIMED_OUT)
        assert 1 <= late.result.usage.wall < 30
        newest, *_ = await person.decisions(limit=1)
        assert newest.text == "sleep 60"
