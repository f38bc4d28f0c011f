# SPDX-License-Identifier: GPL-3.0-or-later
"""A started box: its pipes, waiting for its end, and bringing it about.

Nothing here forks: `start` (a backend's, with its plan) does, on the event loop's own thread, because a parent-death
signal fires when the *thread* that spawned ends (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass

from sandboxd.errors import Exhausted
from sandboxd.model import Box, EndKind, ExitStatus, Stdio

SETTLE = 5.0  # seconds to wait for a killed box; longer only if the kernel holds one of its processes
MAX_CWD = 4096  # PATH_MAX


@dataclass(slots=True)
class Pipes:
    """Both ends of a command's descriptors; -1 where there is none. `child` is what the box gets.

    With a `terminal` all three streams are one: `stdin` and `stdout` are both our end of it, and there is no `stderr`.
    """

    child: Stdio
    stdin: int
    stdout: int
    stderr: int
    cwd_report: int
    terminal: bool = False

    def close_child(self) -> None:
        """Close the box's ends here, so that the end of the box is seen as end of file."""
        for fd in {self.child.stdin, self.child.stdout, self.child.stderr, self.child.cwd_report} - {-1}:
            os.close(fd)


def open_pipes(*, stdin: bool, report_cwd: bool) -> Pipes:
    """Make the descriptors of one command; without stdin it gets /dev/null. Never a regular file: a box could reopen it.

    Raises Exhausted when the process may open no more.
    """
    opened: list[int] = []
    try:
        feed = _pipe(opened, ours=1) if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
        if not stdin:
            opened.append(feed[0])
        out = _pipe(opened, ours=0)
        err = _pipe(opened, ours=0)
        cwd = _pipe(opened, ours=0) if report_cwd else (-1, -1)
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise Exhausted(f"no pipe for the command: {error.strerror}", fix="raise the limit of open files") from error
    child = Stdio(stdin=feed[0], stdout=out[1], stderr=err[1], cwd_report=cwd[1])
    return Pipes(child=child, stdin=feed[1], stdout=out[0], stderr=err[0], cwd_report=cwd[0])


def _pipe(opened: list[int], *, ours: int) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    opened.extend(ends)
    os.set_blocking(ends[ours], False)
    return ends


def read_cwd(fd: int) -> str | None:
    """The directory that the shell reported at its end, or None. What it says is the command's claim, not a fact."""
    try:
        data = os.read(fd, MAX_CWD + 2)
    except BlockingIOError:
        return None
    path = data.rstrip(b"\0\n")
    if not path.startswith(b"/") or len(path) > MAX_CWD or b"\0" in path:
        return None
    return os.fsdecode(path)


class Process:
    """Waits for one box and ends it. `ending` says who ended it, and is None when it ended by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, box: Box, grace: float) -> None:
        self._loop = loop
        self._box = box
        self._grace = grace
        self._killer: asyncio.TimerHandle | None = None
        self.ending: tuple[EndKind, str] | None = None
        self._exited = asyncio.Event()
        self._status: ExitStatus | Exception | None = None  # from then on: how, or why that cannot be told
        loop.add_reader(box.pidfd, self._on_exit)

    def stop(self, kind: EndKind, cause: str) -> None:
        """TERM to the command now, KILL to the whole box after the grace. The first caller's kind and cause stay."""
        if self.ending is not None or self._exited.is_set():
            return
        self.ending = (kind, cause)
        if self._grace > 0:
            self._box.signal(signal.SIGTERM)
            self._killer = self._loop.call_later(self._grace, self._box.kill)
        else:
            self._box.kill()

    def signal(self, number: int) -> None:
        if not self._exited.is_set():
            self._box.signal(number)

    async def wait(self) -> ExitStatus:
        """How it ended. A caller that is cancelled meanwhile does not disturb the waiting itself. Raises what `reap` raises."""
        await self._exited.wait()
        if isinstance(self._status, Exception):
            raise self._status
        assert self._status is not None
        return self._status

    async def end(self) -> None:
        """Make sure that nothing of the box lives on: kill, and wait until the kernel says so."""
        if self._exited.is_set():
            return
        self._box.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), SETTLE)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._box.pidfd)
        if self._killer is not None:
            self._killer.cancel()
        try:
            self._box.kill()  # what the command left running behind it
            self._status = self._box.reap()
        except Exception as error:
            self._status = error
        self._exited.set()
