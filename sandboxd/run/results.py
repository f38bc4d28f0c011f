# SPDX-License-Identifier: GPL-3.0-or-later
"""What an exit status means: some programs answer a question with 1, and that is a result, not a failure.

To add a program: put its name here, with the statuses that are answers, and a row in tests/run/test_run_results.py.
"""

from __future__ import annotations

from sandboxd.model import Analysis, CommandKind, EndKind, Result

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


def is_failure(result: Result, *programs: str) -> bool:
    """Whether the end is a failure. `programs` are those whose status the shell may have returned; none = not known.

    Every end but a plain exit is one; exit 1 of `grep`, `diff`, `test`, `find` and their kin is an answer.
    """
    if result.end is not EndKind.EXITED:
        return True
    if result.code == 0:
        return False
    return not programs or any(result.code not in ANSWERS.get(name.rpartition("/")[2], frozenset()) for name in programs)


def deciding(analysis: Analysis) -> tuple[str, ...]:
    """The programs one of whose statuses the shell returns at the end of a text; none when that is not certain.

    That is the last command, and the one before an `&&`; of a pipeline its last command.
    """
    top = [each for each in analysis.commands if not each.via and each.subcommand.depth == 0]
    names = [(each.bare or each.argv or ("",))[0] or "" for each in top]
    if analysis.unparsed is not None or not top or not {"set", "shopt", "trap", "eval", "source", "."}.isdisjoint(names):
        return ()
    found = []
    at = len(top) - 1
    while at >= 0:
        if not names[at] or top[at].subcommand.kind is CommandKind.COMPOUND:
            return ()
        found.append(names[at])
        while at > 0 and top[at].subcommand.operator in ("|", "|&"):
            at -= 1
        if top[at].subcommand.operator != "&&":
            break
        at -= 1
    return tuple(found)
