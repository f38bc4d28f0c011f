# SPDX-License-Identifier: GPL-3.0-or-later
"""The same promises with the real sandbox in place of the double: what ends, ends whole."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandboxd.isolation import backends
from sandboxd.isolation.plan import plan
from sandboxd.isolation.profiles import SHIPPED_DIR, load
from sandboxd.model import Box, EndKind, Enforcement, Facts, Grant, GrantKind, PlanRequest, Result, Session, Started, Stdio
from sandboxd.run.ended import Ended
from sandboxd.run.execution import Execution
from tests._require import require

from .conftest import _open_fds, gather_events, output, run_out, until

START = Callable[[str], Callable[[Stdio], Box]]


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("box") / "work"
    made.mkdir()
    return made


@pytest.fixture
async def start(workspace: Path) -> AsyncIterator[START]:
    """Starts a text in a real box; afterwards no process of it and no descriptor is left."""
    require("bwrap", "userns")
    probes = backends.probe_all()
    profile = load("workspace", (SHIPPED_DIR,))
    backend = backends.choose(profile, probes)
    session = Session("s", str(workspace), str(workspace.parent), os.getuid(), os.getgid(), "")
    backends.drain()
    before = _open_fds()
    processes: list[int] = []

    def prepare(text: str) -> Callable[[Stdio], Box]:
        request = PlanRequest(
            text=text,
            cwd=str(workspace),
            profile=profile,
            session=session,
            grants=(Grant(GrantKind.WORKSPACE_WRITE),),
            promise=False,
            facts=Facts(observed=True),
            report_cwd=True,
        )
        launch = plan(request, backends.host_facts(session, request))

        def begin(stdio: Stdio) -> Box:
            box = backend.start(launch, stdio)
            processes.append(os.pidfd_open(box.pid))
            return box

        return begin

    yield prepare
    backends.drain()  # which lets go the first processes of boxes that are over
    for fd in processes:
        assert select.select([fd], [], [], 20)[0], "the first process of a box stays"
        os.close(fd)
    assert _open_fds() <= before


# Odd durations, so that no other process of this machine is taken for one of ours.


async def run(execution: Execution, start: Callable[[Stdio], Box], grace: float = 0.2) -> Ended:
    ended = await execution.run(
        start, timeout=None, grace=grace, stdin=True, report_cwd=True, max_output=None, profile="workspace"
    )
    execution.finish(Result(ended.kind, ended.code))
    return ended


@pytest.fixture
def execution(tmp_path: Path) -> Execution:
    return Execution("e1", "s1", "", str(tmp_path))


async def test_whole_life(execution: Execution, start: START, workspace: Path) -> None:
    """Output, stdin, status, directory and enforcement come back from a real box."""
    (workspace / "sub").mkdir()
    execution.write_stdin(0, b"given", True)
    ended = await run(execution, start("cat; echo oops >&2; cd sub; exit 3"))
    events = await gather_events(execution)
    assert (ended.kind, ended.code, ended.reported_cwd) == (EndKind.EXITED, 3, f"{workspace}/sub")
    assert output(events) == b"given"
    (started,) = [event for event in events if isinstance(event, Started)]
    assert isinstance(started.enforcement, Enforcement)
    assert ended.usage.max_rss > 0
    execution.close()


async def test_timeout_ends_what_hides(execution: Execution, start: START) -> None:
    """Children in sessions of their own that ignore TERM are gone when the time-out is told."""
    text = "trap '' TERM; for i in {1..50}; do setsid bash -c \"trap '' TERM; sleep 86211\" & done; echo up; wait"
    task = asyncio.create_task(run(execution, start(text)))
    await run_out(execution, b"up\n")
    ended = await task
    assert (ended.kind, ended.code) == (EndKind.TIMED_OUT, 124)
    assert output(await gather_events(execution)) == b"up\n"
    assert not _processes("sleep 86211")
    execution.close()


async def test_left_behind(execution: Execution, start: START) -> None:
    """A child that outlives the command, holding its pipes, dies with it."""
    ended = await run(execution, start("setsid sleep 86212 & echo done"))
    assert (ended.kind, ended.code) == (EndKind.EXITED, 0)
    assert not _processes("sleep 86212")
    execution.close()


async def test_cancelled_task(execution: Execution, start: START) -> None:
    """Cancelling the task ends the box before the task is over."""
    task = asyncio.create_task(run(execution, start("trap '' TERM; echo up; setsid sleep 86213")))
    await until(execution.events(), b"up\n")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _processes("sleep 86213")
    execution.close()


async def test_cancelled_at_once(execution: Execution, start: START) -> None:
    """Cancelled before the sandbox is even built: it ends as cancelled, and nothing is left."""
    begin = start("sleep 86214")

    def begin_and_cancel(stdio: Stdio) -> Box:
        box = begin(stdio)
        asyncio.get_running_loop().call_soon(execution.cancel, "user")
        return box

    ended = await run(execution, begin_and_cancel, grace=0)
    assert (ended.kind, ended.cause) == (EndKind.CANCELLED, "user")
    assert not _processes("sleep 86214")
    execution.close()


async def test_signal(execution: Execution, start: START) -> None:
    """A signal reaches the command inside."""
    text = "trap 'echo got; exit 5' USR1; echo up; while :; do read -r -t 0.05 x; done"
    task = asyncio.create_task(run(execution, start(text)))
    await until(execution.events(), b"up\n")
    execution.signal(10)
    ended = await task
    assert ended.code == 5
    execution.close()


def _processes(command: str) -> list[str]:
    """Processes of this machine with that command line."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line.endswith(wanted):
                found.append(pid)
    return found
