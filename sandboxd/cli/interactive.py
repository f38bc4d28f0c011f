# SPDX-License-Identifier: GPL-3.0-or-later
"""The caller's terminal while a command runs: lent to it for `--tty`, else a line that says that it still runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator

from sandboxd.cli import terminal
from sandboxd.client import AsyncExecution
from sandboxd.errors import RequestError, SandboxdError
from sandboxd.model import Progress, WindowSize

_ERASE = "\r\x1b[2K"  # to the beginning of the line, and empty it


def size() -> WindowSize:
    """The size of the caller's terminal. Raises RequestError when there is none to lend."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RequestError("`--tty` needs a terminal on stdin and stdout", field="--tty", fix="leave it out")
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    default = WindowSize()
    return WindowSize(rows or default.rows, columns or default.columns)  # 0 is a terminal that does not know


@contextlib.asynccontextmanager
async def raw(execution: AsyncExecution) -> AsyncIterator[None]:
    """Pass every key on as it is typed, and every change of size; afterwards the terminal is as it was."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changed.set()  # it may have changed since the command was asked for
    following = asyncio.create_task(_follow_size(execution, changed))
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        following.cancel()
        # What was typed ahead, or what a terminal answered to the command, is not for the shell behind us.
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
        await asyncio.wait([following])


async def _follow_size(execution: AsyncExecution, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        with contextlib.suppress(SandboxdError):  # it has ended meanwhile
            await execution.resize(size())


class Heartbeat:
    """One line on standard error that is rewritten, and gone before anything else is printed. Only on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._shown = False
        self._bytes = 0

    def show(self, progress: Progress) -> None:
        """Say it, unless what the command prints shows by itself that it runs."""
        fresh, self._bytes = progress.output_bytes != self._bytes, progress.output_bytes
        if self._quiet or (fresh and sys.stdout.isatty()):
            return
        last = f"; last: {terminal.shown(progress.last_line, 60)}" if progress.last_line else ""
        line = f"sandboxd: running for {progress.elapsed:.0f} s, {_size(progress.output_bytes)} of output{last}"
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        on = terminal.colourful(sys.stderr)
        sys.stderr.write(_ERASE + terminal.paint(line[: width - 1], terminal.DIM, on=on))
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write(_ERASE)
            sys.stderr.flush()


def _size(count: int) -> str:
    """Bytes as a person reads them."""
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
