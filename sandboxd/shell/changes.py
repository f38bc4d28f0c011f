# SPDX-License-Identifier: GPL-3.0-or-later
"""What a construct may change in the shell that runs it, told without walking it; and a change put into a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sandboxd.model.shell import CommandKind, PartKind, Word, WordFlag
from sandboxd.shell import builtins
from sandboxd.shell.builtins import ANYTHING, HANDLERS, NOTHING, Change
from sandboxd.shell.frames import Slot
from sandboxd.shell.grammar import FOR, FUNCTION, LIST, PIPE, SIMPLE, SUBSHELL, Node
from sandboxd.shell.state import State, Values

CHANGING = frozenset((WordFlag.EVALUATES, WordFlag.ASSIGNS))


Functions = Mapping[str, Change]  # what a call of each may change


def changes(node: Node, items: list[Slot], functions: Functions) -> Change:
    """What the commands of a node may change, in any order; `functions` is what calls of them change."""
    kind = node[0]
    if kind == SIMPLE:
        return slot_changes(items[node[1][0]], functions)
    total = NOTHING
    if kind == LIST:
        for _, part in node[1]:
            total = merge(total, changes(part, items, functions))
        return total
    if kind == PIPE:
        for part in node[2]:
            total = merge(total, changes(part, items, functions))
        return total
    if kind == FUNCTION:
        return NOTHING
    if kind == SUBSHELL:
        # What happens inside stays inside, yet a descriptor variable or a default may be set by its redirects.
        total = NOTHING
    elif kind == FOR:
        total = merge(Change(frozenset((items[node[1]].name,))), slot_changes(items[node[2]], functions))
        total = merge(total, changes(node[3], items, functions))
    else:
        for part in node[1:-1]:
            if part is not None:
                total = merge(total, changes(part, items, functions))
    if node[-1]:
        total = merge(total, slot_changes(items[node[-1][0]], functions))
    return total


def slot_changes(slot: Slot, functions: Functions) -> Change:
    """What one command may change."""
    total = NOTHING
    names = {assignment.name for assignment in slot.assignments}
    names.update(redirect.fd for redirect in slot.redirects if isinstance(redirect.fd, str))
    words = [*slot.words, *[a.value for a in slot.assignments if a.value is not None]]
    words.extend(word for a in slot.assignments for word in a.elements)
    words.extend(redirect.target for redirect in slot.redirects)
    if any(word.flags & CHANGING for word in words):
        total = Change(all_names=True)
    if names:
        total = merge(total, Change(frozenset(names)))
    if slot.kind is not CommandKind.SIMPLE or not slot.words or slot.role:
        return total
    arguments = tuple(slot.words)
    first = arguments[0].value
    if first in ("command", "builtin"):
        index = builtins.command_name(arguments)
        if index < 0:
            return ANYTHING
        arguments = arguments[index:]
        if not arguments:
            return total
        first = arguments[0].value
    if first is None:
        return ANYTHING
    if first in functions:
        total = merge(total, functions[first])
    if first in HANDLERS:
        total = merge(total, HANDLERS[first](arguments[1:], _ignore))
    return total


def _ignore(code: str, detail: str) -> None:
    """A noter for looking ahead: the walk itself will note it."""


def merge(a: Change, b: Change) -> Change:
    """Both changes, in any order and any number of times: an assigned value is then only a changed name."""
    if b is NOTHING and not a.assigned:
        return a
    return Change(
        a.names | b.names,
        a.pinned | b.pinned,
        all_names=a.all_names or b.all_names,
        everything=a.everything or b.everything,
        moves=a.moves or b.moves,
    )


def apply(change: Change, state: State) -> State:
    """The state after the change."""
    if change is NOTHING:
        return state
    if change.everything:
        return state.lose()
    if change.all_names:
        state = state.forget_all()
    if change.pinned:
        state = state.pin(change.pinned)
    if change.names:
        state = state.forget(change.names)
    for name, word in change.assigned:
        values = tuple([value.partition("=")[2] for value in word.values])
        # `export x+=…` and tilde prefixes never get here: their words are not literal, or are left out.
        state = state.assign(name, values)
    return state


def settled(words: Iterable[Word], state: State) -> State:
    """The state that holds while these words are expanded: one of them may change what another sees."""
    for word in words:
        if word.flags & CHANGING:
            return state.forget_all()
    return state


def move(name: str, words: tuple[Word, ...], state: State) -> State:
    """`cd`, `pushd` and `popd` when they succeed."""
    if words and words[0].value == "--":
        words = words[1:]
    if name == "popd":
        if words or not state.stack:
            return state.at(None, None)
        return state.at(state.stack[-1], state.stack[:-1])
    if name == "cd" and len(words) == 2 and words[0].value == "-L":
        words = words[1:]
    if name == "cd" and not words:
        return state.at(state.moved(("~",)), state.stack)
    if len(words) != 1 or (name == "pushd" and state.cwds is None):
        return state.at(None, None if name == "pushd" else state.stack)
    values = _directories(words[0])
    if values is None:
        return state.at(None, None if name == "pushd" else state.stack)
    stack = state.stack
    if name == "pushd":
        stack = None if stack is None or state.cwds is None else (*stack, state.cwds)
    return state.at(state.moved(values), stack)


def _directories(word: Word) -> Values | None:
    """The directories a word names: its values, or `~` with a literal rest; None when unknown or an option."""
    values = word.values
    if not values:
        parts = word.parts
        if parts[0].kind is not PartKind.TILDE or any(part.kind is not PartKind.LITERAL for part in parts[1:]):
            return None
        if parts[0].text not in ("~",):
            return None
        values = ("".join([part.text for part in parts]),)
    elif any(value.startswith(("-", "+", "~")) for value in values):
        return None
    return values
