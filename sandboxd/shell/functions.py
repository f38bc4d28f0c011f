# SPDX-License-Identifier: GPL-3.0-or-later
"""The functions of a text: what they change, in which state their bodies start, and who calls whom."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandboxd.shell import grammar
from sandboxd.shell.builtins import ANYTHING, HANDLERS, NOTHING, Change
from sandboxd.shell.changes import changes, merge, slot_changes
from sandboxd.shell.frames import Frame, Slot
from sandboxd.shell.grammar import FOR, FUNCTION, LIST, PIPE, SIMPLE, Node
from sandboxd.shell.state import State

START = ("",)  # the directory in which the text starts
_HAS_FUNCTION = re.compile(r"\bf[0-9]")


class Functions:
    """`changes` maps each to what a call of it may change; `entry` is the state in which any body starts."""

    def __init__(self, entry: State) -> None:
        self.changes: dict[str, Change] = {}
        self.entry = entry
        self._calls: dict[str, list[tuple[str, bool]]] = {}  # function -> (function called, whether beside itself)
        self._called: list[tuple[int, str]] = []  # number of the subcommand of each call from outside a function

    def learn(self, frame: Frame) -> None:
        """What the functions of the text change, before any of it is walked: a call may come before the definition."""
        if not (any(_HAS_FUNCTION.search(shape) for shape, _ in frame.statements) or _nests_function(frame)):
            return
        definitions: list[tuple[str, Node, list[Slot]]] = []
        moves = False
        for one in all_frames(frame):
            for shape, items in one.statements:
                node = grammar.tree(shape)
                _definitions(node, items, definitions)
        for name, _, _ in definitions:
            self.changes[name] = NOTHING
        total = NOTHING
        for name, body, items in definitions:
            total = merge(total, changes(body, items, self.changes))
            if name in HANDLERS:
                total = ANYTHING
        for name in self.changes:
            self.changes[name] = total
        # A function can be called from inside any subshell, so every `cd` of the text counts, wherever it stands.
        for one in all_frames(frame):
            for _, items in one.statements:
                each = [slot_changes(slot, self.changes) for slot in items]
                moves = moves or any(change.moves or change.everything for change in each)
        self.entry = State({}, None if moves or total.everything else START, None)

    def call(self, name: str, caller: str, beside: bool, number: int) -> None:
        """A call seen on the walk: from the body of `caller`, else by the subcommand with that number."""
        if caller:
            self._calls.setdefault(caller, []).append((name, beside))
        else:
            self._called.append((number, name))

    def bombs(self) -> Iterator[tuple[int, str]]:
        """The calls, by number of the subcommand and name, of functions that reach themselves beside themselves."""
        for number, name in self._called:
            if self._is_bomb(name):
                yield number, name

    def _is_bomb(self, name: str) -> bool:
        """Whether `name` reaches itself through calls of which one runs beside its caller."""
        todo = [(name, False)]
        seen: set[tuple[str, bool]] = set()
        while todo:
            at, forked = todo.pop()
            for target, beside in self._calls.get(at, ()):
                step = (target, forked or beside)
                if target == name and step[1]:
                    return True
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
        return False


def _nests_function(frame: Frame) -> bool:
    return any(_HAS_FUNCTION.search(shape) for one in all_frames(frame) if one is not frame for shape, _ in one.statements)


def all_frames(frame: Frame) -> list[Frame]:
    """The frame and all that stand in its words, however deep."""
    out = [frame]
    for one in out:
        for _, items in one.statements:
            for slot in dict.fromkeys(items):
                out.extend(slot.frames)
                out.extend(slot.redirect_frames)
                for _, frames in slot.assignment_frames:
                    out.extend(frames)
    return out


def _definitions(node: Node, items: list[Slot], out: list[tuple[str, Node, list[Slot]]]) -> None:
    kind = node[0]
    if kind == FUNCTION:
        out.append((items[node[1]].name, node[2], items))
        _definitions(node[2], items, out)
    elif kind == LIST:
        for _, part in node[1]:
            _definitions(part, items, out)
    elif kind == PIPE:
        for part in node[2]:
            _definitions(part, items, out)
    elif kind == FOR:
        _definitions(node[3], items, out)
    elif kind != SIMPLE:
        for part in node[1:-1]:
            if part is not None:
                _definitions(part, items, out)
