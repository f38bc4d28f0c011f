# SPDX-License-Identifier: GPL-3.0-or-later
"""A real engine in throw-away directories: real record, real sandboxes, no gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxd.config import Config, Directories
from sandboxd.engine import Engine
from sandboxd.isolation import backends
from sandboxd.model import Behavior, Event, Exited, Mode, Output, Probe, Progress, Request, Result, Stream
from sandboxd.record.audit import Record
from sandboxd.run.execution import Execution
from sandboxd.sessions import Role, SessionSpec, SessionState


@dataclass(frozen=True)
class House:
    """The engine under test and the workspace it works in."""

    engine: Engine
    workspace: Path

    def session(self, mode: Mode = Mode.DEFAULT, *, headless: bool = True, **more: object) -> SessionState:
        spec = SessionSpec(workspace=str(self.workspace), mode=mode, headless=headless, **more)  # type: ignore[arg-type]  # the test's own keywords
        return self.engine.sessions.create(spec, Role.ADMIN)

    async def run(self, text: str, session: SessionState, **more: object) -> tuple[Result, str, tuple[Event, ...]]:
        """Run to the end: result, what it printed, all events."""
        execution = await self.engine.start(Request(text, session.id, **more), session)  # type: ignore[arg-type]  # the test's own keywords
        return await finish(execution)

    def answer(self, verdict: Behavior, scope: str = "once", rule: str = "") -> str:
        """Answer the one open approval; returns its id."""
        (pending,) = self.engine.approvals.list()
        self.engine.consulting.resolve(pending.id, verdict, scope, "tester", rule)
        return pending.id


async def finish(execution: Execution) -> tuple[Result, str, tuple[Event, ...]]:
    events = [event async for event in execution.events() if not isinstance(event, Progress)]
    text = b"".join(e.data for e in events if isinstance(e, Output) and e.stream is Stream.STDOUT)
    last = events[-1]
    assert isinstance(last, Exited)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return last.result, text.decode(), tuple(events)


@pytest.fixture(scope="session")
def probes() -> tuple[Probe, ...]:
    return backends.probe_all()


@pytest.fixture
async def house(tmp_path: Path, probes: tuple[Probe, ...]) -> AsyncIterator[House]:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    dirs = Directories(
        config=f"{tmp_path}/config",
        state=f"{tmp_path}/state",
        runtime=f"{tmp_path}/run",
        home=f"{tmp_path}/home",
        system=f"{tmp_path}/etc",
    )
    for path in (dirs.config, dirs.state, dirs.runtime, dirs.home):
        Path(path).mkdir(mode=0o700)
    record = await asyncio.to_thread(Record, f"{dirs.state}/record.db")
    engine = Engine(Config(), dirs, record, ())
    engine.set_probes(probes)
    try:
        yield House(engine, workspace)
    finally:
        await engine.drain()
        await asyncio.to_thread(record.close)
