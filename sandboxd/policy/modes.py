# SPDX-License-Identifier: GPL-3.0-or-later
"""What each permission mode changes in the waterfall, in one table.

To add a mode: a member of model.Mode, a row in `MODES`, its line in docs/rules.md, and its column in
tests/policy/test_policy_waterfall.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.model import Mode


@dataclass(frozen=True, slots=True)
class ModeTraits:
    """`looseness` orders modes: a session, or the child of one, may only go down without a human."""

    mode: Mode
    looseness: int
    reads_only: bool = False  # 2p: what is not read-only is denied
    bypasses: bool = False  # 2a: what the immune steps let through is allowed
    edits: bool = False  # 2f: plain file edits in the workspace are allowed
    never_asks: bool = False  # an ASK is a DENY
    classifies: bool = False  # an ASK that is not immune goes to the classifier
    about: str = ""


MODES: dict[Mode, ModeTraits] = {
    traits.mode: traits
    for traits in (
        ModeTraits(Mode.PLAN, 0, reads_only=True, about="read-only; mutations are denied"),
        ModeTraits(Mode.DONT_ASK, 1, never_asks=True, about="unattended: what would ask is denied"),
        ModeTraits(Mode.DEFAULT, 2, about="reads run, the rest asks"),
        ModeTraits(Mode.BUBBLE, 2, about="as default; the parent session answers"),
        ModeTraits(Mode.ACCEPT_EDITS, 3, edits=True, about="plain edits in the workspace run too"),
        ModeTraits(Mode.AUTO, 4, edits=True, classifies=True, about="a classifier answers what is not bypass-immune"),
        ModeTraits(Mode.BYPASS, 5, bypasses=True, about="only the deny rules and the immune steps are left"),
    )
}


def looser(mode: Mode, than: Mode) -> bool:
    """Whether going from `than` to `mode` needs a human."""
    return MODES[mode].looseness > MODES[than].looseness


def effective(mode: Mode, max_mode: Mode | None) -> Mode:
    """The mode in force: never looser than `max_mode`."""
    return max_mode if max_mode is not None and looser(mode, max_mode) else mode
