# SPDX-License-Identifier: GPL-3.0-or-later
"""What an exit status means: some programs answer a question with 1, and that is a result, not a failure.

To add a program: put its name here, with the statuses that are answers, and a row in tests/run/test_run_results.py.
"""

from __future__ import annotations

from sandboxd.model import EndKind, Result

ANSWERS: dict[str, frozenset[int]] = {
    "grep": frozenset((1,)),
    "egrep": frozenset((1,)),
    "fgrep": frozenset((1,)),
    "zgrep": frozenset((1,)),
    "rg": frozenset((1,)),
    "ag": frozenset((1,)),
    "ack": frozenset((1,)),
    "diff": frozenset((1,)),
    "cmp": frozenset((1,)),
    "test": frozenset((1,)),
    "[": frozenset((1,)),
    "[[": frozenset((1,)),
    "find": frozenset((1,)),
    "which": frozenset((1,)),
    "pgrep": frozenset((1,)),
}


def is_failure(result: Result, last_command: str) -> bool:
    """Whether the end is a failure. `last_command` is the program whose status the shell returned ("" when not known).

    Every end but a plain exit is one; exit 1 of `grep`, `diff`, `test`, `find` and their kin is an answer.
    """
    if result.end is not EndKind.EXITED:
        return True
    name = last_command.rpartition("/")[2]
    return result.code != 0 and result.code not in ANSWERS.get(name, frozenset())
