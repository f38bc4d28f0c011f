# SPDX-License-Identifier: GPL-3.0-or-later
"""Following an execution at a terminal: output as it comes, signs of life, and what it was when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable

from sandboxd.cli import interactive, prompt, terminal
from sandboxd.client import AsyncExecution, Run
from sandboxd.errors import RequestError
from sandboxd.model import Advice, Decided, Decision, Exited, Gap, Output, Progress, Queued, Started, Stream

CHUNK = 1 << 16  # bytes of standard input at a time


class Sink:
    """A stream of ours. Writing happens on a thread: a reader that pauses us must not pause a daemon in this process."""

    collected = b""

    def __init__(self, fd: int, *, screen: bool = False) -> None:
        self._fd = fd
        self._filter = terminal.Filter(screen=screen) if os.isatty(fd) else None

    async def write(self, data: bytes, *, final: bool = False) -> None:
        """Write all of it. Raises BrokenPipeError when nobody reads any more."""
        if self._filter is not None:
            data = self._filter.feed(data, final=final).encode("utf-8", "replace")
        if data:
            await asyncio.to_thread(_write_all, self._fd, data)


class Collector:
    """Keeps a stream for the JSON answer."""

    def __init__(self) -> None:
        self.collected = bytearray()

    async def write(self, data: bytes, *, final: bool = False) -> None:
        self.collected += data


Sinks = dict[Stream, Sink | Collector]


def sinks(*, collect: bool = False, screen: bool = False) -> Sinks:
    """Where a command's streams go: to ours, or into the JSON answer. `screen`: it was lent our terminal."""
    if collect:
        return {stream: Collector() for stream in Stream}
    return {Stream.STDOUT: Sink(sys.stdout.fileno(), screen=screen), Stream.STDERR: Sink(sys.stderr.fileno())}


async def follow(
    execution: AsyncExecution,
    outlets: Sinks,
    *,
    quiet: bool,
    last: int | None = None,
    on_started: Callable[[], Awaitable[None]] | None = None,
) -> Run | None:
    """Pass its output on to its end, or to the event numbered `last`; None when it has not ended by then.

    `quiet`: no signs of life. `on_started` is called when it runs.
    """
    beat = interactive.Heartbeat(quiet=quiet)
    decision: Decision | None = None
    profile, dropped = "", 0
    async for event in execution:
        match event:
            case Progress():
                beat.show(event)
            case Output():
                beat.clear()
                await outlets[event.stream].write(event.data)
            case Gap():
                dropped += event.length
            case Advice():
                prompt.advise(event.text)
            case Queued() if event.reason:
                print(f"sandboxd: waiting: {event.reason}", file=sys.stderr)
            case Decided():
                decision = event.decision
            case Started():
                profile = event.profile
                if on_started is not None:
                    await on_started()
            case Exited():
                beat.clear()
                await _finish(outlets)
                stdout, stderr = (bytes(outlets[stream].collected) for stream in (Stream.STDOUT, Stream.STDERR))
                return Run(execution.text, event.result, decision, profile, stdout, stderr, dropped)
        if last is not None and event.seq >= last:
            break
    beat.clear()
    await _finish(outlets)
    return None


async def _finish(outlets: Sinks) -> None:
    for outlet in outlets.values():
        await outlet.write(b"", final=True)


async def feed(execution: AsyncExecution, fd: int) -> None:
    """Pass standard input on, up to its end or the command's."""
    with contextlib.suppress(RequestError):  # the command ended meanwhile
        while True:
            await prompt.readable(fd)
            data = os.read(fd, CHUNK)
            await execution.write_stdin(data, eof=not data)
            if not data:
                return


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
