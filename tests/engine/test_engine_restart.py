# SPDX-License-Identifier: GPL-3.0-or-later
"""A real daemon with a question that is open: while its asker is away, before several approvers, over a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Answer, AsyncClient, AsyncExecution
from sandboxd.client.values import Settled
from sandboxd.errors import NotFound, RequestError
from sandboxd.model import ApprovalNeeded, EndKind, Exited
from tests.engine.test_engine_crash import serving

pytestmark = pytest.mark.needs("bwrap", "userns")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a workspace, below a short path: a socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sbxd-ask-") as directory:
        for name in ("ws", "r", "t"):
            (Path(directory) / name).mkdir(mode=0o700)
        yield Path(directory)


def admin(home: Path) -> AsyncClient:
    return AsyncClient(f"unix:{home}/r/sandboxd/admin.sock", admin=True)


async def question(execution: AsyncExecution) -> str:
    async with asyncio.timeout(30):
        async for event in execution:
            if isinstance(event, ApprovalNeeded):
                return event.approval_id
    raise AssertionError("it was not asked")


async def test_an_asker_that_comes_back_finds_its_question(home: Path) -> None:
    """The connection of whoever asked may go: the question stays, the events tell of it again, and the answer counts."""
    with serving(home):
        async with admin(home) as first:
            session = await first.session(str(home / "ws"), headless=False)
            execution = await session.start("touch made", keep_on_disconnect=True)
            asked = await question(execution)
            number = execution.id
            await execution.close()
        async with admin(home) as second, asyncio.timeout(30):
            assert [item.id for item in await second.approvals()] == [asked]
            async with await second.attach_execution(number, session.id, session.secret) as again:
                assert await question(again) == asked
                await second.resolve(asked, Answer(allow=True), who="ada")
                last = [event async for event in again][-1]
            assert isinstance(last, Exited)
            assert last.result.code == 0
        assert (home / "ws/made").exists()


async def test_of_many_approvers_the_first_counts(home: Path) -> None:
    """Ten answer at once over connections of their own: one is taken, nine are refused, every watcher is told of that one."""
    with serving(home):
        async with admin(home) as client, asyncio.timeout(60):
            session = await client.session(str(home / "ws"), headless=False)
            execution = await session.start("touch made")
            asked = await question(execution)
            ready = asyncio.Barrier(11)

            async def approver(number: int) -> tuple[str, Settled]:
                async with admin(home) as mine:
                    changes = aiter(mine.watch_approvals())
                    raised = await anext(changes)
                    assert not isinstance(raised, Settled)
                    await ready.wait()
                    me, refusal = f"approver {number}", ""
                    try:
                        await mine.resolve(asked, Answer(allow=number % 2 == 0), who=me)
                    except RequestError as error:
                        refusal = str(error)
                    assert not refusal or "has its answer already" in refusal
                    told = await anext(changes)
                    assert isinstance(told, Settled)
                    return "" if refusal else me, told

            answers = [asyncio.create_task(approver(number)) for number in range(10)]
            await ready.wait()
            said = await asyncio.gather(*answers)
            last = [event async for event in execution][-1]
        (winner,) = {who for who, _ in said} - {""}
        assert {told.who for _, told in said} == {winner}
        allowed = {told.verdict.value for _, told in said} == {"allow"}
        assert isinstance(last, Exited)
        assert (last.result.end is EndKind.EXITED) is allowed is (home / "ws/made").exists()


async def test_a_question_does_not_outlive_the_daemon(home: Path) -> None:
    """A daemon that is killed leaves its question unanswered: the next one closes it as expired, takes no answer to it, and
    nothing of the command runs."""
    with serving(home) as daemon:
        async with admin(home) as client:
            session = await client.session(str(home / "ws"), headless=False)
            execution = await session.start("touch made", keep_on_disconnect=True)
            asked = await question(execution)
            await client.decisions()  # a read waits for what was written before it: the question is in the record
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.wait(30)
            await execution.close()
    with serving(home):
        async with admin(home) as client:
            assert await client.approvals() == ()
            with pytest.raises(NotFound):
                await client.resolve(asked, Answer(allow=True), who="late")
    with sqlite3.connect(home / ".local/state/sandboxd/record.db") as record:
        rows = record.execute("SELECT id, verdict, who, reason FROM approvals").fetchall()
    assert [(row[0], row[1], row[2]) for row in rows] == [(asked, "deny", "")]
    assert rows[0][3].startswith("approval_expired")
    assert not (home / "ws/made").exists()
