# SPDX-License-Identifier: GPL-3.0-or-later
"""Daemons that something happens to, and clients that look at them."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sandboxd.client import AsyncClient, AsyncExecution
from sandboxd.model import Event, Exited, Output, Progress, Result, Stream
from tests._require import require
from tests._users import User, current
from tests.e2e.conftest import Daemon, Place
from tests.e2e.conftest import base as base
from tests.e2e.conftest import new_place as new_place
from tests.e2e.conftest import served as served
from tests.e2e.conftest import start_daemon as start_daemon

_E = TypeVar("_E", bound=Event)

BYPASS = "bypassPermissions"


@pytest.fixture(scope="module")
def person(base: Path) -> User:
    """Whoever runs the tests."""
    require("bwrap", "userns")
    return current(base)


@pytest.fixture
def start_in(
    new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]
) -> Callable[[Callable[[Place], str]], Daemon]:
    """Starts a daemon through a script of sh: `make` gets the place and gives what the script does before it becomes
    `"$@"`, the daemon."""

    def start(make: Callable[[Place], str]) -> Daemon:
        place = new_place()
        script = place.home / "through"
        script.write_text(f'#!/bin/sh\nset -- {shlex.quote(str(place.person.sandboxd))} "$@"\n{make(place)}\nexec "$@"\n')
        script.chmod(0o755)
        return start_daemon(dataclasses.replace(place, person=dataclasses.replace(place.person, sandboxd=script)))

    return start


def client(place: Place, **options: Any) -> AsyncClient:
    """Of the daemon there, on its admin socket."""
    return AsyncClient(f"unix:{place.runtime}/sandboxd/admin.sock", admin=True, **options)


class Follower:
    """Reads an execution's events step by step."""

    def __init__(self, execution: AsyncExecution) -> None:
        self.execution = execution
        self.seen: list[Event] = []
        self._events = aiter(execution)

    async def until(self, kind: type[_E]) -> _E:
        """Read on to the next event of that kind."""
        async with asyncio.timeout(60):
            while True:
                event = await anext(self._events, None)
                assert event is not None, f"no {kind.__name__} in {self.seen}"
                if not isinstance(event, Progress):
                    self.seen.append(event)
                if isinstance(event, kind):
                    return event

    async def printed(self, text: bytes) -> None:
        """Read on until its output holds that."""
        while text not in self.output():
            await self.until(Output)

    async def end(self) -> Result:
        return (await self.until(Exited)).result

    def output(self, stream: Stream = Stream.STDOUT) -> bytes:
        return b"".join(event.data for event in self.seen if isinstance(event, Output) and event.stream is stream)

    async def leave(self) -> None:
        """As a client that vanishes does."""
        await self._events.aclose()  # type: ignore[attr-defined]  # it is a generator
        await self.execution.close()
