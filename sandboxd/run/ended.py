# SPDX-License-Identifier: GPL-3.0-or-later
"""How a started command ended, as far as running it can tell."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.model import EndKind, ExitStatus, Usage

TIMEOUT_CODE = 124  # as timeout(1)
CANCELLED_CODE = 130  # as a shell after Ctrl-C
KILL = 9  # SIGKILL


@dataclass(frozen=True, slots=True)
class Ended:
    """How a started command ended, before the engine adds what only it knows.

    `code` is what a shell would report; `cause` is set for CANCELLED; `reported_cwd` is the shell's own claim.
    """

    kind: EndKind
    code: int
    signal: int | None
    cause: str
    usage: Usage
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    reported_cwd: str | None
    stderr_tail: str  # on a terminal, where there is no stderr, of all it wrote
    status: ExitStatus | None = None  # what the box said; None: it was cancelled before it started


def verdict(ending: tuple[EndKind, str] | None, status: ExitStatus) -> tuple[EndKind, int]:
    """The kind of end, and the status a shell would report. `ending`: who ended it, None when it ended by itself."""
    if ending is not None:
        return ending[0], TIMEOUT_CODE if ending[0] is EndKind.TIMED_OUT else CANCELLED_CODE
    if status.oom_kills and (status.signal == KILL or status.code == 128 + KILL):
        return EndKind.OUT_OF_MEMORY, 128 + KILL
    if status.signal is not None:
        return EndKind.SIGNALED, 128 + status.signal
    return EndKind.EXITED, status.code if status.code is not None else 1
