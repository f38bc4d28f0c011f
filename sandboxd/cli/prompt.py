# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking the person at the terminal whether a command may run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import termios

from sandboxd.cli import terminal, text
from sandboxd.client import Answer, Ask
from sandboxd.consult.prompt import escape_for_prompt


def available() -> bool:
    """Whether there is somebody to ask: standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(question: Ask) -> Answer:
    """y, n, or a: always, by the narrow rule that is shown. End of input is no."""
    on = terminal.colourful(sys.stderr)
    decision = question.decision
    rule = decision.suggestions[0] if decision.suggestions else ""
    lines = [
        "",
        terminal.paint("sandboxd asks: may this run?", terminal.BOLD, terminal.YELLOW, on=on),
        "    " + escape_for_prompt(question.text),
        f"  step {text.step(decision)}: {terminal.shown(decision.message, 400)}",
        *text.reasons(decision),
        "  y  allow it this once",
        "  n  deny it",
    ]
    if rule:
        lines.append(f"  a  always allow `{terminal.shown(rule)}`")
    print("\n".join(lines), file=sys.stderr)
    # What was typed before the question was seen is no answer to it.
    with contextlib.suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    while True:
        print("  > ", end="", file=sys.stderr, flush=True)
        try:
            line = await _read_line(sys.stdin.fileno())
        except asyncio.CancelledError:  # somebody else was faster: a hook, the classifier, another terminal
            print("\n  no answer is needed here any more", file=sys.stderr)
            raise
        if line is None:
            print(file=sys.stderr)
            return Answer(False, reason="no answer at the terminal")
        said = line.strip().lower()
        if said in ("y", "yes"):
            return Answer(True, reason="allowed at the terminal")
        if said in ("n", "no"):
            return Answer(False, reason="denied at the terminal")
        if rule and said in ("a", "always"):
            return Answer(True, scope="always", rule=rule, reason="always allowed at the terminal")
        print(f"  please answer y, n{' or a' if rule else ''}", file=sys.stderr)


def advise(said: str) -> None:
    """Show what the classifier thinks beside the question that is open. It answers nothing."""
    again = "  > " if available() else ""
    print(f"\n  advice, which decides nothing: {terminal.shown(said, 800)}\n{again}", end="", file=sys.stderr, flush=True)


async def _read_line(fd: int) -> str | None:
    """One line from a terminal without blocking the loop, which may carry the daemon too; None at its end."""
    data = b""
    while not data.endswith(b"\n"):
        await readable(fd)
        piece = os.read(fd, 4096)
        if not piece:
            break
        data += piece
    return data.decode("utf-8", "replace") if data else None


async def readable(fd: int) -> None:
    """Wait until a read would not block."""
    if select.select([fd], [], [], 0)[0]:
        return  # plain files and /dev/null always are, and epoll refuses them
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
