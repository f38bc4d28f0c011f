# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ends are failures."""

from __future__ import annotations

import pytest

from sandboxd.model import EndKind, Result
from sandboxd.run.results import is_failure

ROWS = [
    (EndKind.EXITED, 0, "make", False),
    (EndKind.EXITED, 1, "make", True),
    (EndKind.EXITED, 1, "", True),
    (EndKind.EXITED, 1, "grep", False),
    (EndKind.EXITED, 2, "grep", True),
    (EndKind.EXITED, 1, "/usr/bin/rg", False),
    (EndKind.EXITED, 1, "diff", False),
    (EndKind.EXITED, 2, "diff", True),
    (EndKind.EXITED, 1, "test", False),
    (EndKind.EXITED, 1, "[", False),
    (EndKind.EXITED, 1, "[[", False),
    (EndKind.EXITED, 1, "find", False),
    (EndKind.EXITED, 127, "grep", True),
    (EndKind.SIGNALED, 137, "grep", True),
    (EndKind.TIMED_OUT, 124, "grep", True),
    (EndKind.CANCELLED, 130, "make", True),
    (EndKind.DENIED, 126, "make", True),
    (EndKind.FAILED, 125, "make", True),
]


@pytest.mark.parametrize(("end", "code", "command", "failure"), ROWS)
def test_rows(end: EndKind, code: int, command: str, failure: bool) -> None:
    """Status 1 of a program that answers with it is a result; everything else but 0 is a failure."""
    assert is_failure(Result(end, code), command) is failure
